"""Groups of processes that XLA joins: those of jax.distributed.

A process joins at most one group, before XLA starts.  The coordination service
of the group checks no token, and neither do gloo and NCCL.
"""

from collections.abc import Sequence

import jax
from absl import logging


def has_joined() -> bool:
  """Returns whether this process is in a group."""
  return bool(jax.distributed.is_initialized())


def join(
  address: str,
  *,
  count: int,
  index: int,
  devices: Sequence[int],
  start_s: float,
) -> None:
  """Joins all other processes of a group.

  JAX's detection of clusters is off: under SLURM and Open MPI it would take the
  GPU whose index is the local rank, whether this process owns it or not.  Its
  preemption service is off, as it would handle SIGTERM.

  Args:
    address: Address 'host:port' of the coordination service, which listens in
      process 0.
    count: Number of processes.
    index: Index of this one.
    devices: Positions of this process's GPUs among those that it sees; none on
      CPUs.
    start_s: Seconds within which all have to join; otherwise JAX ends this
      process with SIGABRT.
  """
  logging.info('XLA meets at %s, without a token.', address)
  jax.config.update('jax_enable_preemption_service', False)
  jax.distributed.initialize(
    address,
    count,
    index,
    local_device_ids=[*devices],
    cluster_detection_method='deactivate',
    initialization_timeout=max(round(start_s), 1),
  )
