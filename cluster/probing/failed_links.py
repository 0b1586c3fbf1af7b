"""Failed links between live workers, and when to retry them.

The first loss of a connection between two live workers is taken for an
accident: the connection is made again.  If the same two workers lose it again
before an allreduce has completed, their link has failed.  Forests then avoid
the link for 2 timeouts, its backoff.

After the backoff the link is on trial: forests may use it again.  If it is lost
on trial, or fails again soon after, the backoff doubles, up to 128 timeouts.  A
short failure thus keeps a link out only briefly, and retrying a dead link costs
the run less than one timeout in 100.

A worker is excluded, for the backoff, if it has no link left to the others, or
if its own allreduce executor fails twice.  This module opens no sockets, and
its caller provides the clock.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable

from absl import logging

from system import clock

Pair = tuple[int, int]

_FIRST_TIMEOUTS, _MOST_TIMEOUTS = 2, 128


@dataclasses.dataclass
class _Failure:
  """State of a link that has failed.

  Attributes:
    backoff_s: Seconds for which forests avoid the link after its last failure.
    retry_s: Time from which the link may be retried, seconds of the clock.
    is_out: Whether forests avoid the link now.
    on_trial: Whether forests may use the link again, but no allreduce has
      completed over it yet.
    sound_s: Time at which its trial succeeded, seconds of the clock; None
      before.
  """

  backoff_s: float
  retry_s: float
  is_out: bool = True
  on_trial: bool = False
  sound_s: float | None = None


class FailedLinks:
  """The failed links of a run.

  A link is a pair of workers.  The pair (k, k) stands for the allreduce
  executor of worker k itself.
  """

  def __init__(
    self, *, timeout_s: float, clock: Callable[[], float] = clock.monotonic
  ):
    """Creates the record, without a failure.

    Args:
      timeout_s: Seconds of silence after which a connection counts as lost;
        infinite if failed links are never retried.
      clock: Returns monotonic seconds.
    """
    self._timeout_s, self._clock = timeout_s, clock
    self._suspects: set[Pair] = set()  # Lost since the last `settle`.
    self._doubted: set[Pair] = set()  # Lost once since the last sum.
    self._failures: dict[Pair, _Failure] = {}
    self._excluded: dict[int, float] = {}  # Until when, by worker.

  @property
  def avoided_pairs(self) -> frozenset[Pair]:
    """Pairs of workers whose link forests avoid, in both orders."""
    out = [pair for pair, each in self._failures.items() if each.is_out]
    return frozenset(
      ends for a, b in out if a != b for ends in ((a, b), (b, a))
    )

  def suspect(self, worker: int, peer: int) -> None:
    """Records that a worker has lost its connection to another.

    Args:
      worker: The worker that reports it.
      peer: The other worker; the same one if its own executor has failed.
    """
    self._suspects.add(_pair(worker, peer))

  def settle(self, members: Collection[int]) -> None:
    """Decides which links the next forest avoids.

    Args:
      members: Workers that are alive.  A connection between two of them was
        lost because of the link; any other, because a worker has left.
    """
    now, present = self._clock(), {*members}
    for pair, each in self._failures.items():
      if each.is_out and now >= each.retry_s and present.issuperset(pair):
        logging.info('%s again.', _describe(pair, 'tried'))
        each.is_out, each.on_trial = False, True
    for pair in sorted(self._suspects):
      if present.issuperset(pair):
        before = self._failures.get(pair)
        if pair in self._doubted or (before and before.on_trial):
          self._fail(pair, before, now)
    self._doubted |= self._suspects
    self._suspects.clear()

  def record_allreduce(self, used: Callable[[], Iterable[Pair]]) -> None:
    """Ends the trials of links that a completed allreduce has used.

    Args:
      used: Returns the links that the allreduce has used, in any order.
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

  def apply_measurement(self, lost: Collection[Pair]) -> None:
    """Updates the failed links from a measurement of all links.

    Args:
      lost: Pairs of workers without a usable link, in any order.
    """
    now = self._clock()
    pairs = {_pair(a, b) for a, b in lost}
    for pair, each in self._failures.items():
      if pair[0] != pair[1]:
        each.is_out, each.on_trial = pair in pairs, False
        each.sound_s = None if each.is_out else now

  def forget_losses(self, worker: int, *, moved: bool) -> None:
    """Forgets the lost connections of a worker that has rejoined.

    Args:
      worker: The worker.
      moved: Whether it has joined from another host: its links are new then, so
        their failures are forgotten, too.
    """
    self._suspects = {pair for pair in self._suspects if worker not in pair}
    self._doubted = {pair for pair in self._doubted if worker not in pair}
    if moved:
      self._excluded.pop(worker, None)
      for pair in [pair for pair in self._failures if worker in pair]:
        del self._failures[pair]

  def failed_worker(self, members: Collection[int]) -> int | None:
    """Returns a member whose own executor has failed; None if there is none."""
    failed = [
      a for (a, b), each in self._failures.items() if a == b and each.is_out
    ]
    return min({*failed}.intersection(members), default=None)

  def exclude(self, worker: int) -> None:
    """Excludes a worker until the first of its failed links may be retried."""
    retries_s = [
      each.retry_s
      for pair, each in self._failures.items()
      if worker in pair and each.is_out
    ]
    self._excluded[worker] = min(retries_s, default=self._clock())

  def admits(self, worker: int) -> bool:
    """Returns whether a worker may be a member, as it is not excluded."""
    return self._clock() >= self._excluded.get(worker, -math.inf)

  def due(self, members: Collection[int]) -> Pair | None:
    """Returns a link between members whose backoff is over; None for none."""
    now, present = self._clock(), {*members}
    for pair, each in self._failures.items():
      if each.is_out and now >= each.retry_s and present.issuperset(pair):
        return pair
    return None

  def _fail(self, pair: Pair, before: _Failure | None, now: float) -> None:
    """Starts a link's backoff, longer if its last failure is recent.

    Args:
      pair: The link.
      before: Its last failure; None for the first.
      now: Seconds of the clock.
    """
    backoff_s = _FIRST_TIMEOUTS * self._timeout_s
    if before and (
      before.sound_s is None or now - before.sound_s <= before.backoff_s
    ):
      most_s = _MOST_TIMEOUTS * self._timeout_s
      backoff_s = min(2 * before.backoff_s, most_s)
    self._failures[pair] = _Failure(backoff_s, now + backoff_s)
    logging.warning(
      '%s; it is tried again in %.0f s.', _describe(pair, 'lost'), backoff_s
    )


def _pair(a: int, b: int) -> Pair:
  """Returns two workers in ascending order."""
  return (a, b) if a <= b else (b, a)


def _describe(pair: Pair, state: str) -> str:
  """Returns the beginning of a log line about a link or an executor."""
  if pair[0] == pair[1]:
    return f'The executor of worker {pair[0]} is {state}'
  return 'The link between workers {} and {} is {}'.format(*pair, state)
