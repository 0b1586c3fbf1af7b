"""Gradient buffers that are filled while a gradient is computed.

A gradient buffer is a vector with a `Layout`.  `backward_order` predicts the
order in which the backward pass computes a gradient's leaves, and
`BucketFiller` copies them into a buffer and reports each bucket that is
complete, so that it can be sent at once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from learning.layout import Layout
from system import threads

# Receives a leaf of a gradient: its index, and its numbers, whose memory is
# reused after the call.  Called in any order and from any thread.
Sink = Callable[[int, np.ndarray], None]


class BucketFiller:
  """Fills a gradient buffer with leaves and reports complete buckets.

  The last bucket is complete once `finish` was called, as are buckets without
  leaves.

  Args:
    layout: Layout of the buffer.
    vector: The buffer, float32 [layout.size].
    ready: Called once with the index of each bucket, as soon as it is
      complete, by the thread that completed it.
  """

  def __init__(
    self, layout: Layout, vector: np.ndarray, ready: Callable[[int], None]
  ):
    self._layout, self._vector, self._ready = layout, vector, ready
    self._lock = threads.Lock()
    self._missing = [len(bucket.leaves) for bucket in layout.buckets]
    # Buckets that `finish` completes.
    self._finished = {
      number for number, count in enumerate(self._missing) if not count
    }
    self._finished.add(len(self._missing) - 1)
    for number in self._finished:
      self._missing[number] += 1

  def put(self, leaf: int, array: np.ndarray) -> None:
    """Copies a leaf into the buffer; called once for each, in any order.

    Args:
      leaf: Index of the leaf.
      array: Its numbers, whose memory may be used again after the call.
    """
    self._layout.write_leaf(self._vector, leaf, array)
    self._count(self._layout.bucket_of[leaf])

  def finish(self, stats: Any, step_statistics: Sequence[float] = ()) -> None:
    """Copies what follows the gradient into the buffer.

    Called once, before or after the last `put`.  The last bucket, and buckets
    without leaves, are complete only after it: those without missing leaves are
    reported here, in ascending order.

    Args:
      stats: Pytree of the running statistics.
      step_statistics: Numbers at the end of the buffer.
    """
    self._layout.write_stats(self._vector, stats)
    self._layout.step_statistics(self._vector)[...] = step_statistics
    for number in sorted(self._finished):
      self._count(number)

  def _count(self, number: int) -> None:
    """Counts a part of a bucket, and reports the bucket if it was the last."""
    with self._lock:
      self._missing[number] -= 1
      is_complete = not self._missing[number]
    if is_complete:
      self._ready(number)


def backward_order(gradient: Callable[..., Any], *args: Any) -> tuple[int, ...]:
  """Returns the order in which a function computes the leaves of its result.

  It is the order of the equations in the function's jaxpr, and therefore the
  same in every process with the same function, shapes and version of JAX.  All
  results of a loop count as computed when the loop ends; leaves that are
  computed at the same time are in the order of their indices.

  Args:
    gradient: Function that returns a pytree of arrays; it is traced, not run.
    *args: Its arguments: arrays, or their shapes and dtypes.

  Returns:
    Indices of the leaves.

  Example:
    >>> import jax.numpy as jnp
    >>> loss = lambda p, x: jnp.sin(jnp.sin(x * p['a']) * p['b'])
    >>> backward_order(jax.grad(loss), {'a': 1.0, 'b': 2.0}, 3.0)
    (1, 0)
  """
  jaxpr = jax.make_jaxpr(gradient)(*args).jaxpr
  positions = _positions(jaxpr)
  return tuple(sorted(range(len(positions)), key=lambda leaf: positions[leaf]))


def _positions(jaxpr: Any) -> list[tuple[int, ...]]:
  """Returns positions of the equations that compute the outputs of a jaxpr."""
  # Index of the equation, and the position inside it if it is a call.
  sources = {
    id(var): (number, equation, output)
    for number, equation in enumerate(jaxpr.eqns)
    for output, var in enumerate(equation.outvars)
  }
  inside = {}
  for var in jaxpr.outvars:
    if id(var) in sources:
      number, equation, _ = sources[id(var)]
      inside[number] = _positions_inside(equation)
  positions: list[tuple[int, ...]] = []
  for var in jaxpr.outvars:
    if id(var) not in sources:  # An input or a constant.
      positions.append((-1,))
      continue
    number, _, output = sources[id(var)]
    inner = inside[number]
    positions.append((number, *(inner[output] if inner else ())))
  return positions


def _positions_inside(equation: Any) -> list[tuple[int, ...]]:
  """Returns the positions of a call's outputs in its jaxpr; [] if no call."""
  for value in equation.params.values():
    jaxpr = value.jaxpr if isinstance(value, core.ClosedJaxpr) else value
    if isinstance(jaxpr, core.Jaxpr) and (
      len(jaxpr.outvars) == len(equation.outvars)
    ):
      return _positions(jaxpr)
  return []
