"""The coordinator's knowledge of the links: when to measure and to adapt."""

from absl import logging

from cluster.allreduce.rendezvous import Rendezvous
from cluster.network.interfaces import is_loopback
from cluster.network.messages import ProbeAnswer, TrafficReport
from cluster.probing import file_format
from cluster.probing.events import ForestPacked, LinksMeasured
from cluster.probing.follower import LinkFollower
from cluster.probing.surveyor import Surveyor
from cluster.process.exits import Unmendable
from route import links
from system import clock
from topology.clusters import cluster as clusters


class LinkManager:
  """Decides when links are measured; for the coordinator's thread.

  Results go to the rendezvous, which packs forests for them, or to the
  follower, if forests are adapted to links that change.
  """

  def __init__(
    self,
    rendezvous: Rendezvous,
    surveyor: Surveyor,
    follower: LinkFollower | None,
    *,
    workers: int,
  ):
    """Creates the manager; measures nothing yet.

    Args:
      rendezvous: Membership and forest of the run.
      surveyor: Measures links.
      follower: Adapts forests; None if links are assumed not to change.
      workers: Number of workers.
    """
    self._rendezvous, self._surveyor = rendezvous, surveyor
    self._follower = follower
    self._workers = workers
    self._start = 0.0  # Time of the last survey, monotonic seconds.
    # Whether links are assumed equal until all workers are there.
    self._is_provisional = False

  @property
  def awaited(self) -> str:
    """Description of what a run waits for after all workers have joined."""
    busy = self._surveyor.busy
    return '  links to be measured' if busy else '  connections'

  def begin_survey(self, members: list[int]) -> bool:
    """Begins to measure links before members connect, if that is necessary.

    Args:
      members: Ranks of the members, ascending.  Without all workers nothing is
        measured: links that are not known are assumed to be equal until then.

    Returns:
      Whether links are measured: `LinksMeasured` follows, for `take_survey`.
    """
    if self._surveyor.busy:
      return True
    skips_cache = bool(self._follower and self._follower.end_epoch())
    is_known = self._rendezvous.has_links
    if is_known and not (skips_cache or self._is_provisional):
      return False
    if len(members) < self._workers:  # A forest needs the links of all workers.
      if not is_known:
        logging.info('Links are measured once all workers are there.')
        self._rendezvous.set_links(links.make_equal(self._workers), {})
        self._is_provisional = True
      return False
    if self._share_host(members):
      follows = self._follower is not None
      state = 'neither measured nor followed' if follows else 'not measured'
      logging.info('Links are %s: all workers share one host.', state)
      self._follower, self._is_provisional = None, False
      if not is_known:
        self._rendezvous.set_links(links.make_equal(self._workers), {})
      return False
    self._start = clock.monotonic()
    self._surveyor.begin(members, skips_cache=skips_cache)
    return True

  def take_survey(self, event: LinksMeasured, now_s: float) -> None:
    """Handles the result of a survey, which is a measurement of all links.

    Args:
      event: The result.
      now_s: Seconds of the run.

    Raises:
      Unmendable: If it has failed again, and the links are not known.
    """
    is_known = self._rendezvous.has_links
    found = self._surveyor.finish(event, needed=not is_known)
    is_first = self._is_provisional or not is_known
    if not event.is_lost:  # Failed links stay equal; later ones are measured.
      self._is_provisional = False
    if self._follower and not is_first:
      took_s = clock.monotonic() - self._start
      self._follower.take_measurement(now_s, found, took_s)
    elif found:
      cluster = clusters.from_json(found)
      self._rendezvous.set_links(cluster, file_format.host_latency_s(found))

  def take_over(self) -> None:
    """Continues with the links that another coordinator has measured.

    Raises:
      Unmendable: If the file with its measurement cannot be read.
    """
    if self._rendezvous.has_links:
      return
    try:
      found = self._surveyor.read()
      if found is None:
        self._rendezvous.set_links(links.make_equal(self._workers), {})
        return
      cluster = clusters.from_json(found)
      self._rendezvous.set_links(cluster, file_format.host_latency_s(found))
    except (OSError, ValueError, LookupError) as error:
      raise Unmendable(f'The measured links are lost: {error}') from error

  @property
  def interruption(self) -> str:
    """Reason to end the epoch between two iterations; '' if there is none."""
    return self._follower.interruption if self._follower else ''

  def begin_epoch(self) -> None:
    """Records that all members have connected in a new membership epoch."""
    if self._follower:
      self._follower.begin_epoch()

  def end_iteration(self, now_s: float, exposed_s: float) -> None:
    """Records an iteration.

    Args:
      now_s: Seconds of the run.
      exposed_s: Seconds of the iteration in which no worker computed.
    """
    if self._follower:
      is_complete = len(self._rendezvous.members) == self._workers
      self._follower.end_iteration(now_s, exposed_s, is_complete=is_complete)

  def take_traffic(self, worker: int, report: TrafficReport) -> None:
    """Records the traffic of a worker since its start."""
    if self._follower:
      self._follower.take_traffic(worker, report)

  def take_forest(self, event: ForestPacked, now_s: float) -> None:
    """Handles a forest that was packed for changed links."""
    if self._follower:
      self._follower.take_forest(event, now_s)

  def check_answer(self, worker: int, answer: ProbeAnswer) -> None:
    """Checks a worker's answer to an order of a survey.

    Raises:
      InvalidMessage: If it is not one to the order.
    """
    self._surveyor.check_answer(worker, answer)

  def take_answer(self, worker: int, answer: ProbeAnswer) -> None:
    """Handles a worker's answer to an order of a survey."""
    self._surveyor.take_answer(worker, answer)

  def lose(self, index: int, reason: str) -> None:
    """Ends a survey, as a worker is lost."""
    self._surveyor.lose(index, reason)

  def _share_host(self, members: list[int]) -> bool:
    """Returns whether workers share a host, judged by their addresses."""
    address = self._rendezvous.address
    hosts = {address(index).rpartition(':')[0] for index in members}
    return len(hosts) == 1 or all(map(is_loopback, hosts))
