"""Times of the transfers inside islands, over simulated links.

The processes of an island stand in a ring.  In a *pass* each of P processes
sends (P - 1) / P of the bytes of an array to the next one, in P - 1 messages,
all at the same time.  An allreduce has two passes, and gathering or scattering
a divided array has one (Patarasuk and Yuan, 'Bandwidth optimal all-reduce
algorithms for clusters of workstations', 2009).  Transfers take turns with
computing: XLA overlaps them on some accelerators.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
from ml_collections import ConfigDict

from configs import sections
from learning.gradient import micro_batches
from learning.layout import FLOAT32
from learning.learning import Learning

_BPS = 'config.cluster.network.island_Bps'
_LATENCY_S = 'config.cluster.network.island_latency_s'
_ALLREDUCE, _GATHER = 2, 1  # Passes.


@dataclasses.dataclass(frozen=True)
class IslandLinks:
  """Links inside the islands of a run, and what an iteration sends over them.

  It begins with an allreduce of the parameters, of which the leader contributes
  its own.  The gradient of each micro-batch is allreduced; with 'fsdp' it is
  scattered instead, after parameters were gathered for the forward and for the
  backward pass.  All devices compute micro-batches that have fewer examples
  than there are devices, so that their gradients are not sent.  In the end
  'fsdp' gathers the push and the state of the inner optimizer on the leader.

  Attributes:
    hosts: Number of processes of an island (P).
    devices: Number of their devices.
    is_sharded: Whether the sharding is 'fsdp'.
    size_bytes: Bytes of parameters and statistics, and of their gradient.
    state_bytes: Bytes of the state of the inner optimizer.
    worker_batch: Examples of a local step; None if an iteration is one step.
    micro_batch: Examples of the largest micro-batch.
    Bps: Bytes per second that a process of each island sends, and receives.
    latency_s: Latency of a message in each island, seconds.
  """

  hosts: int
  devices: int
  is_sharded: bool
  size_bytes: int
  state_bytes: int
  worker_batch: int | None
  micro_batch: int
  Bps: Sequence[float]
  latency_s: Sequence[float]

  def seconds(self, worker: int, examples: int) -> float:
    """Returns the seconds of all transfers of an iteration.

    Args:
      worker: Index of the island.
      examples: Number of examples of the iteration.
    """
    per_step = self.worker_batch or max(examples, 1)
    steps, rest = divmod(examples, per_step)
    count = _ALLREDUCE + steps * self._count_passes(per_step)
    if rest:
      count += self._count_passes(rest)
    sent = count * self.size_bytes
    if self.is_sharded:
      count += _GATHER
      sent += self.size_bytes + self.state_bytes
    return (self.hosts - 1) * (
      count * self.latency_s[worker] + sent / self.hosts / self.Bps[worker]
    )

  def _count_passes(self, examples: int) -> int:
    """Returns the passes of a step, each of all parameters."""
    parts = _divide(examples, self.micro_batch)
    split = sum(computed >= self.devices for computed, _ in parts)
    if not self.is_sharded:
      return _ALLREDUCE * split
    return 2 * _GATHER * len(parts) + split


def make(config: ConfigDict, learned: Learning) -> IslandLinks | None:
  """Returns the links inside islands; None without islands.

  Args:
    config: Checked config.
    learned: Model and data of the run.

  Raises:
    ValueError: If a field is out of range; names it.
  """
  cluster, steps = config.cluster, config.batching.local_steps
  network, hosts = cluster.network, cluster.hosts_per_worker
  if hosts == 1:
    return None
  Bps, latency_s = network.island_Bps, network.island_latency_s
  state = jax.eval_shape(learned.pushes.init, learned.params)
  return IslandLinks(
    hosts=hosts,
    devices=hosts * cluster.devices_per_worker,
    is_sharded=cluster.island_sharding == 'fsdp',
    size_bytes=FLOAT32.itemsize * sum(learned.elements) + learned.other_bytes,
    state_bytes=sum(
      leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)
    ),
    worker_batch=config.batching.worker_batch if steps > 1 else None,
    micro_batch=config.batching.micro_batch,
    Bps=sections.expand_values(_BPS, Bps, cluster.workers),
    latency_s=sections.expand_values(_LATENCY_S, latency_s, cluster.workers),
  )


@functools.cache
def _divide(examples: int, largest: int) -> list[tuple[int, int]]:
  return micro_batches(examples, largest=largest)
