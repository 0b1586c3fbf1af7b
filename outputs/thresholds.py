"""Progress at which a run first reached given measures and losses."""

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

_IN_A_ROW = 10  # Iterations below a loss; as in R2SP (INFOCOM 2019).


class Reached(NamedTuple):
  """Progress of a run at one moment; None where a threshold is not reached.

  Attributes:
    time_s: Seconds on the run's clock.
    iterations: Number of pushes that had arrived whole.
    updates: Number of updates applied.
    examples: Number of examples in applied updates.
  """

  time_s: float | None = None
  iterations: int | None = None
  updates: int | None = None
  examples: int | None = None


class Interpolated(NamedTuple):
  """Time at which a measure passed a level; None where it never did.

  Attributes:
    time_s: Seconds on the run's clock, on the straight line between the first
      evaluation at the level and the one before it; those of the evaluation if
      it is the run's first.
    resolution_s: Seconds between these two evaluations, or since the start.
  """

  time_s: float | None = None
  resolution_s: float | None = None


class FigureThreshold(NamedTuple):
  """Value of a measure that is to be reached.

  Attributes:
    name: Name of the measure, such as 'perplexity'.
    wanted: Text of the value.
    reached: Progress at the first evaluation that is as good.
  """

  name: str
  wanted: str
  reached: Reached = Reached()


@dataclasses.dataclass
class Thresholds:
  """Accuracies, losses and other measures to reach, by their texts.

  Attributes:
    accuracies: Progress at the first evaluation at or above each accuracy.
    losses: Progress at the first ten iterations in a row below each loss.
    below: Number of iterations in a row below each loss, up to now.
    figures: Thresholds of other measures.
  """

  is_state = True  # Plain data: checkpoints hold it.

  accuracies: dict[str, Reached]
  losses: dict[str, Reached]
  below: dict[str, int]
  figures: tuple[FigureThreshold, ...] = ()

  def add_evaluation(
    self, values: Mapping[str, float], falling: Collection[str], now: Reached
  ) -> None:
    """Records which thresholds an evaluation reaches.

    Args:
      values: Measures by name.
      falling: Names of those that are better where they are smaller.
      now: Progress of the run when the evaluation became due.
    """
    for wanted, reached in self.accuracies.items():
      if reached.time_s is None and values['accuracy'] >= float(wanted):
        self.accuracies[wanted] = now
    self.figures = tuple(
      each._replace(reached=now)
      if each.reached.time_s is None
      and _is_reached(
        values[each.name], float(each.wanted), each.name in falling
      )
      else each
      for each in self.figures
    )

  def add_loss(self, value: float, now: Reached) -> None:
    """Records which thresholds a push's loss reaches, after some in a row.

    Args:
      value: Mean loss per example of the push.
      now: Progress of the run when the push arrived.
    """
    for wanted, reached in self.losses.items():
      if value >= float(wanted):
        self.below[wanted] = 0
      elif reached.time_s is None:
        self.below[wanted] += 1
        if self.below[wanted] == _IN_A_ROW:
          self.losses[wanted] = now

  def summary(self) -> dict[str, Any]:
    """Returns the fields of summary.json on thresholds."""
    return {
      'time_to': {k: v.time_s for k, v in self.accuracies.items()},
      'to_accuracy': _plain(self.accuracies),
      'to_loss': _plain(self.losses),
      **{
        f'to_{name}': _plain(
          {
            each.wanted: each.reached
            for each in self.figures
            if each.name == name
          }
        )
        for name in dict.fromkeys(each.name for each in self.figures)
      },
    }

  def interpolate(
    self, evaluations: Sequence[Mapping[str, Any]], falling: Collection[str]
  ) -> dict[str, dict[str, dict[str, float | None]]]:
    """Returns `time_to_interpolated` of summary.json: by measure and level.

    Args:
      evaluations: Rows of metrics.jsonl on all evaluations, in their order.
      falling: Names of measures that are better where they are smaller.
    """
    levels = [('accuracy', wanted) for wanted in self.accuracies]
    levels += [(each.name, each.wanted) for each in self.figures]
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for name, wanted in levels:
      passed = interpolate(
        evaluations, name, float(wanted), falls=name in falling
      )
      found.setdefault(name, {})[wanted] = passed._asdict()
    return found


def make(
  accuracies: Iterable[float],
  losses: Iterable[float],
  figures: Mapping[str, Iterable[float]] = {},
) -> Thresholds:
  """Returns thresholds that are not reached yet.

  Args:
    accuracies: Accuracies of evaluations to reach, 0 to 1.
    losses: Losses of pushes to get below.
    figures: Values of other measures to reach, by name.
  """
  below = {str(loss): 0 for loss in losses}
  return Thresholds(
    {str(accuracy): Reached() for accuracy in accuracies},
    dict.fromkeys(below, Reached()),
    below,
    tuple(
      FigureThreshold(name, str(value))
      for name, values in figures.items()
      for value in values
    ),
  )


def interpolate(
  evaluations: Iterable[Mapping[str, Any]],
  name: str,
  level: float,
  *,
  falls: bool,
) -> Interpolated:
  """Returns when a measure first passed a level, between two evaluations.

  Args:
    evaluations: Rows of metrics.jsonl on evaluations, in their order.  Those
      that were left out, without measures, are passed over.
    name: Name of the measure.
    level: Value to reach.
    falls: Whether the measure is better where it is smaller.
  """
  before_s, before = 0.0, math.nan
  for row in evaluations:
    value = row.get(name)
    if value is None:
      continue
    time_s = row['time']
    if _is_reached(value, level, falls):
      resolution_s = time_s - before_s
      if math.isnan(before):
        return Interpolated(time_s, resolution_s)
      past = (value - level) / (value - before)  # Share of the interval.
      return Interpolated(time_s - past * resolution_s, resolution_s)
    before_s, before = time_s, value
  return Interpolated()


def _is_reached(value: float, wanted: float, falls: bool) -> bool:
  return value <= wanted if falls else value >= wanted


def _plain(reached: Mapping[str, Reached]) -> dict[str, dict[str, Any]]:
  return {wanted: each._asdict() for wanted, each in reached.items()}
