"""When a run first reached accuracies and losses, and after how much of it."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_IN_A_ROW = 10  # Iterations below a loss; as in R2SP (INFOCOM 2019).


class Reached(NamedTuple):
  """How far a run was.

  Attributes:
    time_s: Seconds of its clock.
    iterations: Pushes that had arrived whole.
    updates: Applied by then.
    examples: In them.
  """

  time_s: float | None = None
  iterations: int | None = None
  updates: int | None = None
  examples: int | None = None


@dataclasses.dataclass
class Thresholds:
  """Accuracies and losses, by their texts; plain data.

  Attributes:
    accuracies: When an evaluation was at least that good.
    losses: When the iterations before were below that, ten in a row.
    below: Iterations in a row that are, up to now.
  """

  is_state = True  # Plain data: checkpoints hold it.

  accuracies: dict[str, Reached]
  losses: dict[str, Reached]
  below: dict[str, int]

  def accuracy(self, value: float, now: Reached) -> None:
    """An evaluation found an accuracy, of the version of that moment."""
    for wanted, reached in self.accuracies.items():
      if reached.time_s is None and value >= float(wanted):
        self.accuracies[wanted] = now

  def loss(self, value: float, now: Reached) -> None:
    """The push of that moment had a mean loss per example."""
    for wanted, reached in self.losses.items():
      if value >= float(wanted):
        self.below[wanted] = 0
      elif reached.time_s is None:
        self.below[wanted] += 1
        if self.below[wanted] == _IN_A_ROW:
          self.losses[wanted] = now

  def summary(self) -> dict[str, Any]:
    """Returns the thresholds' part of summary.json."""
    return {
      'time_to': {k: v.time_s for k, v in self.accuracies.items()},
      'to_accuracy': _plain(self.accuracies),
      'to_loss': _plain(self.losses),
    }


def make(accuracies: Iterable[float], losses: Iterable[float]) -> Thresholds:
  """Returns thresholds of which none is reached."""
  below = {str(loss): 0 for loss in losses}
  return Thresholds(
    {str(accuracy): Reached() for accuracy in accuracies},
    dict.fromkeys(below, Reached()),
    below,
  )


def _plain(reached: Mapping[str, Reached]) -> dict[str, dict[str, Any]]:
  return {wanted: each._asdict() for wanted, each in reached.items()}
