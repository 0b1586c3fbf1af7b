"""Parts of mirrors that a process holds, and their transfer between processes.

A *mirror* is a checkpoint in memory: the states of all servers and of the
coordinator between the same two events.  It has a number.  Each part is in the
process that it comes from and in two others, from which it is fetched once the
first is lost (`cluster.parameter_server.mirroring`, `recovery`).
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax

from cluster.membership import handover
from cluster.network.messages import MAX_SOURCES, StateRequest
from cluster.network.streams import Port, TransportError
from system import threads

COORDINATOR = 'coord'  # Part of the coordinator.


def share_part(server: int) -> str:
  """Returns the name of a server's part, which is that of a service."""
  return f'share{server}'


class MirrorStore:
  """The parts that one process holds; its methods are for all threads."""

  def __init__(self, port: Port, timeout_s: float):
    """Creates an empty store.

    Args:
      port: Port of this process, at which others fetch the parts.
      timeout_s: Limit of a connection, and of each 256 KiB, seconds.
    """
    self._port, self._timeout_s = port, timeout_s
    self._lock = threads.Lock()
    self._parts: dict[str, dict[int, Any]] = {}  # By name and mirror.
    self._services: dict[str, handover.Handover] = {}

  def open(self) -> str:
    """Returns the address at which parts can be fetched.

    Raises:
      TransportError: If the port cannot be opened.
    """
    with self._lock:
      return self._serve(COORDINATOR)

  def put(self, number: int, part: str, state: Any) -> str:
    """Holds a part of a mirror, which others can fetch from now on.

    Args:
      number: Number of the mirror.
      part: Name of the part.
      state: Its state: plain data and arrays.  NumPy views of JAX arrays are
        held, so that XLA does not use their memory again; arrays of NumPy must
        not change.

    Returns:
      The address at which it can be fetched.
    """
    held = jax.device_get(state)
    with self._lock:
      self._parts.setdefault(part, {})[number] = held
      return self._serve(part)

  def get(self, number: int, part: str) -> Any:
    """Returns a part, whose arrays are of NumPy and must not change.

    Raises:
      LookupError: If this process does not have it.
    """
    with self._lock:
      held = self._parts.get(part, {})
      if number not in held:
        raise LookupError(f'expected mirror {number} of {part}: {[*held]}')
      return held[number]

  def has(self, number: int, part: str) -> bool:
    """Returns whether this process has a part."""
    with self._lock:
      return number in self._parts.get(part, {})

  def fetch(self, number: int, part: str, addresses: Sequence[str]) -> None:
    """Fetches a part from other processes, unless this one has it.

    Args:
      number: Number of the mirror.
      part: Name of the part.
      addresses: Addresses of processes that have it.

    Raises:
      TransportError: If it cannot be fetched from any.
    """
    if self.has(number, part):
      return
    if not addresses:
      raise TransportError(f'No process has {part} of mirror {number}.')
    state, _ = handover.fetch(
      [*enumerate(addresses[:MAX_SOURCES])],
      number,
      self._port.security,
      self._timeout_s,
      service=part,
    )
    self.put(number, part, state)

  def drop_before(self, number: int) -> None:
    """Drops the parts of mirrors of lower numbers."""
    with self._lock:
      for held in self._parts.values():
        for old in [each for each in held if each < number]:
          del held[old]

  def close(self) -> None:
    """Stops to send parts."""
    with self._lock:
      services, self._services = [*self._services.values()], {}
    for service in services:
      service.close()

  def _serve(self, part: str) -> str:
    """Offers a part, and returns the address; under the lock."""
    if part not in self._services:
      self._services[part] = handover.Handover(
        self._port,
        functools.partial(self._find, part),
        self._timeout_s,
        service=part,
      )
    return self._services[part].address

  def _find(self, part: str, request: StateRequest) -> tuple[Any, str]:
    """Returns a part and its digest, for a `Handover`."""
    number = request.version
    return self.get(number, part), f'mirror {number}'
