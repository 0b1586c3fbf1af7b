"""This process: its id, its signals, its end, and what it keeps to itself."""

import fcntl
import os
import signal
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

from system import threads

Signals = signal.Signals
SIG_DFL, SIG_IGN = signal.SIG_DFL, signal.SIG_IGN
SIGINT, SIGTERM, SIGHUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
SIGKILL, SIGSTOP, SIGUSR2 = signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR2
getpid = os.getpid
kill = os.kill
exit_now = os._exit  # Without anything that is registered for the exit.
handle_signal = signal.signal  # Main threads only.
find_handler = signal.getsignal

_Value = TypeVar('_Value')


def lock_file(descriptor: int) -> bool:
  """Locks an open file until the process ends; False if another one has it."""
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


def find_owner() -> object:
  """Returns the process that the calling thread belongs to."""
  return None


class Own(Generic[_Value]):
  """A value of which each process has its own, made when first asked for."""

  def __init__(self, make: Callable[[], _Value]):
    self._make = make
    self._values: dict[object, _Value] = {}

  def get(self) -> _Value:
    """Returns the value of the calling thread's process."""
    owner = find_owner()
    if owner not in self._values:
      self._values[owner] = self._make()
    return self._values[owner]


class CachedProperty(Generic[_Value]):
  """A property that is made once for each object, by one thread.

  Unlike `functools.cached_property` it holds no lock of the host meanwhile.
  """

  def __init__(self, make: Callable[[Any], _Value]):
    self._make, self.__doc__ = make, make.__doc__
    self._lock = Own(lambda: threads.Lock())  # Of the host, or a simulation.

  def __set_name__(self, owner: type, name: str) -> None:
    self._name = name

  @overload
  def __get__(self, instance: None, owner: type) -> Self: ...

  @overload
  def __get__(self, instance: object, owner: type) -> _Value: ...

  def __get__(self, instance: object, owner: type) -> Self | _Value:
    if instance is None:
      return self
    values = instance.__dict__
    with self._lock.get():
      if self._name not in values:
        values[self._name] = self._make(instance)
    found: _Value = values[self._name]
    return found
