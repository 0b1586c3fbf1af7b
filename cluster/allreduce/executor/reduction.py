"""Futures of an executor's callers: for sums and for generations."""

import threading
from collections.abc import Callable

from cluster.allreduce.executor.exchange import Exchange
from configs.checks import require


class Reduction:
  """The sum of one iteration's pools, on its way."""

  def __init__(
    self, index: int, exchange: Exchange, tell_ready: Callable[[int], None]
  ):
    """For `Executor.begin`."""
    self._index = index
    self._exchange = exchange
    self._tell_ready = tell_ready
    self._unready = set(range(len(exchange.program.chunks)))
    self._done = threading.Event()
    self._error: Exception | None = None

  @property
  def steps(self) -> int:
    """Grows with each chunk that comes or goes."""
    return self._exchange.steps

  @property
  def finite(self) -> bool:
    """True if all sums in float16 are finite; others are not looked at."""
    return self._exchange.finite

  @property
  def waits_for(self) -> tuple[int, ...]:
    """Workers whom the lowest chunk waits for; this one if it is not ready."""
    if self._done.is_set():
      return ()
    return self._exchange.waits_for(self._index)

  @property
  def ended(self) -> bool:
    """True once `wait` returns at once."""
    return self._done.is_set()

  def ready(self, index: int) -> None:
    """Says that a range of the pool has this worker's numbers.

    From any thread, in any order.  From here on the range is the executor's
    until `wait` returns or raises.

    Raises:
      ValueError: If there is no such range, or it was ready before.
    """
    known = index in self._unready
    require(known, 'index', 'a range that was not ready before', index)
    self._unready.discard(index)
    self._tell_ready(index)

  def wait(self, timeout_s: float | None = None) -> None:
    """Waits until the pool has all sums; it is the caller's again then.

    If it raises, then numbers of the pool are of no use.

    Args:
      timeout_s: Seconds; None for as long as it takes.

    Raises:
      PeerLost: If a worker is gone; says which.
      Damaged: If what a worker sent is not what arrived; says which.
      ExecutorFailed: If this worker's executor cannot go on.
      Abandoned: If this or another worker has abandoned the generation.
      TimeoutError: If it took longer; says whom it waits for.
    """
    if not self._done.wait(timeout_s):
      raise TimeoutError(
        f'No sums within {timeout_s:g} s; waiting for workers {self.waits_for}.'
      )
    if self._error is not None:
      raise self._error

  def end(self, error: Exception | None) -> None:
    """For the executor: wakes who waits."""
    if not self._done.is_set():
      self._error = error
      self._done.set()


class Forming:
  """A generation that is being connected, for who waits for it."""

  def __init__(self) -> None:
    """Creates a future of a generation that has not connected yet."""
    self.done = threading.Event()
    self.error: Exception | None = None

  def end(self, error: Exception | None) -> None:
    """For the executor: wakes who waits."""
    if not self.done.is_set():
      self.error = error
      self.done.set()
