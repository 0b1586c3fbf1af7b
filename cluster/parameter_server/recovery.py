"""Recovery of a run with parameter servers from a mirror.

All servers and workers rejoin the coordinator, which lives, and continue from
the newest complete mirror (`mirroring`).  A server whose process does not come
back is hosted by a worker, one that holds the part if possible.  The run
continues once all servers are there and the workers that have not been lost, or
those that come within a timeout.
"""

from collections.abc import Callable, Collection

from cluster.parameter_server.admission import ParameterServerReception
from cluster.parameter_server.mirroring import Mirror
from cluster.process.exits import Unmendable
from system import clock

_FAILURES = 3  # Of a server's part, after which no process seems to have it.


class Recovery:
  """A recovery that is under way."""

  def __init__(
    self,
    reception: ParameterServerReception,
    mirror: Mirror,
    *,
    workers: Collection[int],
    lost: Collection[int],
    timeout_s: float,
    limit_s: float,
    is_enough: Callable[[Collection[int]], bool] = bool,
  ):
    """Begins to wait for servers and workers.

    Args:
      reception: Control streams to workers and servers.
      mirror: Mirror that they continue from.
      workers: Workers that are expected to rejoin.
      lost: Servers whose own processes are lost.
      timeout_s: Seconds within which living processes rejoin.
      limit_s: Limit of the whole recovery, seconds.
      is_enough: Returns whether the run can continue with some workers alone.
    """
    self.mirror = mirror
    self._reception = reception
    self._workers, self._lost = set(workers), set(lost)
    now = clock.monotonic()
    self._began, self._patient_until = now, now + timeout_s
    self._timeout_s, self._limit_s = timeout_s, limit_s
    self._is_enough = is_enough
    self._complete_at: float | None = None  # When all servers were there.

  def lose_server(self, server: int) -> None:
    """Records that the process of a server is lost, too."""
    self._lost.add(server)

  def is_ready(self, present: Collection[int]) -> bool:
    """Returns whether the run can continue; finds hosts for lost servers.

    Args:
      present: Workers that are connected to all servers.

    Raises:
      Unmendable: If servers have not rejoined in time.
    """
    now = clock.monotonic()
    missing = self._reception.missing_servers
    failures = self._reception.failures
    if hopeless := [k for k in failures if failures[k] >= _FAILURES]:
      raise Unmendable(
        f'No process has the parts of servers {hopeless} in mirror '
        f'{self.mirror.number}.'
      )
    for server in missing:
      if server in self._lost or now > self._patient_until:
        self._reception.find_host(server)
    if missing or not self._reception.has_servers:
      self._complete_at = None
      if now > self._began + self._limit_s:
        raise Unmendable(
          f'Servers {missing} have not continued from mirror '
          f'{self.mirror.number} within {now - self._began:.0f} s.'
        )
      return False
    if self._complete_at is None:
      self._complete_at = now
    is_late = now > self._complete_at + self._timeout_s
    is_complete = bool(present) and self._workers <= {*present}
    if is_late and now > self._began + self._limit_s:
      raise Unmendable(
        f'Workers {sorted(present)} alone cannot continue the run.'
      )
    return is_complete or (is_late and self._is_enough(present))
