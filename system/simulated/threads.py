"""Threads, and what they wait for, as `system.threads` has them."""

import collections
import concurrent.futures
import queue
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

from system.simulated.scheduler import Task, Waiting, active

Empty = queue.Empty


class Thread:
  """A thread of the simulated process that creates it."""

  def __init__(
    self,
    group: None = None,
    target: Callable[..., object] | None = None,
    name: str | None = None,
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    daemon: bool | None = None,
  ):
    del group
    self._target, self._args, self._kwargs = target, (*args,), kwargs or {}
    self._scheduler = active()
    self.name = name or f'Thread-{id(self):x}'
    self.daemon = bool(daemon)
    self._task: Task | None = None

  def run(self) -> None:
    if self._target:
      self._target(*self._args, **self._kwargs)

  def start(self) -> None:
    current = self._scheduler.current
    if current is None:
      raise RuntimeError('Nobody but simulated threads can start others.')
    self._task = current.owner.start_task(  # type: ignore[attr-defined]
      self.name, self.run, is_daemon=self.daemon
    )
    self._task.handle = self
    self._scheduler.may_yield()

  def join(self, timeout: float | None = None) -> None:
    if self._task is None:
      raise RuntimeError('cannot join thread before it is started')
    if not self._task.is_over:
      self._scheduler.wait(self._task.joining, timeout)

  def is_alive(self) -> bool:
    return self._task is not None and not self._task.is_over

  @property
  def ident(self) -> int | None:
    return id(self._task) if self._task else None


class Timer(Thread):
  """A thread that calls a function after some seconds."""

  def __init__(
    self,
    interval: float,
    function: Callable[..., object],
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
  ):
    super().__init__()
    self._interval, self._call = interval, (function, (*args,), kwargs or {})
    self._cancelled = Event()

  def run(self) -> None:
    if not self._cancelled.wait(self._interval):
      function, args, kwargs = self._call
      function(*args, **kwargs)

  def cancel(self) -> None:
    self._cancelled.set()


class Lock:
  """A lock."""

  def __init__(self) -> None:
    self._scheduler = active()
    self._is_locked = False
    self._waiters: list[Waiting] = []

  def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
    self._scheduler.may_yield()
    deadline = self._scheduler.now + timeout
    while self._is_locked and not self._scheduler.is_closing:
      if not blocking:
        return False
      left_s = None if timeout < 0 else deadline - self._scheduler.now
      if not self._scheduler.wait(self._waiters, left_s) and left_s is not None:
        return False
    self._is_locked = True
    return True

  def release(self) -> None:
    if not (self._is_locked or self._scheduler.is_closing):
      raise RuntimeError('release unlocked lock')
    self._is_locked = False
    self._scheduler.wake(self._waiters)

  def locked(self) -> bool:
    return self._is_locked

  def __enter__(self) -> bool:
    return self.acquire()

  def __exit__(self, *exception: object) -> None:
    self.release()


class Condition:
  """A condition; its own lock may be acquired again by its holder."""

  def __init__(self, lock: Lock | None = None) -> None:
    self._scheduler = active()
    self._lock = lock or Lock()
    self._is_reentrant = lock is None
    self._holder: Task | None = None
    self._depth = 0
    self._waiters: list[Waiting] = []

  def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
    current = self._scheduler.current
    if self._is_reentrant and self._depth and self._holder is current:
      self._depth += 1
      return True
    acquired = self._lock.acquire(blocking, timeout)
    if acquired:
      self._holder, self._depth = current, 1
    return acquired

  def release(self) -> None:
    self._depth -= 1
    if self._depth <= 0:
      self._holder, self._depth = None, 0
      self._lock.release()

  def __enter__(self) -> bool:
    return self.acquire()

  def __exit__(self, *exception: object) -> None:
    self.release()

  def wait(self, timeout: float | None = None) -> bool:
    if not self._lock.locked():
      raise RuntimeError('cannot wait on un-acquired lock')
    holder, depth = self._holder, self._depth
    self._holder, self._depth = None, 0
    self._lock.release()
    try:
      return self._scheduler.wait(self._waiters, timeout)
    finally:
      self._lock.acquire()
      self._holder, self._depth = holder, depth

  def wait_for(
    self, predicate: Callable[[], Any], timeout: float | None = None
  ) -> Any:
    end = None if timeout is None else self._scheduler.now + timeout
    result = predicate()
    while not result:
      left_s = None if end is None else end - self._scheduler.now
      if left_s is not None and left_s <= 0:
        break
      self.wait(left_s)
      result = predicate()
    return result

  def notify(self, n: int = 1) -> None:
    """Wakes some of the tasks that wait; the lock need not be held."""
    for _ in range(n):
      self._scheduler.wake(self._waiters)

  def notify_all(self) -> None:
    self._scheduler.wake_all(self._waiters)


class Event:
  """A flag to wait for."""

  def __init__(self) -> None:
    self._scheduler = active()
    self._is_set = False
    self._waiters: list[Waiting] = []

  def is_set(self) -> bool:
    return self._is_set

  def set(self) -> None:
    self._is_set = True
    self._scheduler.wake_all(self._waiters)
    self._scheduler.may_yield()

  def clear(self) -> None:
    self._is_set = False

  def wait(self, timeout: float | None = None) -> bool:
    if not self._is_set:
      self._scheduler.wait(self._waiters, timeout)
    return self._is_set


class Semaphore:
  """A number of permits."""

  def __init__(self, value: int = 1):
    self._scheduler = active()
    self._value = value
    self._waiters: list[Waiting] = []

  def acquire(
    self, blocking: bool = True, timeout: float | None = None
  ) -> bool:
    while not self._value:
      if not blocking or not self._scheduler.wait(self._waiters, timeout):
        return False
    self._value -= 1
    return True

  def release(self) -> None:
    self._value += 1
    self._scheduler.wake(self._waiters)

  def __enter__(self) -> bool:
    return self.acquire()

  def __exit__(self, *exception: object) -> None:
    self.release()


class SimpleQueue:
  """An unbounded queue."""

  def __init__(self) -> None:
    self._scheduler = active()
    self._items: collections.deque[Any] = collections.deque()
    self._waiters: list[Waiting] = []

  def __class_getitem__(cls, item: object) -> type[Self]:
    return cls

  def put(self, item: Any) -> None:
    self._items.append(item)
    self._scheduler.wake(self._waiters)
    self._scheduler.may_yield()

  def get(self, block: bool = True, timeout: float | None = None) -> Any:
    end = None if timeout is None else self._scheduler.now + timeout
    while not self._items:
      left_s = None if end is None else end - self._scheduler.now
      if not block or (left_s is not None and left_s <= 0):
        raise Empty
      self._scheduler.wait(self._waiters, left_s)
    return self._items.popleft()

  def get_nowait(self) -> Any:
    return self.get(block=False)

  def empty(self) -> bool:
    return not self._items

  def qsize(self) -> int:
    return len(self._items)


class Future(concurrent.futures.Future[Any]):
  """A result that may still be missing."""

  def __init__(self) -> None:
    super().__init__()
    self._condition: Any = Condition()


def wait(
  futures: Iterable[concurrent.futures.Future[Any]],
  timeout: float | None = None,
) -> tuple[set[Any], set[Any]]:
  """Waits for some futures; returns those that are done, and the others."""
  every = [*futures]
  left = {id(future) for future in every if not future.done()}
  all_done = Event()

  def finish(future: concurrent.futures.Future[Any]) -> None:
    left.discard(id(future))
    if not left:
      all_done.set()

  if left:
    for future in every:
      future.add_done_callback(finish)
    all_done.wait(timeout)
  done = {future for future in every if future.done()}
  return done, {*every} - done


class ThreadPoolExecutor:
  """Threads that call functions, at most 4 by default."""

  def __init__(
    self, max_workers: int | None = None, thread_name_prefix: str = ''
  ):
    self._most = max_workers or 4
    self._name = thread_name_prefix or 'pool'
    self._calls = SimpleQueue()
    self._threads: list[Thread] = []
    self._num_idle = 0
    self._is_closed = False

  def submit(
    self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
  ) -> Future:
    if self._is_closed:
      raise RuntimeError('cannot schedule new futures after shutdown')
    future = Future()
    if self._num_idle <= self._calls.qsize() and (
      len(self._threads) < self._most
    ):
      name = f'{self._name}_{len(self._threads)}'
      thread = Thread(target=self._work, name=name, daemon=True)
      self._threads.append(thread)
      thread.start()
    self._calls.put((future, function, args, kwargs))
    return future

  def map(
    self, function: Callable[..., Any], *iterables: Iterable[Any]
  ) -> Iterator[Any]:
    futures = [
      self.submit(function, *group) for group in zip(*iterables, strict=False)
    ]
    return (future.result() for future in futures)

  def shutdown(
    self, wait: bool = True, *, cancel_futures: bool = False
  ) -> None:
    self._is_closed = True
    while cancel_futures and not self._calls.empty():
      self._calls.get()[0].cancel()
    for _ in self._threads:
      self._calls.put(None)
    if wait:
      for thread in self._threads:
        thread.join()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *exception: object) -> None:
    self.shutdown()

  def _work(self) -> None:
    while True:
      self._num_idle += 1
      call = self._calls.get()
      self._num_idle -= 1
      if call is None:
        return
      future, function, args, kwargs = call
      if not future.set_running_or_notify_cancel():
        continue
      try:
        result = function(*args, **kwargs)
      # The caller receives it.
      except BaseException as error:
        future.set_exception(error)
      else:
        future.set_result(result)


class MainThread:
  """The main thread of a process."""

  name, ident, daemon = 'MainThread', 0, False


_OUTSIDE = MainThread()  # The thread outside of all simulated ones.


def current_thread() -> Any:
  """Returns the thread that calls."""
  task = active().current
  return task.handle if task else _OUTSIDE


def main_thread() -> Any:
  """Returns the main thread of the process that calls."""
  task = active().current
  return task.owner.main.handle if task else _OUTSIDE  # type: ignore[attr-defined]
