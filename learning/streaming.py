"""Gradients that are handed out bucket by bucket, in the order of sending.

On one device of a CPU they are handed out during the backward pass.  The
parameters of each range of the pool pass through an identity whose derivative
shows their cotangents, which are leaves of the gradient, to a function of ours:
in a thread of XLA's, in its memory, as soon as all of them have been computed.
A callback takes about 0.1 ms of the processor, so one for each range costs less
than one for each leaf, and makes none later.

On an accelerator all leaves exist once its program ends.  Copies to the host
are requested in the order in which the leaves lie in the pool, and each leaf is
handed out when its copy has landed, while later ones are still copied.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

from data.stream import Ranges
from learning.gradient import TaskGradient
from learning.gradient_buffer import LeafSink
from learning.learning import Overlap
from wire.codec import Payload


def find_overlap(
  gradient: TaskGradient, *, wanted: bool
) -> tuple[Overlap, str]:
  """Returns what sending a gradient overlaps with, and a sentence about it.

  Args:
    gradient: What is computed.
    wanted: config.route.overlap.
  """
  platform = jax.default_backend()
  if not wanted:
    return Overlap.NONE, (
      'Gradients are sent after the backward pass, once all of them are on the '
      'host: config.route.overlap is False.'
    )
  if platform != 'cpu':
    return Overlap.COPIES, (
      'Gradients are sent bucket by bucket after the backward pass, while '
      f'later buckets are still copied from the accelerator ({platform}).'
    )
  if gradient.is_spread:
    return Overlap.NONE, (
      'Gradients are sent after the backward pass: several devices of the CPU '
      'compute them (config.cluster.devices_per_worker).'
    )
  return Overlap.BACKWARD, (
    'Gradients are sent bucket by bucket while the backward pass runs.'
  )


class StreamingGradient:
  """A TaskGradient that hands out its leaves as soon as they are final.

  They are to the last bit those that the TaskGradient returns.

  Attributes:
    overlap: What still runs while leaves are handed out.
    early: Leaves that have come during backward passes so far.
  """

  def __init__(
    self,
    gradient: TaskGradient,
    groups: Sequence[Sequence[int]],
    *,
    overlap: bool,
  ):
    """Compiles nothing yet.

    Args:
      gradient: What is computed.
      groups: Leaves of the gradient, by index, that are handed out together;
        as `Bucket.leaves`.
      overlap: Whether leaves may come before all of them are on the host.
    """
    self.overlap, _ = find_overlap(gradient, wanted=overlap)
    self.early = 0
    self._gradient = gradient
    self._groups = groups
    self._shown = jax.jit(self._show)
    self._take: Callable[[int, np.ndarray], None] = _Nowhere().put
    self._sums: list[np.ndarray] = []

  @property
  def computed(self) -> int:
    """Examples computed so far, with padding."""
    return self._gradient.computed

  def __call__(
    self, params: Any, ranges: Ranges, **of_call: Any
  ) -> tuple[Payload, jax.Array]:
    """Returns what is pushed, and the loss summed over the examples."""
    return self._gradient(params, ranges, **of_call)

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
      self.stream(params, ranges, **stamp, sink=_Nowhere())
    gradient.computed = before

  def stream(
    self,
    params: Any,
    ranges: Ranges,
    *,
    worker: int,
    iteration: int,
    sink: LeafSink,
    scale: float = 1.0,
  ) -> tuple[Any, jax.Array]:
    """Hands out the gradient; returns the statistics and the loss, summed.

    Args:
      params: Pytree of arrays.
      ranges: Positions of the examples in the stream.
      worker: Whose iteration this is, for its random key.
      iteration: Which one.
      sink: Gets each leaf once, by its index, from any thread.
      scale: As of `TaskGradient`.

    Raises:
      Exception: What `sink` raises, which gets no other leaf from then on.
    """
    stamp = {'worker': worker, 'iteration': iteration}
    parts = self._gradient.parts(ranges, **stamp, scale=scale)
    if self.overlap == Overlap.BACKWARD:
      return self._overlapped(params, parts, sink)
    payload, loss = self._gradient.summed(params, parts)
    copies = self._copies(payload, loss)
    if self.overlap == Overlap.NONE:
      copies = iter([*copies])
    for leaf, array in copies:
      sink.put(leaf, array)
    return jax.block_until_ready((payload.stats, loss))

  def _copies(
    self, payload: Payload, loss: jax.Array
  ) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the gradient's leaves, each as soon as it is on the host.

    All copies are requested before the first one is waited for, in the order of
    the buckets, as a device carries them out one after the other.  Those of the
    statistics and the loss, which are asked for last, come last.
    """
    leaves = jax.tree.leaves(payload.gradient)
    order = [leaf for group in self._groups for leaf in group]
    for array in (
      *(leaves[leaf] for leaf in order),
      *jax.tree.leaves((payload.stats, loss)),
    ):
      array.copy_to_host_async()
    for leaf in order:
      yield leaf, np.asarray(leaves[leaf])

  def _overlapped(
    self, params: Any, parts: list[tuple[Any, ...]], sink: LeafSink
  ) -> tuple[Any, jax.Array]:
    *earlier, last = parts
    before = self._gradient.summed(params, earlier)
    sums = [] if before is None else jax.tree.leaves(before[0].gradient)
    sums = [np.asarray(leaf) for leaf in sums]
    if sums and not self._sums:
      self._sums = [np.empty_like(leaf) for leaf in sums]
    taken, errors = set(), []

    def take(leaf: int, array: np.ndarray) -> None:
      if errors or leaf in taken:
        return
      taken.add(leaf)
      try:
        if sums:
          array = np.add(sums[leaf], array, out=self._sums[leaf])
        sink.put(leaf, array)
      # XLA would make something else of it, whatever it is.
      except BaseException as error:
        errors.append(error)

    self._take = take
    # Returning the gradient, too, lets XLA compute more at a time.
    payload, loss = jax.block_until_ready(self._shown(params, *last))
    self.early += len(taken)
    # Of parameters that the task does not use.
    for leaf, array in self._copies(payload, loss):
      take(leaf, array)
    if errors:
      raise errors[0]
    if before is None:
      return payload.stats, loss
    sums_before = before[0].stats, before[1]
    return jax.block_until_ready(
      self._gradient.add(sums_before, (payload.stats, loss))
    )

  def _show(self, params: Any, *part: Any) -> tuple[Payload, jax.Array]:
    """Computes a micro-batch, and shows its gradient meanwhile."""
    return self._gradient.part(params, *part, seen=self._seen)

  def _seen(self, params: Any) -> Any:
    leaves, tree = jax.tree.flatten(params)
    for group in self._groups:
      arrays = self._identity(group)(*(leaves[leaf] for leaf in group))
      for leaf, array in zip(group, arrays, strict=True):
        leaves[leaf] = array
    return jax.tree.unflatten(tree, leaves)

  def _identity(self, group: Sequence[int]) -> Callable[..., Any]:
    """Returns what shows the cotangents of a group of leaves."""

    def show(context: Any, results: Any, *cotangents: Any) -> None:
      # No function of jax.numpy may be called here.
      for leaf, cotangent in zip(group, cotangents, strict=True):
        self._take(leaf, np.asarray(cotangent))

    @jax.custom_vjp
    def identity(*arrays: jax.Array) -> tuple[jax.Array, ...]:
      return arrays

    def backward(_: None, cotangents: Any) -> tuple[jax.Array, ...]:
      buffer_callback(show, (), has_side_effect=True)(*cotangents)
      return tuple(cotangents)

    identity.defvjp(lambda *arrays: (arrays, None), backward)
    return identity


class _Nowhere:
  """Takes what a warm-up computes."""

  def put(self, leaf: int, array: np.ndarray) -> None:
    """Forgets it."""
