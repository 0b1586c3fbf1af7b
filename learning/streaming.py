"""Gradients whose leaves are handed over bucket by bucket, for sending.

On one CPU device this happens during the backward pass.  The parameters of each
bucket pass through an identity whose derivative calls back with their
cotangents, which are leaves of the gradient: in a thread of XLA, in its memory,
as soon as all of the bucket have been computed.  A callback takes about 0.1 ms
of processor time, so that one per bucket costs less than one per leaf, and
delays none.

On an accelerator all leaves exist once its program ends.  Copies to pinned
memory of the host are started in the order of the leaves' positions, and each
leaf is handed over when its copy has landed, while later ones are still copied.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

from data.stream import Ranges
from learning.device_copies import DeviceCopies, find_copies
from learning.gradient import TaskGradient
from learning.gradient_buffer import Sink
from learning.island import IslandPushes
from learning.iteration import Iteration
from learning.learning import Overlap
from wire.codec import Payload


def find_overlap(
  gradient: TaskGradient | IslandPushes, *, wanted: bool
) -> tuple[Overlap, str]:
  """Returns the work that sending overlaps with, and a sentence for the log.

  Args:
    gradient: The gradient that is sent.
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
      f'later buckets are still copied from the accelerator ({platform}); sums '
      'are copied back while later ones are still computed.'
    )
  if gradient.is_spread:
    return Overlap.NONE, (
      'Gradients are sent after the backward pass: several devices of the CPU '
      'compute them (config.cluster.devices_per_worker, hosts_per_worker).'
    )
  return Overlap.BACKWARD, (
    'Gradients are sent bucket by bucket while the backward pass runs.'
  )


class StreamingGradient:
  """A `TaskGradient` that hands over its leaves as soon as they are final.

  They equal those that the `TaskGradient` returns, bit for bit.

  Attributes:
    overlap: Work that is still running while leaves are handed over.
    streamed: Number of leaves handed over during backward passes so far.

  Args:
    gradient: The gradient that is computed.
    groups: Indices of leaves that are handed over together, as
      `Bucket.leaves`.
    copies: Copies from and to the device; None for the fastest ones.
  """

  def __init__(
    self,
    gradient: TaskGradient | IslandPushes,
    groups: Sequence[Sequence[int]],
    *,
    overlap: bool,
    copies: DeviceCopies | None = None,
  ):
    self.overlap, _ = find_overlap(gradient, wanted=overlap)
    self._copies = copies or find_copies()
    self.streamed = 0
    self._gradient = gradient
    self._groups = groups
    self._streaming: Callable[..., Any] = jax.jit(
      functools.partial(self._compute_streaming, gradient.part)
    )
    self._take: Callable[[int, np.ndarray], None] = _ignore
    self._sums: list[np.ndarray] = []

  @property
  def computed(self) -> int:
    return self._gradient.computed

  @property
  def copies(self) -> DeviceCopies | None:
    return self._copies if self.overlap == Overlap.COPIES else None

  def prepare(self, ranges: Ranges) -> None:
    self._gradient.prepare(ranges)

  def weigh(self, ranges: Ranges) -> float:
    return self._gradient.weigh(ranges)

  def place(self, tree: Any) -> Any:
    return self._gradient.place(tree)

  def warm_up(
    self, params: Any, examples: int | None, *, changing: bool
  ) -> list[Payload]:
    gradient = self._gradient
    gradient.weigh(((0, 1),))
    if changing:  # Only the last micro-batch of a batch is streamed.
      gradient.warm_up(params, examples, changing=True)
    for batch in gradient.batches(examples, changing=changing):
      self.stream(params, Iteration(((0, batch),), 0, 0), _ignore)
    return []

  def stream(
    self, params: Any, iteration: Iteration, sink: Sink
  ) -> tuple[Any, jax.Array]:
    """Computes a gradient, and hands its leaves to a sink.

    The arguments are those of `Streaming`.

    Raises:
      Exception: The error that the sink has raised; it receives no other leaf.
    """
    gradient = self._gradient
    if self.overlap == Overlap.BACKWARD and isinstance(gradient, TaskGradient):
      parts = gradient.parts(iteration)
      return self._compute_overlapping(gradient, params, parts, sink)
    payload, loss = gradient(params, iteration)
    leaves = self._copied_leaves(payload, loss)
    if self.overlap == Overlap.NONE:
      leaves = iter([*leaves])
    for leaf, array in leaves:
      sink(leaf, array)
    jax.block_until_ready((payload.stats, loss))
    return payload.stats, loss

  def _copied_leaves(
    self, payload: Payload, loss: jax.Array
  ) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the gradient's leaves, each as soon as it is on the host."""
    # A device makes copies one after the other: all are started first, in the
    # order of the buckets; statistics and loss come last.
    leaves = jax.tree.leaves(payload.gradient)
    order = [leaf for group in self._groups for leaf in group]
    copies = self._copies.start_to_host([leaves[leaf] for leaf in order])
    for array in jax.tree.leaves((payload.stats, loss)):
      array.copy_to_host_async()
    for leaf, copy in zip(order, copies, strict=True):
      yield leaf, self._copies.wait_for_host(copy)

  def _compute_overlapping(
    self,
    gradient: TaskGradient,
    params: Any,
    parts: list[tuple[Any, ...]],
    sink: Sink,
  ) -> tuple[Any, jax.Array]:
    *earlier, last = parts
    before = gradient.sum_parts(params, earlier)
    sums = [] if before is None else jax.tree.leaves(before[0].gradient)
    sums = [np.asarray(leaf) for leaf in sums]
    if sums and not self._sums:
      self._sums = [np.empty_like(leaf) for leaf in sums]
    taken: set[int] = set()
    errors: list[BaseException] = []

    def take(leaf: int, array: np.ndarray) -> None:
      if errors or leaf in taken:
        return
      taken.add(leaf)
      try:
        if sums:
          array = np.add(sums[leaf], array, out=self._sums[leaf])
        sink(leaf, array)
      # XLA would replace any exception by one of its own.
      except BaseException as error:
        errors.append(error)

    self._take = take
    # As the gradient is a result, too, XLA fuses more of its computation.
    payload, loss = jax.block_until_ready(self._streaming(params, *last))
    self.streamed += len(taken)
    # Parameters that the task does not use have no callback.
    for leaf, array in self._copied_leaves(payload, loss):
      take(leaf, array)
    if errors:
      raise errors[0]
    if before is None:
      return payload.stats, loss
    sums_before = before[0].stats, before[1]
    stats, loss = jax.block_until_ready(
      gradient.add(sums_before, (payload.stats, loss))
    )
    return stats, loss

  def _compute_streaming(
    self, compute: Callable[..., Any], params: Any, *part: Any
  ) -> Any:
    """Computes a micro-batch, with a callback for each bucket."""
    return compute(params, *part, seen=self._with_callbacks)

  def _with_callbacks(self, params: Any) -> Any:
    """Returns the parameters, whose cotangents are given to callbacks."""
    leaves, tree = jax.tree.flatten(params)
    for group in self._groups:
      arrays = self._identity(group)(*(leaves[leaf] for leaf in group))
      for leaf, array in zip(group, arrays, strict=True):
        leaves[leaf] = array
    return jax.tree.unflatten(tree, leaves)

  def _identity(self, group: Sequence[int]) -> Callable[..., Any]:
    """Returns an identity of leaves whose derivative calls back."""

    def call_back(context: Any, results: Any, *cotangents: Any) -> None:
      # Functions of jax.numpy must not be called here.
      for leaf, cotangent in zip(group, cotangents, strict=True):
        self._take(leaf, np.asarray(cotangent))

    @jax.custom_vjp
    def identity(*arrays: jax.Array) -> tuple[jax.Array, ...]:
      return arrays

    def backward(_: None, cotangents: Any) -> tuple[jax.Array, ...]:
      buffer_callback(call_back, (), has_side_effect=True)(*cotangents)
      return tuple(cotangents)

    identity.defvjp(lambda *arrays: (arrays, None), backward)
    return identity


def _ignore(leaf: int, array: np.ndarray) -> None:
  """Receives the leaves of a warm-up."""
