"""How a caller with a time limit gets control back from a long computation.

A computation takes a callable without arguments, asks it every few
milliseconds of work, and raises `Stopped` once it says True.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Stop = Callable[[], bool]
_Item = TypeVar('_Item')
_MANY = 1024  # Items of a long list that take a few milliseconds.


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


def asked(items: Iterable[_Item], stop: Stop) -> Iterator[_Item]:
  """Yields the items of a long list; raises `Stopped` once `stop` says so."""
  for i, item in enumerate(items):
    if i % _MANY == 0:
      check(stop)
    yield item
