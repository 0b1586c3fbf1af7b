"""Dynamic SSP: the bound moves within a range, by predicted push times.

If a worker whose lead exceeds `low` is the fastest, it is granted extra
iterations: as many as bring one of its predicted pushes closest to a predicted
push of the slowest worker.  Zhao et al., 'Dynamic stale synchronous parallel
distributed training for deep learning', ICDCS 2019.

By default this module differs from the printed algorithm in two points.  As
printed, the permission that comes with a grant of r is not counted, so that a
worker makes r + 1 extra iterations; and a worker that has used up its grant may
get another of at most `high - low`, which leaves leads unbounded.  Here the
permission is the first of the r, and a grant never reaches beyond `high`: the
lead of a running worker is at most `high`.  `as_printed` follows the print.
"""

import dataclasses
import heapq
import math

import numpy as np

from configs import checks, declared
from sync import grace, scheme
from sync.scheme import Decision, Push, Scheme


@dataclasses.dataclass
class Dssp:
  """State of DSSP.

  A worker that joins is released at once, with as many finished iterations as
  the slowest worker.  `leave` is O(n).

  Attributes:
    low: Lead up to which every worker may continue, iterations.
    high: Largest lead of a running worker, iterations; as printed, `low` plus
      the largest grant.
    as_printed: Whether grants are those of the printed algorithm.
    members: State of each worker.
    clocks: Numbers of finished iterations.
    fastest: Largest number of finished iterations of a living worker.
    credit: Int [num_workers], iterations granted and not yet started.
    last_push: Float [num_workers], time of the last push, seconds; NaN before
      the first.
    interval_s: Float [num_workers], seconds between the last two pushes,
      waiting included, as published; NaN before the second.
    waiting: Heap of (finished iterations, worker), the workers that wait.
    updates: Number of updates so far, and the id of the next one.
  """

  is_state = True  # Plain data: checkpoints hold it.

  low: int
  high: int
  as_printed: bool
  members: scheme.Members
  clocks: scheme.Clocks
  fastest: int
  credit: list[int]
  last_push: list[float]
  interval_s: list[float]
  waiting: list[tuple[int, int]] = dataclasses.field(default_factory=list)
  updates: int = 0

  def start(self, time: float) -> Decision:
    return Decision(release=self.members.release_all())

  def push(self, push: Push) -> Decision:
    worker = push.worker
    self.members.stop(worker)
    self.interval_s[worker] = push.time - self.last_push[worker]
    self.last_push[worker] = push.time
    lead = self.clocks.tick(worker)
    self.fastest = max(self.fastest, self.clocks.finished[worker])
    update = self.updates
    self.updates += 1
    continuing = [worker] if self._may_continue(worker, lead) else []
    if not continuing:
      heapq.heappush(self.waiting, (self.clocks.finished[worker], worker))
    return Decision(
      into=update, commit=(update,), release=self._release(continuing)
    )

  def wake(self, time: float) -> Decision:
    return Decision()

  def leave(self, worker: int, time: float) -> Decision:
    self.members.leave(worker)
    self.clocks.leave(worker)
    self.credit[worker] = 0
    self.last_push[worker] = self.interval_s[worker] = math.nan
    self.waiting = [entry for entry in self.waiting if entry[1] != worker]
    heapq.heapify(self.waiting)
    living = [self.clocks.finished[w] for _, w in self.clocks.heap]
    self.fastest = max(living, default=0)
    return Decision(release=self._release([]))

  def join(self, worker: int, time: float) -> Decision:
    self.members.join(worker)
    self.clocks.join(worker)
    self.fastest = max(self.fastest, self.clocks.finished[worker])
    return Decision(release=self.members.release((worker,)))

  def _may_continue(self, worker: int, lead: int) -> bool:
    if self.credit[worker] > 0:
      self.credit[worker] -= 1
      return True
    if lead <= self.low:
      return True
    if self.clocks.finished[worker] < self.fastest:
      return False
    if self.as_printed:
      grant = self._grant(worker, self.high - self.low)
      self.credit[worker] = grant
    else:
      grant = self._grant(worker, self.high - lead + 1)
      self.credit[worker] = max(grant - 1, 0)
    return grant > 0

  def _grant(self, worker: int, most: int) -> int:
    """Returns the number of extra iterations; ties: the fewest."""
    slowest = self.clocks.slowest()[1]
    own_s, slow_s = self.interval_s[worker], self.interval_s[slowest]
    if most <= 0 or math.isnan(own_s) or math.isnan(slow_s):
      return 0
    own = self.last_push[worker] + np.arange(most + 1) * own_s
    # The predicted push of the slowest worker that is nearest to each of these.
    last = self.last_push[slowest]
    steps = np.rint((own - last) / slow_s) if slow_s else np.ones(most + 1)
    slow = last + np.clip(steps, 1, most + 1) * slow_s
    return int(np.argmin(np.abs(own - slow)))

  def _release(self, workers: list[int]) -> tuple[int, ...]:
    if self.waiting:
      highest = self.clocks.slowest()[0] + self.low
      workers = workers + scheme.pop_within(self.waiting, highest)
    return self.members.release(workers)


@declared.check_arguments('sync.dssp')
def make(
  *,
  num_workers: int,
  low: int,
  high: int,
  as_printed: bool = False,
  grace_s: float = 0.0,
) -> Scheme:
  """Returns DSSP.

  Args:
    low: Lead up to which every worker may continue, iterations, >= 0.
    high: Largest lead of a running worker, iterations, >= low.  As printed, no
      lead is bounded, and `high - low` is the largest grant.
    as_printed: Whether a grant does not count the permission it comes with, and
      may follow another one without a bound, as in the paper's pseudo-code.
    grace_s: Seconds in which pushes are merged into one update; 0 for none.

  Raises:
    ValueError: If an argument is out of range.
  """
  checks.require(high >= low, 'high', f'at least low, {low}', high)
  dssp = Dssp(
    low=low,
    high=high,
    as_printed=as_printed,
    members=scheme.make_members(num_workers),
    clocks=scheme.make_clocks(num_workers),
    fastest=0,
    credit=[0] * num_workers,
    last_push=[math.nan] * num_workers,
    interval_s=[math.nan] * num_workers,
  )
  return grace.merge(dssp, grace_s=grace_s)
