"""Scaling and checks of the sizes that models have in common."""

import math


def scaled(size: int, width: float) -> int:
  """Returns a published number of channels times `width`, at least 1."""
  return max(1, round(size * width))


def check(
  *, num_classes: int, width: float = 1.0, dropout: float = 0.0
) -> None:
  """Checks the arguments that most models take.

  Args:
    num_classes: Number of logits.
    width: Factor of all channels.
    dropout: Probability that training drops a value.

  Raises:
    ValueError: If an argument is out of range.
  """
  if num_classes < 1:
    raise ValueError(
      'num_classes: expected at least 1, of data that have classes, got '
      f'{num_classes}.'
    )
  if not 0 < width < math.inf:
    raise ValueError(f'width: expected more than 0, got {width}.')
  if not 0 <= dropout < 1:
    raise ValueError(
      f'dropout: expected 0 or more and less than 1, got {dropout}.'
    )
