"""Gradients that are handed out while the backward pass goes on.

Each parameter passes through an identity whose derivative shows the cotangent,
which is that leaf of the gradient, to a function of ours: in a thread of XLA's,
in its memory, as soon as it has been computed.  Measured against others (a
callback that copies in and out, programs in segments): the cheapest by far.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

from data.stream import Ranges
from learning.gradient import TaskGradient
from learning.pool import Into
from wire.codec import Payload


class StreamingGradient:
  """A TaskGradient that hands out its leaves as soon as they are final.

  They are to the last bit those that the TaskGradient returns.

  Attributes:
    overlaps: Whether leaves come during the backward pass.  They may on one
      device of a CPU; otherwise they come after it.
  """

  def __init__(self, gradient: TaskGradient, *, overlap: bool):
    """Compiles nothing yet.

    Args:
      gradient: What is computed.
      overlap: Whether leaves may come during the backward pass.
    """
    on_cpu = jax.default_backend() == 'cpu'
    self.overlaps = overlap and on_cpu and not gradient.is_spread
    self._gradient = gradient
    self._shown = jax.jit(self._show)
    self._take: Callable[[int, np.ndarray], None] = _Nowhere().put
    self._sums: list[np.ndarray] = []

  @property
  def computed(self) -> int:
    """Examples computed so far, with padding."""
    return self._gradient.computed

  def __call__(
    self, params: Any, ranges: Ranges, *, worker: int, iteration: int
  ) -> tuple[Payload, jax.Array]:
    """Returns what is pushed, and the loss summed over the examples."""
    return self._gradient(params, ranges, worker=worker, iteration=iteration)

  def prepare(self, ranges: Ranges) -> None:
    """Gathers the examples of a call ahead of it."""
    self._gradient.prepare(ranges)

  def placed(self, tree: Any) -> Any:
    """Returns a tree with its arrays where those of a push will be."""
    return self._gradient.placed(tree)

  def warm_up(
    self, params: Any, examples: int | None, *, changing: bool
  ) -> list[Payload]:
    """Compiles all that calls need; returns payloads of every kind."""
    return self._gradient.warm_up(params, examples, changing=changing)

  def warm_up_stream(
    self, params: Any, examples: int | None, *, changing: bool
  ) -> None:
    """Compiles all that `stream` needs; arguments as of `warm_up`."""
    gradient = self._gradient
    before = gradient.computed
    if changing:  # All but the last of a batch's parts are plain.
      gradient.warm_up(params, examples, changing=True)
    for batch in gradient.batches(examples, changing=changing):
      ranges, stamp = ((0, batch),), {'worker': 0, 'iteration': 0}
      self.stream(params, ranges, **stamp, into=_Nowhere())
    gradient.computed = before

  def stream(
    self,
    params: Any,
    ranges: Ranges,
    *,
    worker: int,
    iteration: int,
    into: Into,
  ) -> tuple[Any, jax.Array]:
    """Hands out the gradient; returns the statistics and the loss, summed.

    Args:
      params: Pytree of arrays.
      ranges: Positions of the examples in the stream.
      worker: Whose iteration this is, for its random key.
      iteration: Which one.
      into: Gets each leaf once, by its index, from any thread.

    Raises:
      Exception: What `into` raises, which gets no other leaf from then on.
    """
    parts = self._gradient.parts(ranges, worker=worker, iteration=iteration)
    if self.overlaps:
      return self._overlapped(params, parts, into)
    payload, loss = self._gradient.summed(params, parts)
    leaves = jax.device_get(jax.tree.leaves(payload.gradient))
    for leaf, array in enumerate(leaves):
      into.put(leaf, array)
    return jax.block_until_ready((payload.stats, loss))

  def _overlapped(
    self, params: Any, parts: list[tuple[Any, ...]], into: Into
  ) -> tuple[Any, jax.Array]:
    *earlier, last = parts
    before = self._gradient.summed(params, earlier)
    taken, errors = [], []
    sums = [] if before is None else jax.tree.leaves(before[0].gradient)
    sums = [np.asarray(leaf) for leaf in sums]
    if sums and not self._sums:
      self._sums = [np.empty_like(leaf) for leaf in sums]

    def take(leaf: int, array: np.ndarray) -> None:
      if errors:
        return
      try:
        if sums:
          array = np.add(sums[leaf], array, out=self._sums[leaf])
        into.put(leaf, array)
        taken.append(leaf)
      # XLA would make something else of it, whatever it is.
      except BaseException as error:
        errors.append(error)

    self._take = take
    results, others = jax.block_until_ready(self._shown(params, *last))
    for leaf, array in others.items():
      take(leaf, np.asarray(array))
    if errors:
      raise errors[0]
    count = len(jax.tree.leaves(params))
    if sorted(taken) != list(range(count)):
      raise RuntimeError(
        f'Expected each of {count} leaves of a gradient once, got {taken}.'
      )
    if before is None:
      return results
    return self._gradient.add((before[0].stats, before[1]), results)

  def _show(
    self, params: Any, *part: Any
  ) -> tuple[tuple[Any, jax.Array], dict[int, jax.Array]]:
    """Shows a micro-batch's gradient; returns statistics and loss.

    Returns those leaves, too, that nobody is shown: parameters not used.
    """
    seen_by = set()

    def seen(params: Any) -> Any:
      leaves, tree = jax.tree.flatten(params)
      return jax.tree.unflatten(
        tree, [self._identity(n, seen_by)(leaf) for n, leaf in enumerate(leaves)]
      )

    payload, loss = self._gradient.part(params, *part, seen=seen)
    leaves = dict(enumerate(jax.tree.leaves(payload.gradient)))
    others = {n: leaf for n, leaf in leaves.items() if n not in seen_by}
    return (payload.stats, loss), others

  def _identity(self, leaf: int, seen_by: set[int]) -> Callable[[Any], Any]:
    """Returns what shows a leaf's cotangent, and says so when it is traced."""

    def show(context: Any, results: Any, cotangent: Any) -> None:
      # No function of jax.numpy may be called here.
      self._take(leaf, np.asarray(cotangent))

    @jax.custom_vjp
    def identity(array: jax.Array) -> jax.Array:
      return array

    def backward(_: None, cotangent: jax.Array) -> tuple[jax.Array]:
      seen_by.add(leaf)
      buffer_callback(show, (), has_side_effect=True)(cotangent)
      return (cotangent,)

    identity.defvjp(lambda array: (array, None), backward)
    return identity


class _Nowhere:
  """Takes what a warm-up computes."""

  def put(self, leaf: int, array: np.ndarray) -> None:
    """Forgets it."""
