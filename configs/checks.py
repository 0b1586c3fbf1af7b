"""Checks of arguments, with messages of one form.

Every message names the field, what was expected, and the value.
"""

import numbers
import re
from typing import cast

# User and password of URIs in a text.
_CREDENTIALS = re.compile(r'(://[^/@\s,;:]*):[^/@\s,;]*@')
# Field of a URI's query with a password, as databases take it.
_SECRET = re.compile('[?&][^=&]*(pass|pwd|token|secret)[^=&]*=', re.IGNORECASE)


def require(valid: bool, field: str, expected: str, got: object) -> None:
  """Raises ValueError, naming field, expectation and value, unless `valid`."""
  if not valid:
    raise ValueError(f'{field}: expected {expected}, got {got!r}.')


def check_integer(field: str, value: object, *, at_least: int) -> None:
  """Raises ValueError unless `value` is an integer of at least `at_least`."""
  integral = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  valid = integral and cast(int, value) >= at_least
  require(valid, field, f'an integer of at least {at_least}', value)


def has_password(uri: str) -> bool:
  """Returns whether a URI has a password, also in its query."""
  _, mark, rest = uri.partition('://')
  credentials = (rest if mark else uri).rpartition('@')[0]
  return ':' in credentials or _SECRET.search(uri) is not None


def hide_passwords(text: str) -> str:
  """Returns a text with '...' for passwords before the hosts of URIs.

  Example:
    >>> hide_passwords('--mlflow=http://me:secret@tracking:5000')
    '--mlflow=http://me:...@tracking:5000'
  """
  return _CREDENTIALS.sub(r'\1:...@', text)


def check_uri(field: str, uri: str) -> None:
  """Raises ValueError, which does not repeat the URI, if it has a password."""
  if has_password(uri):
    raise ValueError(describe_password(field))


def describe_password(field: str) -> str:
  """Returns the message on a URI with a password in a field or flag."""
  return (
    f'{field}: expected a URI without a password, which would get into '
    'manifest and logs; MLflow takes it from MLFLOW_TRACKING_USERNAME and '
    'MLFLOW_TRACKING_PASSWORD.'
  )
