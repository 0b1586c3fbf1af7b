"""Parts of a vector that travel before all of it is there."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from wire.codec import Early


class Packing:
  """Packs parts end to end, as soon as the numbers before their ends are there.

  Attributes:
    ranges: Of what is packed: first number of each, and the one after its last.
  """

  def __init__(
    self,
    early: Early,
    chunks: Sequence[int],
    *,
    vector: np.ndarray,
    kept: Any,
    scale: float,
    bucket_bytes: float,
  ):
    """Nothing is there.

    Args:
      early: What a part becomes.
      chunks: Those that travel, ascending.
      vector: Float32 [n], to be filled.
      kept: Pytree of float32 [n], what is added.
      scale: By which it is multiplied.
      bucket_bytes: Bytes of a range, at least, if there are as many.
    """
    self._early, self._vector, self._scale = early, vector, scale
    self._kept = jax.tree.map(np.asarray, kept)
    self._places = [
      (chunk * early.chunk, min((chunk + 1) * early.chunk, vector.size))
      for chunk in chunks
    ]
    self._parts = early.parts(vector.size, bucket_bytes)
    self.ranges = [
      (first * early.chunk, last * early.chunk) for first, last in self._parts
    ]
    self._lock, self._done = threading.Lock(), 0
    self._into = np.empty(0, np.float32)
    self._ready: Callable[[int], None] = lambda number: None

  def begin(self, into: np.ndarray, ready: Callable[[int], None]) -> None:
    """Says where parts go, float32, and who is told of each range once."""
    self._into, self._ready = into, ready

  def reach(self, there: int) -> None:
    """The first so many numbers are there; from any thread."""
    with self._lock:
      while self._done < len(self._parts):
        first, last = self._parts[self._done]
        if self._places[last - 1][1] > there:
          return
        for number in range(first, last):
          self._pack(number, *self._places[number])
        self._ready(self._done)
        self._done += 1

  def _pack(self, number: int, start: int, end: int) -> None:
    place = slice(start, end)
    kept = jax.tree.map(lambda each: each[place] * self._scale, self._kept)
    first = number * self._early.chunk
    part = self._into[first : first + self._early.chunk]
    part[: end - start] = self._early.values(kept, self._vector[place])
    part[end - start :] = 0.0


class Reached:
  """How much of a pool is there from its start, as ranges become full."""

  def __init__(self, ranges: Sequence[tuple[int, int]], most: int):
    """Nothing is.

    Args:
      ranges: Of the pool, in order.
      most: Numbers that count.
    """
    self._ends = [end for _, end in ranges]
    self._full = [False] * len(ranges)
    self._most, self._next = most, 0
    self._lock = threading.Lock()

  def full(self, number: int) -> int:
    """A range is full; returns how many numbers are there from the start."""
    with self._lock:
      self._full[number] = True
      while self._next < len(self._full) and self._full[self._next]:
        self._next += 1
      return min(self._ends[self._next - 1], self._most) if self._next else 0
