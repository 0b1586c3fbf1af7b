"""Schedules of the learning rate over the examples of a run.

The cluster's examples mean the same under every scheme.  Published comparisons
often count server updates instead.  Asynchronous schemes make about n times as
many of these, so that their rate drops n times too early; `counts='updates'`
reproduces that.

Arguments of shapes are the fields of config.schedule.NAME (`configs.fields`),
checked, and the epochs of the run.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from configs import declared
from configs.checks import require

Shape = Callable[[float], float]


class Schedule(NamedTuple):
  """Learning rate as a function of progress.

  Attributes:
    rate: Learning rate before warm-up and shape.
    warmup_epochs: Epochs over which the rate rises linearly.
    shape: Function from epochs to the factor of the rate.
    epoch: Number of examples of an epoch.
    update: Number of examples that each update counts as; None to count the
      examples themselves.
  """

  rate: float
  warmup_epochs: float
  shape: Shape
  epoch: int
  update: int | None

  def __call__(self, *, examples: int, updates: int) -> float:
    """Returns the rate of the next update; above 0 during warm-up.

    Args:
      examples: Number of examples that the cluster has processed.
      updates: Number of updates applied.
    """
    epochs = self.epochs(examples=examples, updates=updates)
    rate = self.rate * self.shape(epochs)
    if epochs < self.warmup_epochs:
      # One example counts from the start: a rate of 0 would waste a push.
      rate *= max(epochs, 1 / self.epoch) / self.warmup_epochs
    return rate

  def epochs(self, *, examples: int, updates: int) -> float:
    """Returns the progress of a run in epochs.

    Args:
      examples: Number of examples in applied updates.
      updates: Number of updates; used in place of `examples` if each update
        counts as a fixed number of examples.
    """
    done = examples if self.update is None else updates * self.update
    return done / self.epoch


def constant(*, total_epochs: float) -> Shape:
  """Returns the shape that is always 1.

  Args:
    total_epochs: Unused.
  """
  del total_epochs
  return lambda epochs: 1.0


@declared.check_arguments('schedule.step')
def step(
  *, total_epochs: float, epochs: Sequence[float], factor: float
) -> Shape:
  """Returns a shape that is multiplied by `factor` at each of `epochs`.

  Args:
    total_epochs: Unused.
    epochs: Increasing numbers of epochs since the start of the run.
    factor: Factor of the learning rate, from each of them on.

  Raises:
    ValueError: If an argument is out of range, or `epochs` do not increase.
  """
  del total_epochs
  steps = tuple(epochs)
  is_increasing = list(steps) == sorted(set(steps))
  require(is_increasing, 'epochs', 'increasing numbers', steps)
  return lambda now: factor ** sum(e <= now for e in steps)


@declared.check_arguments('schedule.cosine')
def cosine(*, total_epochs: float, final: float) -> Shape:
  """Returns half a cosine from 1 to `final` (Loshchilov and Hutter, 2017).

  Args:
    total_epochs: Epochs at which it reaches `final`, where it then stays.
    final: Share of the learning rate that is left then.
  """

  def shape(epochs: float) -> float:
    done = min(epochs / total_epochs, 1.0)
    return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2

  return shape


def fixed(rate: float) -> Schedule:
  """Returns a rate that never changes.

  Raises:
    ValueError: If it is not above 0.
  """
  declared.check('optimizer', learning_rate=rate)
  return Schedule(rate, 0.0, lambda epochs: 1.0, 1, None)


@declared.check_arguments('schedule')
def schedule(
  *,
  rate: float,
  warmup_epochs: float,
  counts: str,
  shape: Shape,
  epoch: int,
  update: int,
) -> Schedule:
  """Returns the schedule of a run.

  Args:
    rate: Learning rate, above 0.
    warmup_epochs: Epochs over which the rate rises linearly, at least 0.
    counts: 'examples', or 'updates' to reproduce published comparisons.
    shape: Function from epochs to the factor of the rate.
    epoch: Number of examples of an epoch.
    update: Number of examples of one push of every worker, as configured.

  Raises:
    ValueError: If an argument is out of range.
  """
  declared.check('optimizer', learning_rate=rate)
  counted = update if counts == 'updates' else None
  return Schedule(rate, warmup_epochs, shape, epoch, counted)
