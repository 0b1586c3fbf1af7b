"""Bytes that a worker contributes to allreduces, and when they become ready."""

import math

from ml_collections import ConfigDict

from cluster.speed import layers
from cluster.speed.layers import Bucket
from learning.fragments import Fragments
from learning.layout import FLOAT32
from learning.learning import Learning
from wire.codec import Wire
from wire.multi_round import MultiRoundAllreduce

_ITEM = FLOAT32.itemsize


def of_fragments(
  learned: Learning, fragments: Fragments, wire: Wire, *, bucket_bytes: float
) -> list[list[list[Bucket]]]:
  """Returns the contributions of iterations that sum a fragment each.

  Statistics follow at the end of each iteration.

  Args:
    learned: Model and data of the run.
    fragments: Division of the model.
    wire: Codecs of the run.
    bucket_bytes: Least bytes of a bucket, in float32.

  Returns:
    Buckets by fragment, in one round.
  """
  dtype = wire.push.dtype or FLOAT32
  rest_bytes = _ITEM * learned.elements[1] + learned.other_bytes
  rest = [Bucket(rest_bytes, 1.0)] if rest_bytes else []
  return [
    [
      [
        *(
          Bucket(each // _ITEM * dtype.itemsize, fragments.ready)
          for each in layers.equal_sizes(_ITEM * numbers, bucket_bytes)
        ),
        *rest,
      ]
    ]
    for numbers in fragments.numbers
  ]


def of_run(
  config: ConfigDict,
  learned: Learning,
  wire: Wire,
  multi_round: MultiRoundAllreduce | None,
  *,
  bucket_bytes: float,
  overlap: bool,
  copy_Bps: float = math.inf,
) -> list[list[list[Bucket]]]:
  """Returns the contributions of an iteration, by stage of the wire and round.

  Args:
    config: Config of the run.
    learned: Model and data of the run.
    wire: Codecs of the run.
    multi_round: The multi-round allreduce, if the wire has one.
    bucket_bytes: Least bytes of a bucket, in float32.
    overlap: Whether buckets are sent before the gradient is complete.
    copy_Bps: Rate at which gradients reach the host, as of `layers.of_run`.
  """
  if multi_round is None:
    dtype = wire.push.dtype or FLOAT32
    ranges = layers.of_run(
      config, learned, bucket_bytes, dtype, copy_Bps=copy_Bps
    )
    return [[ranges]]
  stats_bytes = _ITEM * learned.elements[1] + learned.other_bytes
  stats = [Bucket(stats_bytes, 1.0)] if stats_bytes else []
  stages = []
  for stage, prefix in enumerate(multi_round.streamable):
    sizes = multi_round.size_bytes(stage)
    *rounds, last = ([Bucket(size, 1.0)] for size in sizes)
    if prefix and overlap:
      chunks = prefix.count(multi_round.size)
      rest_bytes = _ITEM * (
        multi_round.contribution_sizes[stage][0] - chunks * prefix.chunk
      )
      chunk_bytes = (sizes[0] - rest_bytes) // chunks
      dense = layers.of_run(
        config, learned, bucket_bytes, FLOAT32, copy_Bps=copy_Bps
      )
      # As if the chosen chunks lay evenly in the gradient.
      spread = layers.spread(
        dense,
        [
          chunk_bytes * (end - first)
          for first, end in prefix.buckets(multi_round.size, bucket_bytes)
        ],
      )
      rest = Bucket(rest_bytes, 1.0, spread[-1].copy_s)
      rounds, last = [], [*spread, rest]
    after = [each._replace(copy_s=last[-1].copy_s) for each in stats]
    stages.append([*rounds, [*last, *after]])
  return stages
