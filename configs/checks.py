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
