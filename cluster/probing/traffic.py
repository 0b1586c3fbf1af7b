"""Traffic of a run: reports of workers, and rates and rows made of them.

Workers report the bytes that they have sent to each other worker since their
start, and the seconds for which some of these were on their way.  The quotient
of two differences is the rate of a connection while it had something to send,
whatever else the worker was doing.

Reports come every `PERIOD_S` for `RateWindows`, if links are followed, and also
whenever an epoch begins or states are compared, for `TrafficLog`: then all
workers have the same version, and no byte is on its way.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

from cluster.allreduce.rendezvous import Rendezvous
from cluster.network import messages
from cluster.network.errors import TransportError
from cluster.network.messages import Connected, StateDigest, TrafficReport
from cluster.probing.repacking import Ends
from cluster.traffic import Planned, Sent, Traffic
from route import links
from topology.forests import dealing

PERIOD_S = 2.0  # Time between reports, and least length of a window.
_ITERATIONS = 4  # Least number of iterations of a window.
_LEAST_S = 0.02  # Least time of sending in a window that has a rate.
_NATIVE = 'XLA sums, and does not report the traffic of links'


def rows(traffic: Mapping[int, Any]) -> messages.Traffic:
  """Returns a worker's traffic as rows of its reports.

  Args:
    traffic: Usage of the connection to each worker, of an `Executor`.
  """
  return [
    (worker, usage.sent_bytes, usage.busy_s)
    for worker, usage in traffic.items()
  ]


class TrafficReporter:
  """Reports a worker's traffic, in a thread; a context manager."""

  def __init__(
    self,
    traffic: Callable[[], Mapping[int, Any]],
    send: Callable[[TrafficReport], None],
    period_s: float = PERIOD_S,
  ):
    """Creates the reporter, which reports within its context.

    Args:
      traffic: Returns the usage of each connection of an `Executor`.
      send: Sends a message to the coordinator.
      period_s: Time between reports.
    """
    self._traffic, self._send, self._period_s = traffic, send, period_s
    self._over = threading.Event()

  def __enter__(self) -> Self:
    threading.Thread(target=self._run, daemon=True).start()
    return self

  def __exit__(self, *exception: object) -> None:
    self._over.set()

  def _run(self) -> None:
    while not self._over.wait(self._period_s):
      try:
        self._send(TrafficReport(rows(self._traffic())))
      except TransportError:
        return  # The session meets the error, too, and logs it.


class RateWindows:
  """Rates of connections in windows of time; for the coordinator's thread."""

  def __init__(self) -> None:
    """Creates the rates; the first window begins after the first reports."""
    self._now: dict[int, dict[int, Sent]] = {}  # By sender and receiver.
    self._start: dict[int, dict[int, Sent]] = {}
    self._since: float | None = None
    self._reporters: set[int] = set()  # Workers that have reported in it.
    self._iterations = 0

  def clear(self) -> None:
    """Drops the window, as another forest is used from now on."""
    self._since, self._iterations = None, 0
    self._reporters.clear()

  def take(self, worker: int, sent: messages.Traffic) -> None:
    """Records a worker's traffic since its start, from a report."""
    self._now[worker] = {
      peer: Sent(size_bytes, busy_s) for peer, size_bytes, busy_s in sent
    }
    self._reporters.add(worker)

  def end_iteration(
    self, now_s: float, members: tuple[int, ...]
  ) -> dict[Ends, float] | None:
    """Records an iteration, which may be the last of a window.

    Args:
      now_s: Seconds of the run.
      members: Workers that took part.

    Returns:
      Bytes per second of the window, by sender and receiver; None if the window
      has not ended.
    """
    self._iterations += 1
    is_complete = self._reporters >= {*members}
    if self._since is None:
      if is_complete:
        self._begin(now_s)
      return None
    is_long = (
      now_s - self._since >= PERIOD_S and self._iterations >= _ITERATIONS
    )
    if not (is_long and is_complete):
      return None
    rates = {}
    for src in members:
      for dst, sent in self._now[src].items():
        before = self._start.get(src, {}).get(dst, Sent(0, 0.0))
        count, busy_s = sent.bytes - before.bytes, sent.busy_s - before.busy_s
        if count > 0 and busy_s >= _LEAST_S:
          rates[src, dst] = count / busy_s
    self._begin(now_s)
    return rates

  def _begin(self, now_s: float) -> None:
    self._start = dict(self._now)
    self._since, self._iterations = now_s, 0
    self._reporters.clear()


class _Report(NamedTuple):
  """The traffic of a worker at one moment.

  Attributes:
    incarnation: Incarnation of the worker.
    sent: Traffic to each other worker, since the incarnation began.
  """

  incarnation: int
  sent: Mapping[int, Sent]


class TrafficLog:
  """Writes a row of a run's traffic once all members have reported it."""

  def __init__(self, rendezvous: Rendezvous, traffic: Traffic):
    """Creates the log, without reports.

    Args:
      rendezvous: Membership and forest of the run.
      traffic: Writes the rows.
    """
    self._rendezvous, self._traffic = rendezvous, traffic
    self._start: dict[int, _Report] = {}  # Reports at the window's begin.
    self._joining: dict[int, _Report] = {}
    self._compared: dict[int, dict[int, _Report]] = {}  # By version.

  def take_connected(
    self, worker: int, incarnation: int, report: Connected
  ) -> None:
    """Records the traffic of a worker that has connected in a new epoch."""
    self._joining[worker] = _report(incarnation, report.sent)

  def begin_epoch(self, time: float, version: int, why: str) -> None:
    """Writes rows about an epoch in which all members have connected.

    Args:
      time: Seconds of the run.
      version: Version of all members.
      why: Reason of the new epoch.
    """
    rendezvous, packed = self._rendezvous, self._rendezvous.packed
    reports, self._joining = self._joining, {}
    self._compared.clear()
    if self._start:
      self._write(time, version, f'the membership epoch ends: {why}', reports)
    self._start = reports
    planned = None
    if packed:
      workers = packed.cluster.workers
      planned = Planned(
        packed.links,
        packed.forest,
        {workers[index]: index for index in packed.members},
        rendezvous.size_bytes,
        dealing.chunk_bytes(rendezvous.size_bytes, packed.forest),
        known=packed.cluster is not links.make_equal(len(workers)),
      )
    self._traffic.record_epoch(
      self._traffic.mark(time),
      version=version,
      why=why if packed else _NATIVE,
      membership_epoch=rendezvous.membership_epoch,
      members=rendezvous.members,
      planned=planned,
    )

  def take_compared(
    self, worker: int, incarnation: int, report: StateDigest, time: float
  ) -> None:
    """Records a member's traffic up to a version; writes a row after the last.

    Args:
      worker: Rank of the member.
      incarnation: Its incarnation.
      report: Its report.
      time: Seconds of the run.
    """
    reports = self._compared.setdefault(report.version, {})
    reports[worker] = _report(incarnation, report.sent)
    if len(reports) == len(self._rendezvous.members):
      self._compared.clear()
      self._write(time, report.version, 'all have been compared', reports)
      self._start = reports

  def _write(
    self, time: float, version: int, why: str, reports: Mapping[int, _Report]
  ) -> None:
    """Writes the traffic of workers that were members in all of the window."""
    sent: dict[Ends, Sent] = {}
    for src, now in reports.items():
      before = self._start.get(src)
      if before and before.incarnation == now.incarnation:
        for dst, total in now.sent.items():
          count, busy_s = before.sent.get(dst, Sent(0, 0.0))
          difference = Sent(total.bytes - count, total.busy_s - busy_s)
          if difference.bytes:
            sent[src, dst] = difference
    at = self._traffic.mark(time)
    self._traffic.record_traffic(at, version=version, why=why, sent=sent)


def _report(incarnation: int, sent: messages.Traffic) -> _Report:
  return _Report(
    incarnation,
    {worker: Sent(count, busy_s) for worker, count, busy_s in sent},
  )
