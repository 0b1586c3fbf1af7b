"""The leader and straggler rule: equal times by trial, without a model of them.

Times are averaged over a window of supersteps, which suppresses noise.  Then a
step of examples moves from the straggler, the last worker to finish, to the
leader, the first worker that may take more.  If the two change places the step
was too long: it is halved and, as differences are smaller now, the window is
doubled.  Chen et al., 'Semi-Dynamic Load Balancing', SoCC 2020.

A window that only grows would miss later changes of speed.  This project adds a
reset: the gaps just before and just after the change of places add up to the
largest gap that steps explain, as shorter steps keep all gaps below it.  A
longer gap shows that speeds have changed, and step and window are reset.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from batching import allocation, batching
from batching.batching import Measurement
from batching.division import Division


@dataclasses.dataclass
class Windowed:
  """State of the leader and straggler rule.

  Attributes:
    threshold: Share of the straggler's time up to which a gap is ignored.
    first_window: Initial value of `window`.
    first_step: Initial value of `step`.
    division: Division of the global batch among the workers.
    window: Number of supersteps from one decision to the next.
    step: Number of examples that a decision moves.
    supersteps: Number of supersteps since the last decision.
    spent: By worker, its iterations since then and their seconds.
    last_pair: Straggler and leader of the last step; None after a reset.
    gap_s: Seconds between these two before it.
    reach_s: Largest gap that steps explain, seconds.
  """

  is_state = True  # Plain data: checkpoints hold it.

  needs_barriers: ClassVar[bool] = True
  is_adaptive: ClassVar[bool] = True

  threshold: float
  first_window: int
  first_step: int
  division: Division
  window: int = 0
  step: int = 0
  supersteps: int = 0
  spent: dict[int, tuple[int, float]] = dataclasses.field(default_factory=dict)
  last_pair: tuple[int, int] | None = None
  gap_s: float = 0.0
  reach_s: float = math.inf

  @property
  def max_batch(self) -> int:
    return max(self.division.most)

  def observe(self, measurement: Measurement) -> None:
    batching.check_measurement(self.division.members, measurement)
    count, seconds = self.spent.get(measurement.worker, (0, 0.0))
    self.spent[measurement.worker] = count + 1, seconds + measurement.compute_s

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    workers = self.division.sort_living(workers)
    if not self.division.is_among(workers):
      self._divide(workers)
    elif self.spent:
      self.supersteps += 1
      if self.supersteps >= self.window:
        self._decide()
    return dict(self.division.sizes)

  def report(self) -> dict[str, float]:
    return batching.summarize_sizes(self.division.sizes.values())

  def leave(self, worker: int) -> None:
    self.division.leave(worker)

  def join(self, worker: int) -> None:
    self.division.join(worker)

  def _divide(self, workers: Sequence[int]) -> None:
    """Divides X among a new set of workers in the previous proportions."""
    before = self.division.sizes
    mean = sum(before.values()) / len(before) if before else 1
    total, most = self.division.bounds(workers)
    sizes = allocation.proportional(
      total,
      [before.get(worker, mean) for worker in workers],
      self.division.least,
      most,
    )
    self.division.sizes = dict(zip(workers, sizes, strict=True))
    self.division.changed = False
    self._reset_step()
    self._begin_window()

  def _decide(self) -> None:
    """Moves examples from the straggler to the leader if the gap is large."""
    times = {w: total / count for w, (count, total) in self.spent.items()}
    self._begin_window()
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
      self._reset_step()
    elif self.last_pair == (leader, straggler):
      self.step = max(self.step // 2, 1)
      self.window *= 2
      self.reach_s = gap_s + self.gap_s
    self.last_pair, self.gap_s = (straggler, leader), gap_s
    free = division.most[leader] - sizes[leader]
    count = min(self.step, free, sizes[straggler] - division.least)
    sizes[leader] += count
    sizes[straggler] -= count

  def _reset_step(self) -> None:
    """Sets step and window to their initial values."""
    self.window, self.step = self.first_window, self.first_step
    self.last_pair, self.reach_s = None, math.inf

  def _begin_window(self) -> None:
    """Begins a window without measurements."""
    self.supersteps, self.spent = 0, {}
