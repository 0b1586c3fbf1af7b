"""Optimisers by name, from optax, and the learning rate by examples processed.

Both optimisers are built with learning rate 1 and their result is multiplied
by the rate of the moment, which is the same thing for transformations that end
in a scaling by the learning rate, as these do.
"""

from collections.abc import Sequence
from typing import NamedTuple

import optax


class Schedule(NamedTuple):
  """A learning rate that drops in steps, counted in examples.

  Attributes:
    rate: At the start.
    drops: Increasing numbers of examples after which the rate drops.
    factor: What each drop multiplies the rate by.
  """

  rate: float
  drops: tuple[float, ...]
  factor: float

  def __call__(self, examples: int) -> float:
    """Returns the learning rate after `examples` examples of the cluster."""
    return self.rate * self.factor ** sum(d <= examples for d in self.drops)


def schedule(
  *,
  learning_rate: float,
  drop_epochs: Sequence[float],
  drop_factor: float,
  num_examples: int,
) -> Schedule:
  """Returns the schedule of a run.

  Args:
    learning_rate: At the start, above 0.
    drop_epochs: Increasing epochs (fractions too) at which the rate drops.
    drop_factor: What each drop multiplies the rate by, above 0.
    num_examples: Examples of one epoch.

  Raises:
    ValueError: If an argument is out of range.
  """
  _check_positive('learning_rate', learning_rate)
  _check_positive('drop_factor', drop_factor)
  epochs = tuple(drop_epochs)
  if list(epochs) != sorted(set(epochs)) or not all(
    0 < e < float('inf') for e in epochs
  ):
    raise ValueError(
      f'drop_epochs: expected increasing positive numbers, got {epochs}.'
    )
  return Schedule(
    rate=learning_rate,
    drops=tuple(e * num_examples for e in epochs),
    factor=drop_factor,
  )


def sgd(
  *, momentum: float, nesterov: bool, weight_decay: float
) -> optax.GradientTransformation:
  """Returns stochastic gradient descent; decay is added to the gradient."""
  _check_range('momentum', momentum)
  _check_decay(weight_decay)
  if nesterov and not momentum:
    raise ValueError('nesterov: expected False without momentum, got True.')
  return optax.chain(
    optax.add_decayed_weights(weight_decay)
    if weight_decay
    else optax.identity(),
    optax.sgd(1.0, momentum=momentum or None, nesterov=nesterov),
  )


def adamw(
  *, b1: float, b2: float, eps: float, weight_decay: float
) -> optax.GradientTransformation:
  """Returns Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""
  _check_range('b1', b1)
  _check_range('b2', b2)
  _check_positive('eps', eps)
  _check_decay(weight_decay)
  return optax.adamw(1.0, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)


def _check_positive(name: str, value: float) -> None:
  if not 0 < value < float('inf'):
    raise ValueError(f'{name}: expected a number above 0, got {value!r}.')


def _check_range(name: str, value: float) -> None:
  if not 0 <= value < 1:
    raise ValueError(f'{name}: expected at least 0, below 1, got {value!r}.')


def _check_decay(value: float) -> None:
  if not 0 <= value < float('inf'):
    raise ValueError(f'weight_decay: expected at least 0, got {value!r}.')
