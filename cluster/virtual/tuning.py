"""How many bytes a range is to have: that with the least predicted time.

Small ranges begin early, and each of them costs what beginning costs
(config.cluster.network.range_s); large ones leave nothing to overlap with.  So
there is a best in between, which depends on the links, on the forest and on
when gradients appear.

On real hosts with accelerators gradients do not overlap with the backward pass:
they are ready at its end, and reach the host one after the other from then on.

An iteration is simulated with 0, powers of 2 and inf; those that make the same
ranges count once.  Where chunks travel that were chosen before, it is whole
chunks, 1, 2, 4 and so on.  Of those within 1 % of the best the largest is
taken: what has few ranges hangs least on what is not known.
"""

import math

from absl import logging
from ml_collections import ConfigDict

from cluster import talks
from cluster.speed import build
from cluster.speed.layers import Bucket
from cluster.virtual import stages
from cluster.virtual.allreduce import Sums
from configs import sections
from configs.checks import require
from configs.sections import Choose
from learning.learning import Learning, Overlap
from route import links
from route.links import Links
from route.route import LATENCY_S, Allreduce, Plan
from topology.forests.dealing import CHUNK_BYTES
from wire.codec import Wire
from wire.talks import Talks

_FIELD = 'config.route.bucket_bytes'
_SLACK = 1.01
# From an accelerator to ordinary memory of its host: a guess, half of what PCIe
# 4.0 with 16 lanes carries.
_COPY_Bps = 12e9


def tuned(
  config: ConfigDict,
  choose: Choose,
  plan: Plan,
  learned: Learning,
  wire: Wire,
) -> Plan:
  """Returns a plan whose ranges are chosen, if the config asks for that.

  The same in every process of a run, for equal arguments.

  Args:
    config: Of the run; says how long workers compute, also on real hosts.
    choose: Chooses a section of it.
    plan: Where everything travels.
    learned: What is learned.
    wire: What travels.

  Raises:
    ValueError: If times cannot be predicted; names the field.
  """
  if (
    not isinstance(plan, Allreduce)
    or config.route.bucket_bytes != sections.AUTO
  ):
    return plan
  talked = talks.of_run(config, plan, wire, learned)
  _check(config, plan, talked)
  virtual = _virtual(config)
  overlaps, copy_Bps = plan.overlap, math.inf
  if not virtual:
    overlap, _ = learned.find_overlap(wanted=plan.overlap)
    overlaps = overlap != Overlap.NONE
    copy_Bps = _COPY_Bps if overlap == Overlap.COPIES else math.inf
  made: dict[tuple[Bucket, ...], float] = {}
  for size in _sizes(learned, talked):
    each = plan._replace(bucket_bytes=size)
    *_, (ranges,) = stages.of_run(
      config, each, learned, wire, talked, copy_Bps=copy_Bps
    )
    made[tuple(ranges)] = size  # The largest that makes them.
  sums = Sums(
    _links(config, plan),
    believed=plan.cluster if virtual else None,
    forest=plan.forest,
    stages=[[ranges] for ranges in made],
    overlap=overlaps,
    range_s=config.cluster.network.range_s,
    chunk_bytes=CHUNK_BYTES,
  )
  speed = build.make(config, choose)
  batch, workers = config.batching.worker_batch, range(config.cluster.workers)
  begun = dict.fromkeys(workers, 0.0)
  computed = {index: speed.seconds(index, 0, batch) for index in workers}
  times = {
    size: sums.ends(begun, computed, stage)
    for stage, size in enumerate(made.values())
  }
  best_s = min(times.values())
  taken = max(size for size, each in times.items() if each <= _SLACK * best_s)
  logging.info('Predicted seconds of an iteration, by %s:', _FIELD)
  for size, each_s in sorted(times.items()):
    chosen = ', taken' if size == taken else ''
    logging.info('  %12.10g %9.4g s%s', size, each_s, chosen)
  return plan._replace(bucket_bytes=taken)


def _check(config: ConfigDict, plan: Allreduce, talked: Talks | None) -> None:
  """Refuses what has no ranges, or none whose times are known."""
  reasons = {
    'what XLA does is not predicted': plan.forest is None,
    f'{config.wire.name} sends nothing before all is computed, as it is set': (
      talked is not None and not (talked.early[-1] and plan.overlap)
    ),
    'links are not known before they are measured': (
      not _virtual(config) and plan.cluster is None
    ),
  }
  for reason, holds in reasons.items():
    require(not holds, _FIELD, f'a number, as {reason}', sections.AUTO)


def _sizes(learned: Learning, talked: Talks | None) -> list[float]:
  """Returns candidates, in ascending order."""
  least, total = 2**16, talks.ITEM * learned.elements[0]
  if talked and (early := talked.early[-1]):
    least = talks.ITEM * early.chunk
    total = least * early.count(talked.size)
  powers = [float(least * 2**n) for n in range(48) if least * 2**n < total]
  return [0.0, *powers, math.inf]


def _virtual(config: ConfigDict) -> bool:
  return config.cluster.runtime == 'virtual'


def _links(config: ConfigDict, plan: Allreduce) -> Links:
  """Returns the true links, or what is believed of those of real hosts."""
  if _virtual(config):
    return links.virtual(config)
  cluster = plan.cluster
  return Links(cluster, dict.fromkeys(cluster.capacity_Bps, LATENCY_S))
