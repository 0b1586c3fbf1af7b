"""How the processes of a run find each other.

Workers are one run of jax.distributed, whose key-value store tells them where
the lead is.  Dedicated servers are not part of it: the lead's address is given.
"""

import os
import sys

import jax
from jax._src import distributed  # The store has no public interface.

from cluster.distributed.roles import Role
from cluster.transport.heart import LOST, Unmendable

_KEY = 'syncopate/lead'


class Meeting:
  """Where a process meets the others.

  Attributes:
    role: Of this process.
    address: Of its host.
    joined: Whether there is somebody to meet.
    port: That the lead is to listen on; 0 for any.
  """

  def __init__(self, role: Role, *, workers: int, address: str, wait_s: float):
    """Meets nobody yet.

    Args:
      role: Of this process.
      workers: Number of workers.
      address: Of this host: worker 0 has the coordination service listen there.
      wait_s: How long to wait for others.
    """
    self.role = role
    self.address = address
    self._wait_s = wait_s
    self.joined = False
    self._workers = workers
    self.port = int(role.lead.rpartition(':')[2]) if role.lead else 0

  def join(self) -> None:
    """Joins jax.distributed, if this is a worker; before XLA starts.

    Raises:
      Unmendable: If they cannot be met.
    """
    self.joined = True
    if self.role.kind == 'worker':
      _, _, port = self.role.coordinator.rpartition(':')
      # A worker may die, and come back, without ending all others.
      jax.config.update('jax_enable_recoverability', True)
      # It would take SIGTERM for itself.
      jax.config.update('jax_enable_preemption_service', False)
      try:
        # If the others are not there in time, it ends the process by SIGABRT.
        jax.distributed.initialize(
          self.role.coordinator,
          self._workers,
          self.role.index,
          initialization_timeout=round(self._wait_s),
          coordinator_bind_address=f'{self.address}:{port}',
        )
      except RuntimeError as error:
        raise Unmendable(f'jax.distributed: {error}') from error

  def announce(self, address: str) -> None:
    """Tells the others where the lead is."""
    if not self.role.lead:
      store = distributed.global_state.client
      store.key_value_set(_KEY, address, allow_overwrite=True)

  def lead(self) -> str:
    """Returns where the lead is, once it is there."""
    if self.role.lead:
      return self.role.lead
    store = distributed.global_state.client
    return store.blocking_key_value_get(_KEY, round(1000 * self._wait_s))

  def leave(self) -> None:
    """Leaves jax.distributed."""
    jax.distributed.shutdown()

  def abandon(self) -> None:
    """Ends this process, which is cut off from others, with LOST.

    At a normal end JAX would take leave of them, and wait minutes for it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(LOST)
