"""Progress at which a run first reached given accuracies and losses."""

import dataclasses
from collections.abc import Iterable, Mapping
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


@dataclasses.dataclass
class Thresholds:
  """Accuracies and losses to reach, by their texts; plain data.

  Attributes:
    accuracies: Progress at the first evaluation at or above each accuracy.
    losses: Progress at the first ten iterations in a row below each loss.
    below: Number of iterations in a row below each loss, up to now.
  """

  is_state = True  # Plain data: checkpoints hold it.

  accuracies: dict[str, Reached]
  losses: dict[str, Reached]
  below: dict[str, int]

  def add_accuracy(self, value: float, now: Reached) -> None:
    """Records which thresholds an evaluation's accuracy reaches.

    Args:
      value: Accuracy, 0 to 1.
      now: Progress of the run when the evaluation became due.
    """
    for wanted, reached in self.accuracies.items():
      if reached.time_s is None and value >= float(wanted):
        self.accuracies[wanted] = now

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
    }


def make(accuracies: Iterable[float], losses: Iterable[float]) -> Thresholds:
  """Returns thresholds that are not reached yet."""
  below = {str(loss): 0 for loss in losses}
  return Thresholds(
    {str(accuracy): Reached() for accuracy in accuracies},
    dict.fromkeys(below, Reached()),
    below,
  )


def _plain(reached: Mapping[str, Reached]) -> dict[str, dict[str, Any]]:
  return {wanted: each._asdict() for wanted, each in reached.items()}
