"""Stops long computations whose caller has a time limit.

A computation takes a callable without arguments, calls it every few
milliseconds of work, and raises `Stopped` once it returns True.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Stop = Callable[[], bool]
_Item = TypeVar('_Item')
_MANY = 1024  # Items of a long list that take a few milliseconds.


class Stopped(Exception):
  """Ends a computation without a result, because its caller stops it."""


def never() -> bool:
  """Returns False: a computation with this `stop` runs to its end."""
  return False


def check(stop: Stop) -> None:
  """Raises `Stopped` if `stop` returns True."""
  if stop():
    raise Stopped


def iterate(items: Iterable[_Item], stop: Stop) -> Iterator[_Item]:
  """Yields the items of a long list; raises `Stopped` once `stop` is True."""
  for i, item in enumerate(items):
    if i % _MANY == 0:
      check(stop)
    yield item
