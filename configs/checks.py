"""The form of what is said of a bad value."""


def require(valid: bool, field: str, expected: str, got: object) -> None:
  """Raises ValueError, naming field, expectation and value, unless `valid`."""
  if not valid:
    raise ValueError(f'{field}: expected {expected}, got {got!r}.')
