"""Futures of an executor's callers: for allreduces and for memberships."""

from collections.abc import Callable, Sequence

from cluster.allreduce.executor.exchange import Exchange
from configs.checks import require
from system import threads


class _Future:
  """Result of an operation in the executor's thread: an error, or none."""

  def __init__(self) -> None:
    """Creates a future of an operation that has not ended."""
    self._done = threads.Event()
    self._error: Exception | None = None

  @property
  def ended(self) -> bool:
    """True once the operation has ended, with an error or without."""
    return self._done.is_set()

  @property
  def error(self) -> Exception | None:
    """Error that ended the operation; None if there is none."""
    return self._error

  def end(self, error: Exception | None) -> None:
    """Ends the operation and wakes its waiters; called by the executor."""
    if not self._done.is_set():
      self._error = error
      self._done.set()

  def wait_for_end(self, timeout_s: float | None) -> bool:
    """Waits for the end; returns False if it did not come in time."""
    return self._done.wait(timeout_s)


class MembershipFuture(_Future):
  """Connections of a membership that are being opened."""


class Reduction(_Future):
  """Allreduce of one iteration's gradient buffers, while it runs."""

  def __init__(
    self,
    index: int,
    exchanges: Sequence[Exchange],
    mark_ready: Callable[[int], None],
  ):
    """Creates the future of an allreduce, for `Executor.begin`.

    Args:
      index: Index of this worker.
      exchanges: State of the allreduce in each lane.
      mark_ready: Called with the number of a bucket that is ready.
    """
    super().__init__()
    self._index = index
    self._exchanges = exchanges
    self._mark_ready = mark_ready
    self._unready = set(range(len(exchanges[0].program.bucket_chunks)))
    # Bucket that `wait_for_bucket` waits for; None if it does not run.
    self._awaited: int | None = None
    self._progressed = threads.Condition()

  @property
  def steps(self) -> int:
    """Number of chunks that were sent or received so far."""
    return sum(each.steps for each in self._exchanges)

  @property
  def finite(self) -> bool:
    """True if all sums in float16 are finite; others are not examined."""
    return all(each.finite for each in self._exchanges)

  @property
  def waits_for(self) -> tuple[int, ...]:
    """Workers that the lowest chunk of each lane waits for.

    This worker is among them if its numbers are not ready.
    """
    if self.ended:
      return ()
    waits = [each.waits_for(self._index) for each in self._exchanges]
    return tuple(sorted({worker for each in waits for worker in each}))

  def ready(self, index: int) -> None:
    """Declares that a bucket of the buffer has this worker's numbers.

    May be called from any thread, in any order of buckets.  From then on the
    bucket belongs to the executor until the allreduce ends: `wait` then returns
    or raises an error, but after a TimeoutError the allreduce continues.

    Raises:
      ValueError: If there is no such bucket, or it was ready before.
    """
    known = index in self._unready
    require(known, 'index', 'a bucket that was not ready before', index)
    self._unready.discard(index)
    self._mark_ready(index)

  def end(self, error: Exception | None) -> None:
    """Ends the allreduce and wakes its waiters; called by the executor."""
    super().end(error)
    with self._progressed:
      self._progressed.notify_all()

  def advance(self) -> None:
    """Wakes the waiter for a bucket that has its sums; for the lanes."""
    awaited = self._awaited
    if awaited is not None and self._is_summed(awaited):
      with self._progressed:
        self._progressed.notify_all()

  def wait_for_bucket(self, index: int) -> None:
    """Waits until a bucket, and all before it, have their sums.

    They may be read from then on, but still belong to the executor, which may
    yet have to send them.  For one thread at a time.

    Args:
      index: Index of the bucket.

    Raises:
      TransportError: As of `wait`.
    """
    self._awaited = index
    with self._progressed:
      self._progressed.wait_for(lambda: self.ended or self._is_summed(index))
    self._awaited = None
    if self.error is not None:
      raise self.error

  def _is_summed(self, index: int) -> bool:
    """Returns whether a bucket and all before it have their sums."""
    return all(
      each.low >= each.program.bucket_chunks[index][1]
      for each in self._exchanges
    )

  def wait(self, timeout_s: float | None = None) -> None:
    """Waits until the buffer has all sums; it is the caller's again then.

    If this raises, the contents of the buffer are undefined.

    Args:
      timeout_s: Seconds; None for no limit.

    Raises:
      PeerLost: If a worker is lost; names it.
      Damaged: If a worker has sent other bytes than it should; names it.
      ExecutorFailed: If this worker's executor cannot continue.
      Abandoned: If this or another worker has abandoned the membership.
      TimeoutError: If it took longer; names the workers that are waited for.
        The allreduce continues.
    """
    if not self.wait_for_end(timeout_s):
      raise TimeoutError(
        f'No sums within {timeout_s:g} s; waiting for workers {self.waits_for}.'
      )
    if self.error is not None:
      raise self.error
