"""The rule of leader and straggler: equal times without a model of them.

Times are averaged over a window of supersteps, to see through noise; then the
straggler, the last to end, hands a step of examples to the leader, the first
that may take more.  When the two change places the step was too long: it is
halved and, as differences are smaller now, the window doubled.  Chen et al.,
'Semi-Dynamic Load Balancing', SoCC 2020.

A window that only grows would be deaf to later changes, so there is a way back,
which is ours.  Just before and after the two changed places, their distance was
the sum of what a step moved; from then on shorter steps keep all distances
below that.  A longer one shows that speeds have changed: step and window start
anew.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from batching import allocation, batching
from batching.batching import Done
from batching.division import Division


@dataclasses.dataclass
class Windowed:
  """State of the rule.

  Attributes:
    threshold: Share of the straggler's time up to which it is left alone.
    first_window: `window` to start with.
    first_step: `step` to start with.
    division: How X is divided.
    window: Supersteps until the next decision is made, from the last one.
    step: Examples to hand over.
    supersteps: Since the last decision.
    spent: By worker, its iterations since then and their seconds.
    handed: Straggler and leader of the last step.
    gap_s: Seconds between these two before it.
    reach_s: Largest distance that steps explain, seconds.
  """

  is_state = True  # Plain data: checkpoints hold it.

  barrier: ClassVar[bool] = True
  changes: ClassVar[bool] = True

  threshold: float
  first_window: int
  first_step: int
  division: Division
  window: int = 0
  step: int = 0
  supersteps: int = 0
  spent: dict[int, tuple[int, float]] = dataclasses.field(default_factory=dict)
  handed: tuple[int, int] | None = None
  gap_s: float = 0.0
  reach_s: float = math.inf

  @property
  def largest(self) -> int:
    """The most examples that are ever assigned."""
    return max(self.division.most)

  def observe(self, done: Done) -> None:
    """Counts an iteration in."""
    batching.check_done(self.division.members, done)
    count, seconds = self.spent.get(done.worker, (0, 0.0))
    self.spent[done.worker] = count + 1, seconds + done.compute_s

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    """Returns the last sizes, or at the end of a window a step from there."""
    workers = self.division.living(workers)
    if not self.division.is_for(workers):
      self._divide(workers)
    elif self.spent:
      self.supersteps += 1
      if self.supersteps >= self.window:
        self._decide()
    return dict(self.division.sizes)

  def report(self) -> dict[str, float]:
    """Returns the sum, the least and the largest batch."""
    return batching.summed(self.division.sizes.values())

  def leave(self, worker: int) -> None:
    """Leaves the worker's part to the others, from the next barrier on."""
    self.division.leave(worker)

  def join(self, worker: int) -> None:
    """Gives the worker a part, from the next barrier on."""
    self.division.join(worker)

  def _divide(self, workers: Sequence[int]) -> None:
    """Divides X among other workers than before, in the same proportions."""
    before = self.division.sizes
    mean = sum(before.values()) / len(before) if before else 1
    total, most = self.division.room(workers)
    sizes = allocation.proportional(
      total,
      [before.get(worker, mean) for worker in workers],
      self.division.least,
      most,
    )
    self.division.sizes = dict(zip(workers, sizes, strict=True))
    self.division.changed = False
    self._begin()
    self._clear()

  def _decide(self) -> None:
    """Lets the straggler hand examples to the leader if that may pay."""
    times = {w: total / count for w, (count, total) in self.spent.items()}
    self._clear()
    sizes, division = self.division.sizes, self.division
    leaders = [w for w in times if sizes[w] < division.most[w]]
    stragglers = [w for w in times if sizes[w] > division.least]
    if not leaders or not stragglers:
      return
    leader = min(leaders, key=lambda w: (times[w], w))
    straggler = max(stragglers, key=lambda w: (times[w], -w))
    gap_s = times[straggler] - times[leader]
    if gap_s <= self.threshold * times[straggler]:
      return
    if gap_s > self.reach_s:
      self._begin()
    elif self.handed == (leader, straggler):
      self.step = max(self.step // 2, 1)
      self.window *= 2
      self.reach_s = gap_s + self.gap_s
    self.handed, self.gap_s = (straggler, leader), gap_s
    room = division.most[leader] - sizes[leader]
    count = min(self.step, room, sizes[straggler] - division.least)
    sizes[leader] += count
    sizes[straggler] -= count

  def _begin(self) -> None:
    """Forgets what was found out about step and window."""
    self.window, self.step = self.first_window, self.first_step
    self.handed, self.reach_s = None, math.inf

  def _clear(self) -> None:
    """Begins a window."""
    self.supersteps, self.spent = 0, {}
