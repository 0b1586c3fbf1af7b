"""Scaling of the sizes that models have in common."""


def scaled(size: int, width: float) -> int:
  """Returns a published number of channels times `width`, at least 1."""
  return max(1, round(size * width))


def check_classes(num_classes: int) -> None:
  """Raises ValueError unless there is at least one class."""
  if num_classes < 1:
    raise ValueError(
      'num_classes: expected at least 1, of data that have classes, got '
      f'{num_classes}.'
    )
