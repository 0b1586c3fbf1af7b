"""What a worker adds to sums among workers, as it becomes ready."""

import math

from ml_collections import ConfigDict

from cluster import talks
from cluster.speed import layers
from cluster.speed.layers import Bucket
from learning.learning import Learning
from learning.pool import FLOAT32
from route.route import Allreduce
from wire.codec import Wire
from wire.talks import Talks


def of_run(
  config: ConfigDict,
  plan: Allreduce,
  learned: Learning,
  wire: Wire,
  talked: Talks | None,
  *,
  copy_Bps: float = math.inf,
) -> list[list[list[Bucket]]]:
  """Returns it by stage of the wire and round of a conversation.

  Args:
    config: Of the run.
    plan: Where everything travels.
    learned: What is learned.
    wire: What travels.
    talked: The conversations, if the wire has some.
    copy_Bps: As of `layers.of_run`.
  """
  size = plan.bucket_bytes
  if talked is None:
    dtype = wire.push.dtype
    return [[layers.of_run(config, learned, size, dtype, copy_Bps=copy_Bps)]]
  stats = talks.ITEM * learned.elements[1] + learned.other_bytes
  rest = [Bucket(stats, 1.0)] if stats else []
  found = []
  for stage, early in enumerate(talked.early):
    sizes = talked.size_bytes(stage)
    *rounds, last = ([Bucket(each, 1.0)] for each in sizes)
    if early and plan.overlap:
      count = early.count(talked.size) * early.chunk
      alone = talks.ITEM * (talked.said[stage][0] - count)
      parts = early.parts(talked.size, size)
      each = (sizes[0] - alone) // (count // early.chunk)  # Of a chunk.
      dense = layers.of_run(config, learned, size, FLOAT32, copy_Bps=copy_Bps)
      # As if what is chosen lay evenly in the gradient.
      spread = layers.spread(dense, [each * (end - at) for at, end in parts])
      rounds, last = [], [*spread, Bucket(alone, 1.0, spread[-1].copy_s)]
    after = [each._replace(copy_s=last[-1].copy_s) for each in rest]
    found.append([*rounds, [*last, *after]])
  return found
