"""What the coordinator has said to a replica and it has not taken yet."""

import collections
import threading

from cluster.network.messages import Assignment, ToReplica


class Inbox:
  """What the coordinator has said and nobody has taken yet; from any thread."""

  def __init__(self) -> None:
    """There is nothing."""
    self._told: collections.deque[ToReplica | None] = collections.deque()
    self._some = threading.Condition()

  def put(self, told: ToReplica | None) -> None:
    """Adds a message of the coordinator; None to wake up who waits."""
    with self._some:
      self._told.append(told)
      self._some.notify()

  def take(self) -> ToReplica | None:
    """Waits for the next."""
    with self._some:
      self._some.wait_for(lambda: self._told)
      return self._told.popleft()

  def next_deal(self) -> Assignment | None:
    """Returns the next iteration that is dealt, if it is known; leaves it."""
    with self._some:
      return next(
        (each for each in self._told if isinstance(each, Assignment)), None
      )
