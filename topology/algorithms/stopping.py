"""How a caller with a time limit gets control back from a long computation.

A computation takes a callable without arguments, asks it every few
milliseconds of work, and raises `Stopped` once it says True.
"""

from collections.abc import Callable

Stop = Callable[[], bool]


class Stopped(Exception):
  """The caller has asked a computation to give up; it has no result."""


def never() -> bool:
  """Returns False: a computation that asks this runs to its end."""
  return False


def check(stop: Stop) -> None:
  """Returns if the computation is to go on.

  Raises:
    Stopped: If `stop` says True.
  """
  if stop():
    raise Stopped
