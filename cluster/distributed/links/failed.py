"""Which links between live workers have failed, and when they are tried again.

A connection that is lost once may be a mishap, and is made again.  If the same
two workers lose theirs twice without a sum in between, the link has failed:
forests do without it for 2 timeouts.  Then it is on trial: forests may use it
again, and if it is lost once more, it is left out for twice as long as before,
up to 128 timeouts.  So a short cut costs a link little, and a lasting one costs
the run less than a timeout in 100.

A worker that others can reach over no link, or whose own executor fails twice,
is excluded for as long.  Nothing here opens sockets; the clock is given.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterable

from absl import logging

Pair = tuple[int, int]

_FIRST_TIMEOUTS, _MOST_TIMEOUTS = 2, 128


@dataclasses.dataclass
class _Failure:
  """One link's failures.

  Attributes:
    backoff_s: Seconds for which it was left out the last time.
    retry_s: Clock at which it is tried again.
    is_out: Whether forests do without it.
    on_trial: Whether it has carried no sum since it was left out.
    sound_s: Clock at which its trial has ended well; None before.
  """

  backoff_s: float
  retry_s: float
  is_out: bool = True
  on_trial: bool = False
  sound_s: float | None = None


class FailedLinks:
  """Failures of links, by pair of workers; of worker k itself as (k, k)."""

  def __init__(
    self, *, timeout_s: float, clock: Callable[[], float] = time.monotonic
  ):
    """Starts with no failure.

    Args:
      timeout_s: Seconds of silence after which a connection counts as lost;
        infinite to never try a failed link again.
      clock: Returns monotonic seconds.
    """
    self._timeout_s, self._clock = timeout_s, clock
    self._suspects: set[Pair] = set()  # Reported since the last `settle`.
    self._doubted: set[Pair] = set()  # Reported before, since the last sum.
    self._failures: dict[Pair, _Failure] = {}
    self._excluded: dict[int, float] = {}  # Clock until which, by worker.

  @property
  def lost(self) -> frozenset[Pair]:
    """Ordered pairs of workers whose link is left out."""
    out = [pair for pair, each in self._failures.items() if each.is_out]
    return frozenset(
      ends for a, b in out if a != b for ends in ((a, b), (b, a))
    )

  def suspect(self, worker: int, peer: int) -> None:
    """Notes that a worker has lost its connection to another, or itself."""
    self._suspects.add(_pair(worker, peer))

  def settle(self, members: Collection[int]) -> None:
    """Decides which links the next forest does without.

    Args:
      members: Workers that are alive: what they have lost is a link.
    """
    now = self._clock()
    for pair, each in self._failures.items():
      if each.is_out and now >= each.retry_s and {*pair} <= {*members}:
        logging.info('%s again.', _described(pair, 'tried'))
        each.is_out, each.on_trial = False, True
    for pair in sorted(self._suspects):
      if {*pair} <= {*members}:
        before = self._failures.get(pair)
        if pair in self._doubted or (before and before.on_trial):
          self._fail(pair, before, now)
    self._doubted |= self._suspects
    self._suspects.clear()

  def summed(self, used: Callable[[], Iterable[Pair]]) -> None:
    """Notes that a sum has come to its end over some links.

    Args:
      used: Returns them, ordered or not.
    """
    self._doubted.clear()
    tried = [pair for pair, each in self._failures.items() if each.on_trial]
    if not tried:
      return
    sound = {_pair(a, b) for a, b in used()}
    for pair in tried:
      if pair in sound:
        self._failures[pair].on_trial = False
        self._failures[pair].sound_s = self._clock()

  def use(self, lost: Collection[Pair]) -> None:
    """Takes over which links are left out, as all were measured."""
    now = self._clock()
    pairs = {_pair(a, b) for a, b in lost}
    for pair, each in self._failures.items():
      if pair[0] != pair[1]:
        each.is_out, each.on_trial = pair in pairs, False
        each.sound_s = None if each.is_out else now

  def came(self, worker: int, *, moved: bool) -> None:
    """Notes that a worker is there again.

    Args:
      worker: Its index.
      moved: Whether it is on another host: its links are others then.
    """
    self._suspects = {pair for pair in self._suspects if worker not in pair}
    self._doubted = {pair for pair in self._doubted if worker not in pair}
    if moved:
      self._excluded.pop(worker, None)
      for pair in [pair for pair in self._failures if worker in pair]:
        del self._failures[pair]

  def failed_worker(self, members: Collection[int]) -> int | None:
    """Returns a member that has failed itself; None if none has."""
    for (a, b), each in sorted(self._failures.items()):
      if a == b and a in members and each.is_out:
        return a
    return None

  def exclude(self, worker: int) -> None:
    """Excludes a worker until the first of its links is tried again."""
    retries_s = [
      each.retry_s
      for pair, each in self._failures.items()
      if worker in pair and each.is_out
    ]
    self._excluded[worker] = min(retries_s, default=self._clock())

  def admits(self, worker: int) -> bool:
    """Returns whether a worker may take part."""
    return self._clock() >= self._excluded.get(worker, -math.inf)

  def due(self, members: Collection[int]) -> Pair | None:
    """Returns a link between members that is to be tried again, if any."""
    now = self._clock()
    for pair, each in self._failures.items():
      if each.is_out and now >= each.retry_s and {*pair} <= {*members}:
        return pair
    return None

  def _fail(self, pair: Pair, before: _Failure | None, now: float) -> None:
    backoff_s = _FIRST_TIMEOUTS * self._timeout_s
    if before and (
      before.sound_s is None or now - before.sound_s <= before.backoff_s
    ):
      most_s = _MOST_TIMEOUTS * self._timeout_s
      backoff_s = min(2 * before.backoff_s, most_s)
    self._failures[pair] = _Failure(backoff_s, now + backoff_s)
    logging.warning(
      '%s; it is tried again in %.0f s.', _described(pair, 'lost'), backoff_s
    )


def _pair(a: int, b: int) -> Pair:
  return (a, b) if a <= b else (b, a)


def _described(pair: Pair, did: str) -> str:
  if pair[0] == pair[1]:
    return f'The executor of worker {pair[0]} is {did}'
  return 'The link between workers {} and {} is {}'.format(*pair, did)
