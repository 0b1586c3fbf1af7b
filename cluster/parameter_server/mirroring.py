"""Mirrors of a run, as its coordinator takes them.

Between two events the coordinator orders all servers to retain their states,
and retains its own.  Each part is then fetched by other processes, on other
hosts if there are some: the part of server k by the two workers after k, that
of the coordinator by three.  So a part outlives two deaths at a time.  The
mirror is complete once all have answered, and older ones are dropped.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from absl import logging

from cluster.parameter_server.mirrors import COORDINATOR, share_part

COPIES = 2  # Workers that hold the part of a server, at most.
STANDBYS = 3  # Workers that hold the coordinator's part, at most.
_SHARE = 0.05  # Share of the time in which parts may travel.


class Place(NamedTuple):
  """A process that can hold parts.

  Attributes:
    process: Its random identity.
    address: Its 'address:port'.
  """

  process: str
  address: str

  @property
  def host(self) -> str:
    """Address of its host."""
    return self.address.rpartition(':')[0]


class Mirror(NamedTuple):
  """A mirror that is complete.

  Attributes:
    number: Its number.
    sources: Addresses of the processes that have the part of each server.
    holders: Workers that have fetched a part.
  """

  number: int
  sources: Mapping[int, Sequence[str]]
  holders: frozenset[int]


class Fetch(NamedTuple):
  """A part that a worker is to fetch.

  Attributes:
    worker: Rank of the worker.
    part: Name of the part.
  """

  worker: int
  part: str


@dataclasses.dataclass
class Pending:
  """A mirror that is being taken.

  Attributes:
    number: Its number.
    began: Time at which it began, monotonic seconds.
    sources: As of `Mirror`.
    fetches: Fetches that have not been answered.
    holders: Workers of all fetches.
  """

  number: int
  began: float
  sources: Mapping[int, Sequence[str]]
  fetches: set[Fetch]
  holders: frozenset[int]


class Mirroring:
  """The mirrors of a run: when they are taken, and where their parts are.

  Attributes:
    complete: Newest complete mirror; None before the first.
    pending: Mirror that is being taken; None for none.
  """

  def __init__(self, *, every_s: float, limit_s: float):
    """Creates the schedule; the first mirror is due at once.

    Parts travel in at most a twentieth of the time: after a mirror that took
    d seconds, or was given up after so many, the next begins 20 d later, if
    that is more than `every_s`.  Only a change of processes comes before.  A
    checkpoint makes the next one due as early as this share allows.

    Args:
      every_s: Seconds from one mirror to the next; 0 for no mirrors at all.
      limit_s: Seconds after which a mirror is given up.
    """
    self.complete: Mirror | None = None
    self.pending: Pending | None = None
    self.is_enabled = every_s > 0
    self._every_s, self._limit_s = every_s, limit_s
    self._due_at = 0.0
    self._allowed_at = 0.0  # Before this, parts would travel too often.
    self._number = 0  # Of the newest one, complete or not.

  def is_due(self, now: float) -> bool:
    """Returns whether a mirror is to be taken, at a monotonic time."""
    return self.is_enabled and self.pending is None and now >= self._due_at

  def hurry(self) -> None:
    """Makes the next mirror due at once."""
    self._due_at = 0.0

  def follow_checkpoint(self) -> None:
    """Makes a mirror due that is not older than a new checkpoint.

    After a death the run continues from the mirror, and later checkpoints are
    dropped.
    """
    self._due_at = min(self._due_at, self._allowed_at)

  def skip_to(self, number: int) -> None:
    """Continues after the mirrors of another coordinator."""
    self._number = max(self._number, number)

  def begin(
    self,
    now: float,
    *,
    own: Place,
    servers: Sequence[Place],
    workers: Mapping[int, Place],
  ) -> Pending | None:
    """Begins a mirror.

    Args:
      now: Monotonic time, seconds.
      own: Process of the coordinator.
      servers: Process of each server.
      workers: Processes of the workers that can hold parts, by rank.

    Returns:
      The mirror; None if all workers are in processes that have a part of their
      own that no other could hold.
    """
    self._due_at = now + self._every_s
    fetches, sources = set(), {}
    for server, owner in enumerate(servers):
      others = _choose(owner, workers, server + 1)[:COPIES]
      if not others:
        return None
      fetches |= {Fetch(worker, share_part(server)) for worker in others}
      addresses = [workers[worker].address for worker in others]
      sources[server] = [owner.address, *addresses]
    standbys = _choose(own, workers, 1)[:STANDBYS]
    if not standbys:
      return None
    fetches |= {Fetch(worker, COORDINATOR) for worker in standbys}
    self._number += 1
    holders = frozenset(each.worker for each in fetches)
    self.pending = Pending(self._number, now, sources, fetches, holders)
    return self.pending

  def holders(self, number: int, part: str) -> list[int]:
    """Returns the workers that are to fetch a part; [] for another mirror."""
    if self.pending is None or self.pending.number != number:
      return []
    fetches = self.pending.fetches
    return sorted(each.worker for each in fetches if each.part == part)

  def answer(
    self, now: float, worker: int, number: int, part: str, error: str | None
  ) -> bool:
    """Records a worker's answer; returns whether the mirror is complete now.

    Args:
      now: Monotonic time, seconds.
      worker: Rank of the worker.
      number: Number of the mirror.
      part: Name of the part.
      error: Reason for which it does not hold the part; None if it does.
    """
    pending = self.pending
    if pending is None or pending.number != number:
      return False
    if error is not None:
      self.abort(f'worker {worker} cannot fetch {part}: {error}')
      return False
    pending.fetches.discard(Fetch(worker, part))
    if pending.fetches:
      return False
    self.complete = Mirror(number, pending.sources, pending.holders)
    self._delay_next(pending, now)
    self.pending = None
    return True

  def lose(self, worker: int) -> None:
    """Records that a worker's process is lost, with the parts that it held."""
    if self.pending and worker in self.pending.holders:
      self.abort(f'worker {worker} is lost')
      self.hurry()
    if self.complete and worker in self.complete.holders:
      self.hurry()

  def check(self, now: float) -> None:
    """Gives a mirror up that takes too long, at a monotonic time."""
    if self.pending and now > self.pending.began + self._limit_s:
      self._delay_next(self.pending, now)
      self.abort(f'no answer within {self._limit_s:.0f} s')

  def abort(self, reason: str) -> None:
    """Gives up the mirror that is being taken, if there is one."""
    if self.pending:
      logging.info('Mirror %d is given up: %s', self.pending.number, reason)
    self.pending = None

  def _delay_next(self, pending: Pending, now: float) -> None:
    """Delays the mirror after one that took long."""
    self._allowed_at = pending.began + (now - pending.began) / _SHARE
    self._due_at = max(self._due_at, self._allowed_at)


def _choose(
  owner: Place, workers: Mapping[int, Place], first: int
) -> list[int]:
  """Returns the workers in other processes than a part's owner, best first.

  Args:
    owner: Process that the part comes from.
    workers: Processes of the workers, by rank.
    first: Rank with which workers on other hosts begin.
  """
  others = [k for k, each in workers.items() if each.process != owner.process]
  count = max(workers, default=0) + 1
  return sorted(
    others,
    key=lambda k: (workers[k].host == owner.host, (k - first) % count),
  )
