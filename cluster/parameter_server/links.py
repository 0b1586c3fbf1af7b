"""Links of a run with servers, from the rates of connections to them.

Workers report what they have sent to each server; about once a second the
coordinator compares the rates: see `diagnosis.server_links`.
"""

from collections.abc import Callable

from absl import logging

from cluster.network.messages import TrafficReport
from cluster.probing.rates import RateWindows
from diagnosis import server_links
from outputs.accounting import PHASES
from outputs.recorder import Recorder

_PERIOD_S = 1.0  # Least length of a window.
_TRANSFERS = ('pull', 'push')


class ServerLinkLog:
  """Writer of rows on the links to servers, for the coordinator's thread."""

  def __init__(
    self,
    recorder: Recorder,
    *,
    num_workers: int,
    num_servers: int,
    find_hosts: Callable[[], tuple[list[str], list[str]]],
  ):
    """Creates the writer, which has no reports yet.

    Args:
      recorder: Recorder of the run.
      num_workers: Number of workers.
      num_servers: Number of servers.
      find_hosts: Returns the hosts of all workers and of all servers.
    """
    self._recorder, self._find_hosts = recorder, find_hosts
    count = num_workers * num_servers
    few = (
      num_servers <= server_links.MOST_SERVERS and count <= server_links.MOST
    )
    self._is_used = num_servers > 1 and few
    if not few:
      logging.info(
        'Links to servers are not compared: expected at most %d servers and %d '
        'connections, got %d and %d.',
        *(server_links.MOST_SERVERS, server_links.MOST, num_servers, count),
      )
    self.clear()

  def clear(self) -> None:
    """Drops all reports, as workers or servers change."""
    self._windows = RateWindows(_PERIOD_S, least_iterations=1)
    self._pushes = self._pushes_then = 0
    self._since: float | None = None
    self._spent_s: dict[str, float] = {}

  def take(self, worker: int, report: TrafficReport) -> None:
    """Records what a worker has sent."""
    if self._is_used:
      self._windows.take(worker, report.sent)

  def push(self, time: float, members: list[int]) -> None:
    """Counts a push; writes a row after the last one of a window.

    Args:
      time: Seconds of the run.
      members: Workers that take part.
    """
    if not self._is_used or not members:
      return
    self._pushes += 1
    if self._pushes % len(members):
      return
    rates = self._windows.end_iteration(time, tuple(members))
    before, since = self._spent_s, self._since
    if rates is None and since is not None:
      return
    pushes, self._pushes_then = self._pushes - self._pushes_then, self._pushes
    self._since = time
    self._spent_s = {
      phase: self._recorder.accounting.seconds[phase] for phase in PHASES
    }
    if rates is None or since is None:
      return
    spent_s = {phase: self._spent_s[phase] - before[phase] for phase in PHASES}
    total_s = sum(spent_s.values())
    transfers_s = sum(spent_s[phase] for phase in _TRANSFERS)
    found = server_links.compare(rates, *self._find_hosts())
    if not found:
      return
    rows = [
      {'host': host, **each._asdict(), 'slowness': each.slowness}
      for host, each in found.items()
    ]
    row = {'time': time, 'did': 'servers', 'why': 'a window has ended'}
    row |= {'since': since, 'iterations': pushes // len(members)}
    row |= {'exposed': transfers_s / total_s if total_s else 0.0}
    self._recorder.record_server_links({**row, 'rates': rows})
