"""Cost of a worker or link: replays of a run in which it is as fast as others.

The recorded seconds of computing and transferring pass an event simulation in
which the run's own scheme decides when workers continue.  A second replay, with
the seconds of one worker replaced by the median of the others', shows what the
worker costs.  Consecutive blocks of iterations are replayed separately: their
spread gives the interval.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from sync.scheme import Decision, Push, Scheme

_BLOCKS = 10  # Blocks of which an interval is made.
_MOST = 4_000  # Pushes of a block at most: later ones of it are left out.
# Quantile .975 of Student's t for 1 to 10 degrees of freedom (tables).
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


class Estimate(NamedTuple):
  """A number with its 95 % interval.

  Attributes:
    value: Best estimate.
    low: Lower end.
    high: Upper end.
  """

  value: float
  low: float
  high: float

  def text(self, digits: int = 2) -> str:
    """Returns the number with its interval, as text."""
    return (
      f'{self.value:.{digits}f} ({self.low:.{digits}f} to '
      f'{self.high:.{digits}f})'
    )


class Iterations(NamedTuple):
  """Iterations of a run in the order of their ends.

  Attributes:
    rounds: Int [pushes], round of each push, ascending.
    workers: Int [pushes], index of the worker.
    compute_s: Float [pushes], seconds of computing.
    transfer_s: Float [pushes], seconds of pull and push without waiting.
    examples: Int [pushes], examples of the iteration; 0 if unknown.
    times: Float [pushes], end of the iteration, seconds of the run's clock.
  """

  rounds: np.ndarray
  workers: np.ndarray
  compute_s: np.ndarray
  transfer_s: np.ndarray
  examples: np.ndarray
  times: np.ndarray

  def table(self, values: np.ndarray, num_workers: int) -> np.ndarray:
    """Returns means by round and worker; NaN for a worker without a push.

    Args:
      values: Float [pushes].

    Returns:
      Float [rounds, num_workers].
    """
    count = int(self.rounds[-1]) + 1 if len(self.rounds) else 0
    sums, counts = np.zeros((2, count, num_workers))
    np.add.at(sums, (self.rounds, self.workers), values)
    np.add.at(counts, (self.rounds, self.workers), 1)
    with np.errstate(invalid='ignore'):
      return np.where(counts > 0, sums / counts, np.nan)

  def select(self, chosen: np.ndarray) -> 'Iterations':
    """Returns the pushes that a mask, Bool [pushes], chooses."""
    return Iterations(*(field[chosen] for field in self))


def replay_s(
  iterations: Iterations,
  seconds: np.ndarray,
  scheme: Scheme,
  num_workers: int,
) -> float:
  """Returns the time in which a scheme receives as many pushes as recorded.

  A worker repeats its iterations if it needs more of them.

  Args:
    seconds: Float [pushes], seconds of each iteration without waiting.
    scheme: Scheme before its start, which the replay changes.
    num_workers: Number of workers of the scheme.  Those without an iteration
      leave at the start.

  Returns:
    Seconds; NaN if the scheme stops all workers before.
  """
  durations = {
    int(worker): (
      seconds[iterations.workers == worker],
      iterations.compute_s[iterations.workers == worker],
      iterations.examples[iterations.workers == worker],
    )
    for worker in np.unique(iterations.workers)
  }
  target, pushes, now = len(seconds), 0, 0.0
  done = dict.fromkeys(durations, 0)
  ends: list[tuple[float, int]] = []
  wake_at: float | None = None

  def carry_out(decision: Decision) -> None:
    nonlocal wake_at
    wake_at = decision.wake_at
    for worker in decision.release:
      if worker in durations:
        own = durations[worker][0]
        took_s = float(own[done[worker] % len(own)])
        heapq.heappush(ends, (now + took_s, worker))

  carry_out(scheme.start(0.0))
  for worker in range(num_workers):
    if worker not in durations:  # It had left before.
      carry_out(scheme.leave(worker, now))
  while pushes < target:
    if wake_at is not None and (not ends or wake_at <= ends[0][0]):
      now = max(now, wake_at)
      carry_out(scheme.wake(now))
      continue
    if not ends:
      return math.nan
    now, worker = heapq.heappop(ends)
    _, compute_s, examples = durations[worker]
    k = done[worker] % len(compute_s)
    push = Push(pushes, worker, now, float(compute_s[k]), int(examples[k]))
    done[worker] += 1
    pushes += 1
    carry_out(scheme.push(push))
  return now


def barrier_s(iterations: Iterations, seconds: np.ndarray) -> float:
  """Returns the seconds in which all rounds end if each ends in a barrier.

  Arguments are those of `replay_s`.
  """
  longest = np.zeros(int(iterations.rounds[-1]) + 1)
  np.maximum.at(longest, iterations.rounds, seconds)
  return float(longest.sum())


def blocks(iterations: Iterations) -> list[np.ndarray]:
  """Returns consecutive blocks of whole rounds, as Bool [pushes] each.

  At most 10 blocks.  Of each, only rounds within its first 4,000 pushes count.
  """
  count = int(iterations.rounds[-1]) + 1
  edges = np.linspace(0, count, min(_BLOCKS, count) + 1).round()
  found = []
  for start, end in itertools.pairwise(edges):
    first, last = np.searchsorted(iterations.rounds, (start, end))
    if last - first > _MOST:
      last = np.searchsorted(
        iterations.rounds, iterations.rounds[first + _MOST], 'left'
      )
    chosen = np.zeros(len(iterations.rounds), bool)
    chosen[first:last] = True
    found.append(chosen)
  return found


def share(
  iterations: Iterations,
  seconds: np.ndarray,
  replaced: np.ndarray,
  replay: Callable[[Iterations, np.ndarray], float],
) -> Estimate:
  """Returns the share of its time that a run would take with other seconds.

  Replays `blocks` of the run, and therefore not all pushes of a long one.

  Args:
    seconds: Float [pushes], recorded seconds of each iteration, without
      waiting.
    replaced: Float [pushes], seconds that replace them.
    replay: Returns the time of iterations with given seconds, as `replay_s`.
  """
  parts = []
  for chosen in blocks(iterations):
    part = iterations.select(chosen)
    part = part._replace(rounds=part.rounds - part.rounds[0])
    before = replay(part, seconds[chosen])
    parts.append((before, replay(part, replaced[chosen])))
  before, after = np.array(parts).T
  total = float(after.sum() / before.sum())
  return interval(after / before, total)


def interval(values: Sequence[float] | np.ndarray, value: float) -> Estimate:
  """Returns a value with the 95 % interval of a mean of independent parts.

  Args:
    values: The parts.
    value: Best estimate.
  """
  values = np.asarray(values)
  count = len(values)
  if count < 2:
    return Estimate(value, -math.inf, math.inf)
  factor = _T[min(count - 1, len(_T)) - 1]
  half = factor * float(values.std(ddof=1)) / math.sqrt(count)
  return Estimate(value, value - half, value + half)
