"""Queue of the coordinator's messages to a replica."""

import collections

from cluster.network.messages import Assignment, ToReplica
from system import threads


class Inbox:
  """Messages of the coordinator that are not handled yet; thread-safe."""

  def __init__(self) -> None:
    """Creates an empty queue."""
    self._messages: collections.deque[ToReplica | None] = collections.deque()
    self._has_messages = threads.Condition()

  def put(self, message: ToReplica | None) -> None:
    """Adds a message; None only wakes the thread that waits in `take`."""
    with self._has_messages:
      self._messages.append(message)
      self._has_messages.notify()

  def take(self) -> ToReplica | None:
    """Waits for the next message, and removes it."""
    with self._has_messages:
      self._has_messages.wait_for(lambda: self._messages)
      return self._messages.popleft()

  def peek_assignment(self) -> Assignment | None:
    """Returns the next assignment, without removing it; None for none."""
    with self._has_messages:
      assignments = (m for m in self._messages if isinstance(m, Assignment))
      return next(assignments, None)
