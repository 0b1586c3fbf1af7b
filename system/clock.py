"""Clocks of the host, and waiting for them."""

import time
from typing import Protocol


class Source(Protocol):
  """Source of the time: the module `time`, or a simulation."""

  def monotonic(self) -> float:
    """Returns seconds since some moment; they never go back."""

  def perf_counter(self) -> float:
    """Returns seconds, for short durations."""

  def time(self) -> float:
    """Returns seconds since 1970."""

  def sleep(self, seconds: float, /) -> None:
    """Waits."""


source: Source = time


def monotonic() -> float:
  """Returns seconds since some moment; they never go back."""
  return source.monotonic()


def perf_counter() -> float:
  """Returns seconds, for short durations."""
  return source.perf_counter()


def wall() -> float:
  """Returns seconds since 1970."""
  return source.time()


def sleep(seconds: float) -> None:
  """Waits."""
  source.sleep(seconds)
