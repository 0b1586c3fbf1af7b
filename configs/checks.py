"""Checks of arguments, with messages of one form.

Every message names the field, what was expected, and the value.
"""

import numbers
from typing import cast


def require(valid: bool, field: str, expected: str, got: object) -> None:
  """Raises ValueError, naming field, expectation and value, unless `valid`."""
  if not valid:
    raise ValueError(f'{field}: expected {expected}, got {got!r}.')


def check_integer(field: str, value: object, *, at_least: int) -> None:
  """Raises ValueError unless `value` is an integer of at least `at_least`."""
  integral = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  valid = integral and cast(int, value) >= at_least
  require(valid, field, f'an integer of at least {at_least}', value)


def check_fraction(field: str, value: object) -> None:
  """Raises ValueError unless `value` is a real number in 0..1."""
  valid = _is_real(value) and 0 <= cast(float, value) <= 1
  require(valid, field, 'a number in 0..1', value)


def check_share(field: str, value: object) -> None:
  """Raises ValueError unless `value` is a real number above 0, at most 1."""
  valid = _is_real(value) and 0 < cast(float, value) <= 1
  require(valid, field, 'a number above 0 and at most 1', value)


def _is_real(value: object) -> bool:
  return isinstance(value, numbers.Real) and not isinstance(value, bool)
