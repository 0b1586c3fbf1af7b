"""Which links the coordinator believes in, and whether they are measured."""

import time

from absl import logging

from cluster.allreduce.formation import Formation
from cluster.network.interfaces import is_loopback
from cluster.network.messages import ProbeAnswer, TrafficReport
from cluster.probing import file_format
from cluster.probing.events import ForestPacked, LinksMeasured
from cluster.probing.follower import Adaptation
from cluster.probing.surveyor import Surveyor
from route import links
from topology.clusters import cluster as clusters


class Linking:
  """Lets the formation know the links; for the thread of the coordinator."""

  def __init__(
    self,
    formation: Formation,
    surveyor: Surveyor,
    adaptation: Adaptation | None,
    *,
    workers: int,
  ):
    """Knows what the formation knows.

    Args:
      formation: Makes groups.
      surveyor: Has links measured.
      adaptation: Follows them; None if they are taken to stay as they are.
      workers: How many there are.
    """
    self._formation, self._surveyor = formation, surveyor
    self._adaptation = adaptation
    self._workers = workers
    self._begun = 0.0  # Monotonic seconds, of the last measuring.

  @property
  def waits(self) -> str:
    """What a run waits for whose workers are all there."""
    busy = self._surveyor.busy
    return '  links to be measured' if busy else '  connections'

  def measures(self, members: list[int]) -> bool:
    """Returns whether links are measured before these members connect.

    An event 'measured' then says that they were; see `measured`.

    Args:
      members: Workers, ascending: all of them, if nothing is known yet.
    """
    if self._surveyor.busy:
      return True
    anew = bool(self._adaptation and self._adaptation.turned())
    if self._formation.knows and not anew:
      return False
    if len(members) < self._workers:
      return False  # Who is not there could not be packed for.
    if self._together(members):
      follows = self._adaptation is not None
      done = 'neither measured nor followed' if follows else 'not measured'
      logging.info('Links are %s: all workers share one host.', done)
      self._adaptation = None
      if not self._formation.knows:
        self._formation.know(links.equal(self._workers), {})
      return False
    self._begun = time.monotonic()
    self._surveyor.begin(members, anew=anew)
    return True

  def measured(self, event: LinksMeasured, now_s: float) -> None:
    """Takes in what was measured, if anything was.

    Args:
      event: That tells of it.
      now_s: Seconds of the run.

    Raises:
      Unmendable: If it has failed again, and nothing is known of the links.
    """
    known = self._formation.knows
    found = self._surveyor.ended(event, needed=not known)
    if known and self._adaptation:
      took_s = time.monotonic() - self._begun
      self._adaptation.measured(now_s, found, took_s)
    elif found:
      cluster = clusters.from_json(found)
      self._formation.know(cluster, file_format.host_latency_s(found))

  @property
  def turns(self) -> str:
    """Why the generation is to end, between two iterations; '' if it is not."""
    return self._adaptation.turns if self._adaptation else ''

  def formed(self) -> None:
    """All members are connected."""
    if self._adaptation:
      self._adaptation.formed()

  def iterated(self, now_s: float, exposed_s: float) -> None:
    """An iteration has ended.

    Args:
      now_s: Seconds of the run.
      exposed_s: Of it, for which nobody computed.
    """
    if self._adaptation:
      whole = len(self._formation.members) == self._workers
      self._adaptation.iterated(now_s, exposed_s, all_there=whole)

  def traffic(self, worker: int, report: TrafficReport) -> None:
    """A worker has told what it has sent."""
    if self._adaptation:
      self._adaptation.traffic(worker, report)

  def packed(self, event: ForestPacked, now_s: float) -> None:
    """Another forest has been packed."""
    if self._adaptation:
      self._adaptation.packed(event, now_s)

  def answered(self, worker: int, answer: ProbeAnswer) -> None:
    """A worker has measured what it was told to."""
    self._surveyor.answered(worker, answer)

  def lose(self, index: int, reason: str) -> None:
    """A worker is gone."""
    self._surveyor.lose(index, reason)

  def _together(self, members: list[int]) -> bool:
    """Whether workers share a host, as far as addresses tell."""
    address = self._formation.address
    hosts = {address(index).rpartition(':')[0] for index in members}
    return len(hosts) == 1 or all(map(is_loopback, hosts))
