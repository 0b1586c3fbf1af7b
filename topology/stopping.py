"""How a search that takes too long is ended."""

from collections.abc import Callable

Stop = Callable[[], bool]  # Asked now and then; True to end.


class Stopped(Exception):
  """A search was told to end before it had an answer."""


def never() -> bool:
  """Returns False: the search may take as long as it needs."""
  return False


def check(stop: Stop) -> None:
  """Raises Stopped if `stop` says so."""
  if stop():
    raise Stopped
