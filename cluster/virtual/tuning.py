"""Choice of the bucket size with the least predicted time of an iteration.

Small buckets are sent early, but each has a fixed cost
(config.cluster.network.range_s); large buckets leave nothing to overlap with.
The best size in between depends on the links, on the forest and on when
gradients become ready.

On real hosts with accelerators gradients do not overlap with the backward pass:
they are ready at its end, and are copied to the host one after the other.

An iteration is simulated with 0, powers of 2 and inf; sizes that make equal
buckets count once.  For chunks that are chosen before the gradient, sizes are
1, 2, 4 and so on chunks.  Of the sizes within 1 % of the best the largest is
taken: fewer buckets depend least on what is not known.
"""

import math

from absl import logging
from ml_collections import ConfigDict

from cluster import multi_round
from cluster.speed import build
from cluster.speed.layers import Bucket
from cluster.virtual import contributions
from cluster.virtual.allreduce import Sums
from configs import sections
from configs.checks import require
from configs.sections import Choose
from learning.layout import FLOAT32
from learning.learning import Learning, Overlap
from route import links
from route.links import Links
from route.route import LATENCY_S, Allreduce, ForestBuilder, Plan
from wire.codec import Wire
from wire.multi_round import MultiRoundAllreduce

_FIELD = 'config.route.bucket_bytes'
_SLACK = 1.01
# Guess of the rate from an accelerator to ordinary memory of its host: half of
# what PCIe 4.0 with 16 lanes carries.
_COPY_Bps = 12e9


def choose_bucket_bytes(
  config: ConfigDict,
  choose: Choose,
  plan: Plan,
  learned: Learning,
  wire: Wire,
) -> Plan:
  """Returns a plan with a bucket size; other plans as they are.

  The result is the same in every process of a run, for equal arguments.

  Args:
    config: Config of the run; its speed model predicts workers, also on real
      hosts.
    choose: Chooses a section of it.
    plan: Plan of the route; one without a bucket size gets the chosen one.
    learned: Model and data of the run.
    wire: Codecs of the run.

  Raises:
    ValueError: If times cannot be predicted; names the field.
  """
  if not isinstance(plan, Allreduce) or plan.bucket_bytes is not None:
    return plan
  own = multi_round.build(config, plan, wire, learned)
  forest = _predictable_forest(config, plan, own)
  virtual = _is_virtual(config)
  overlaps, copy_Bps = plan.overlap, math.inf
  if not virtual:
    overlap, _ = learned.find_overlap(wanted=plan.overlap)
    overlaps = overlap != Overlap.NONE
    copy_Bps = _COPY_Bps if overlap == Overlap.COPIES else math.inf
  # By the last stage's buckets: the largest size that makes them.
  sizes: dict[tuple[Bucket, ...], float] = {}
  for size in _candidates(learned, own):
    *_, (ranges,) = contributions.of_run(
      config,
      learned,
      wire,
      own,
      bucket_bytes=size,
      overlap=plan.overlap,
      copy_Bps=copy_Bps,
    )
    sizes[tuple(ranges)] = size
  sums = Sums(
    _links(config, plan),
    assumed=plan.cluster if virtual else None,
    forest=forest,
    stages=[[ranges] for ranges in sizes],
    overlap=overlaps,
    range_s=config.cluster.network.range_s,
  )
  speed = build.make(config, choose, learned)
  batch, workers = config.batching.worker_batch, range(config.cluster.workers)
  started = dict.fromkeys(workers, 0.0)
  computed = {index: speed.seconds(index, 0, batch) for index in workers}
  times = {
    size: sums.ends(started, computed, stage)
    for stage, size in enumerate(sizes.values())
  }
  best_s = min(times.values())
  chosen = max(size for size, each in times.items() if each <= _SLACK * best_s)
  logging.info('Predicted seconds of an iteration, by %s:', _FIELD)
  for size, each_s in sorted(times.items()):
    mark = ', taken' if size == chosen else ''
    logging.info('  %12.10g %9.4g s%s', size, each_s, mark)
  return plan._replace(bucket_bytes=chosen)


def _predictable_forest(
  config: ConfigDict, plan: Allreduce, own: MultiRoundAllreduce | None
) -> ForestBuilder:
  """Returns the plan's forest, if times of its buckets can be predicted.

  Raises:
    ValueError: If they cannot; names the field.
  """
  if plan.forest is None:
    expected = 'a number, as what XLA does is not predicted'
    raise ValueError(f'{_FIELD}: expected {expected}, got {sections.AUTO!r}.')
  reasons = {
    f'{config.wire.name} sends nothing before all is computed, as it is set': (
      own is not None and not (own.streamable[-1] and plan.overlap)
    ),
    'links are not known before they are measured': (
      not _is_virtual(config) and plan.cluster is None
    ),
  }
  for reason, holds in reasons.items():
    require(not holds, _FIELD, f'a number, as {reason}', sections.AUTO)
  return plan.forest


def _candidates(
  learned: Learning, own: MultiRoundAllreduce | None
) -> list[float]:
  """Returns sizes to predict, bytes, in ascending order."""
  least, total = 2**16, FLOAT32.itemsize * learned.elements[0]
  if own and (prefix := own.streamable[-1]):
    least = FLOAT32.itemsize * prefix.chunk
    total = least * prefix.count(own.size)
  powers = [float(least * 2**n) for n in range(48) if least * 2**n < total]
  return [0.0, *powers, math.inf]


def _is_virtual(config: ConfigDict) -> bool:
  return bool(config.cluster.runtime == 'virtual')


def _links(config: ConfigDict, plan: Allreduce) -> Links:
  """Returns the true links, or those of real hosts that the plan assumes."""
  if _is_virtual(config):
    return links.read_virtual(config)
  cluster = plan.cluster
  if cluster is None:
    raise RuntimeError('Expected a plan with links, got none.')
  return Links(cluster, dict.fromkeys(cluster.capacity_Bps, LATENCY_S))
