"""Traffic of an allreduce run: rows made of the reports of its workers.

Reports for `TrafficLog` come whenever an epoch begins or states are compared:
then all workers have the same version, and no byte is on its way.
"""

from collections.abc import Mapping
from typing import NamedTuple

from cluster.allreduce.rendezvous import Rendezvous
from cluster.network import messages
from cluster.network.messages import Connected, StateDigest
from cluster.probing.repacking import Ends
from cluster.traffic import Planned, Sent, Traffic
from route import links
from topology.forests import dealing

_NATIVE = 'XLA sums, and does not report the traffic of links'


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
