"""Sends an allreduce's streamable prefix while the gradient is computed."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from system import threads
from wire.codec import StreamablePrefix


class ChunkPacker:
  """Encodes chunks of a vector, one after the other, as soon as they are known.

  Attributes:
    ranges: Ranges of the contribution, start and end, that are sent as one.
  """

  def __init__(
    self,
    prefix: StreamablePrefix,
    chunks: Sequence[int],
    *,
    vector: np.ndarray,
    residual: Any,
    scale: float,
    bucket_bytes: float,
  ):
    """Creates a packer of an empty vector.

    Args:
      prefix: The codec's streamable prefix.
      chunks: Indices of the chunks that are sent, ascending.
      vector: Gradient that is being filled from its start, float32 [n].
      residual: Pytree of float32 [n], the codec's residual.
      scale: Number that the residual is multiplied by.
      bucket_bytes: Least bytes of a range, in float32.
    """
    self._prefix, self._vector, self._scale = prefix, vector, scale
    self._residual = jax.tree.map(np.asarray, residual)
    self._places = [
      (chunk * prefix.chunk, min((chunk + 1) * prefix.chunk, vector.size))
      for chunk in chunks
    ]
    self._buckets = prefix.buckets(vector.size, bucket_bytes)
    self.ranges = [
      (first * prefix.chunk, end * prefix.chunk) for first, end in self._buckets
    ]
    self._lock, self._full_buckets = threads.Lock(), 0
    self._contribution = np.empty(0, np.float32)
    self._on_full: Callable[[int], None] = lambda bucket: None

  def begin(
    self, contribution: np.ndarray, on_full: Callable[[int], None]
  ) -> None:
    """Starts to encode a vector.

    Args:
      contribution: Float32 array that chunks are written to.
      on_full: Called with the index of each range once it is full.
    """
    self._contribution, self._on_full = contribution, on_full

  def advance(self, count: int) -> None:
    """Encodes all chunks in the first `count` numbers; from any thread."""
    with self._lock:
      while self._full_buckets < len(self._buckets):
        first, end = self._buckets[self._full_buckets]
        if self._places[end - 1][1] > count:
          return
        for number in range(first, end):
          self._encode(number, *self._places[number])
        self._on_full(self._full_buckets)
        self._full_buckets += 1

  def _encode(self, number: int, start: int, end: int) -> None:
    place = slice(start, end)
    residual = jax.tree.map(lambda a: a[place] * self._scale, self._residual)
    first = number * self._prefix.chunk
    part = self._contribution[first : first + self._prefix.chunk]
    part[: end - start] = self._prefix.encode(residual, self._vector[place])
    part[end - start :] = 0.0


class FilledPrefix:
  """The length of a gradient's filled beginning, as buckets become full."""

  def __init__(self, ranges: Sequence[tuple[int, int]], size: int):
    """Creates the state without a full bucket.

    Args:
      ranges: Start and end of each bucket, in order.
      size: Numbers of the gradient.
    """
    self._ends = [end for _, end in ranges]
    self._is_full = [False] * len(ranges)
    self._size, self._next = size, 0
    self._lock = threads.Lock()

  def mark_full(self, bucket: int) -> int:
    """Marks a bucket as full; returns the numbers of the filled beginning."""
    with self._lock:
      self._is_full[bucket] = True
      while self._next < len(self._is_full) and self._is_full[self._next]:
        self._next += 1
      return min(self._ends[self._next - 1], self._size) if self._next else 0
