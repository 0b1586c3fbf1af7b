"""Queue of the coordinator's messages to a replica."""

import collections
import threading
from collections.abc import Mapping
from typing import Any


class Inbox:
  """Messages of the coordinator that are not handled yet; thread-safe."""

  def __init__(self) -> None:
    """Creates an empty queue."""
    self._messages: collections.deque[dict[str, Any]] = collections.deque()
    self._has_messages = threading.Condition()

  def put(self, message: dict[str, Any]) -> None:
    """Adds a message; {} only wakes the thread that waits in `take`."""
    with self._has_messages:
      self._messages.append(message)
      self._has_messages.notify()

  def take(self) -> dict[str, Any]:
    """Waits for the next message, and removes it."""
    with self._has_messages:
      self._has_messages.wait_for(lambda: self._messages)
      return self._messages.popleft()

  def peek_assignment(self) -> Mapping[str, Any] | None:
    """Returns the next assignment, without removing it; None for none."""
    with self._has_messages:
      return next((m['deal'] for m in self._messages if 'deal' in m), None)
