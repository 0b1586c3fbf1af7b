"""What the coordinator has said to a replica and it has not taken yet."""

import collections
import threading
from collections.abc import Mapping
from typing import Any


class Inbox:
  """What the coordinator has said and nobody has taken yet; from any thread."""

  def __init__(self) -> None:
    """There is nothing."""
    self._told: collections.deque[dict[str, Any]] = collections.deque()
    self._some = threading.Condition()

  def put(self, told: dict[str, Any]) -> None:
    """Adds what the coordinator has said; {} to wake up who waits."""
    with self._some:
      self._told.append(told)
      self._some.notify()

  def take(self) -> dict[str, Any]:
    """Waits for the next."""
    with self._some:
      self._some.wait_for(lambda: self._told)
      return self._told.popleft()

  def next_deal(self) -> Mapping[str, Any] | None:
    """Returns the next iteration that is dealt, if it is known; leaves it."""
    with self._some:
      return next((each['deal'] for each in self._told if 'deal' in each), None)
