"""Threads that do not keep a process from ending, whatever they hang in."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Threads:
  """Calls functions in daemon threads, a few at a time.

  An executor of concurrent.futures would be waited for at the end.
  """

  def __init__(self, count: int):
    """Starts them.

    Args:
      count: How many functions can be called at a time.
    """
    self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(count):
      threading.Thread(target=self._call, daemon=True).start()

  def submit(self, function: Callable[..., Any], *args: Any) -> Future:
    """Returns what will hold what the call returns or raises."""
    future: Future = Future()
    self._calls.put((future, function, args))
    return future

  def _call(self) -> None:
    while True:
      future, function, args = self._calls.get()
      try:
        future.set_result(function(*args))
      except BaseException as error:  # For who asks the future.
        future.set_exception(error)
      del future, function, args
