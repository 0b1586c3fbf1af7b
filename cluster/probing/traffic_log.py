"""What workers have sent, added up for the rows of a run: for the coordinator.

Workers tell it when they have formed a generation and when they compare what
they hold: then all have the same version, and nothing is on its way.
"""

from collections.abc import Mapping
from typing import NamedTuple

from cluster.allreduce.formation import Formation
from cluster.network import messages
from cluster.network.messages import Connected, StateDigest
from cluster.traffic import Ends, Planned, Sent, Traffic
from route import links
from topology.forests.dealing import CHUNK_BYTES

_NATIVE = 'XLA sums, and does not tell what goes over which link'


class _Told(NamedTuple):
  """Of a worker, at one moment.

  Attributes:
    life: Which one it is in.
    sent: To each other worker, in this life.
  """

  life: int
  sent: Mapping[int, Sent]


class Carrying:
  """Waits until all members have told, and has a row written."""

  def __init__(self, formation: Formation, traffic: Traffic):
    """Nobody has told anything.

    Args:
      formation: Makes generations.
      traffic: Writes the rows.
    """
    self._formation, self._traffic = formation, traffic
    self._start: dict[int, _Told] = {}  # When the window began.
    self._forming: dict[int, _Told] = {}
    self._checked: dict[int, dict[int, _Told]] = {}  # By version.

  def forming(self, worker: int, incarnation: int, report: Connected) -> None:
    """A worker is connected to the others of a generation."""
    self._forming[worker] = _told(incarnation, report.sent)

  def formed(self, time: float, version: int, why: str) -> None:
    """All are.

    Args:
      time: Seconds of the run.
      version: That they have.
      why: There is another generation.
    """
    formation, packed = self._formation, self._formation.packed
    told, self._forming = self._forming, {}
    self._checked.clear()
    if self._start:
      self._carried(time, version, f'the generation ends: {why}', told)
    self._start = told
    planned = None
    if packed:
      workers = packed.cluster.workers
      planned = Planned(
        packed.links,
        packed.forest,
        {workers[index]: index for index in packed.members},
        formation.size_bytes,
        CHUNK_BYTES,
        known=packed.cluster is not links.equal(len(workers)),
      )
    self._traffic.formed(
      self._traffic.mark(time),
      version=version,
      why=why if packed else _NATIVE,
      generation=formation.generation,
      members=formation.members,
      planned=planned,
    )

  def checked(
    self, worker: int, incarnation: int, report: StateDigest, time: float
  ) -> None:
    """A member has come to a version.

    Args:
      worker: Rank of the member.
      incarnation: Its incarnation.
      report: Its report.
      time: Seconds of the run.
    """
    version = report.version
    found = self._checked.setdefault(version, {})
    found[worker] = _told(incarnation, report.sent)
    if len(found) == len(self._formation.members):
      self._checked.clear()
      self._carried(time, version, 'all have been compared', found)
      self._start = found

  def _carried(
    self, time: float, version: int, why: str, told: Mapping[int, _Told]
  ) -> None:
    """Tells of what those have sent who have been there all the time."""
    sent: dict[Ends, Sent] = {}
    for src, now in told.items():
      before = self._start.get(src)
      if before and before.life == now.life:
        for dst, whole in now.sent.items():
          count, busy_s = before.sent.get(dst, Sent(0, 0.0))
          more = Sent(whole.bytes - count, whole.busy_s - busy_s)
          if more.bytes:
            sent[src, dst] = more
    at = self._traffic.mark(time)
    self._traffic.carried(at, version=version, why=why, sent=sent)


def _told(incarnation: int, sent: messages.Traffic) -> _Told:
  return _Told(
    incarnation,
    {worker: Sent(count, busy_s) for worker, count, busy_s in sent},
  )
