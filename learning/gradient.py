"""Gradients of batches of any size, from a fixed set of compiled shapes.

A batch is computed as a sum over micro-batches whose sizes are powers of two,
compiled before the run starts.  At most 1/8 of the computed examples are
padding, which is masked: a batch of 33 is 32 + 1, a batch of 63 is 64.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from configs.checks import require
from data.dataset import Split
from data.stream import Ranges, size
from learning import placement, warm_up
from learning.evaluation import check_each, padded
from learning.gradient_buffer import backward_order
from learning.iteration import Iteration
from models.task import Task
from wire.codec import Payload


def micro_batches(examples: int, *, largest: int) -> list[tuple[int, int]]:
  """Returns the micro-batches into which a batch is divided.

  They are the fewest that keep padding within 1/8 of the computed examples,
  and among these those with the least padding.

  Args:
    examples: Examples of the batch, at least 1.
    largest: Examples of the largest micro-batch, a power of two.

  Returns:
    Pairs of computed examples (with padding) and real ones, largest first; only
    the last may be padded.

  Example:
    >>> micro_batches(33, largest=64), micro_batches(63, largest=64)
    ([(32, 32), (1, 1)], [(64, 63)])
  """
  totals = range(examples, examples * 8 // 7 + 1)
  total = min(totals, key=lambda t: t // largest + (t % largest).bit_count())
  sizes = [largest] * (total // largest)
  rest = total % largest
  sizes += [1 << b for b in reversed(range(rest.bit_length())) if rest >> b & 1]
  real = [*sizes[:-1], sizes[-1] - (total - examples)]
  return list(zip(sizes, real, strict=True))


class Spread(Protocol):
  """Computation of micro-batches on several devices, which share each one."""

  def copies(self, params: Any) -> Any:
    """Returns the parameters on the devices where calls need them."""

  def bind(self, leaf: Any) -> Any:
    """Returns an array on the device of pushes, anything else unchanged."""

  def __call__(
    self, copies: Any, inputs: np.ndarray, targets: np.ndarray, *rest: Any
  ) -> Any:
    """Returns the result of `TaskGradient.part`."""


_STEP_BITS = 16  # Of the number of a micro-batch within its local step.

# Inputs, targets, and the number of real examples.
_MicroBatch = tuple[np.ndarray, np.ndarray, int]


class TaskGradient:
  """The gradient of a task's loss, summed over the examples of a batch.

  Where the task weighs, an example's loss counts as the share of its targets
  that count: the sum over `weigh` is then the mean over all of these targets,
  however a batch was divided.  Batch statistics are those of each micro-batch,
  averaged over the examples.

  Attributes:
    task: Task that is learned.
    train: Training examples.
    computed: Number of examples computed so far, with padding.
    add: Compiled `add_trees`, which reuses the memory of its first argument.

  Args:
    indices: Function from positions of the stream to examples, as
      `Stream.indices`.
    micro_batch: Examples of the largest micro-batch, a power of two.
    seed: Seed of the random keys, one for each iteration of each worker.
    devices: Devices, a power of two of them, that split every micro-batch.
      The first computes micro-batches that are smaller than their number.
      With fewer than two devices, JAX chooses the device.
    scaled: Whether losses have a scale: see `learning.scaling`.
    matmul: Precision of products and convolutions of float32, as
      `jax.default_matmul_precision` takes it.
    spread: Returns the computation on several devices, given `part` and
      `others`, the number of its arguments after the targets; None for
      devices of this process alone.

  Raises:
    ValueError: If `micro_batch` is not a power of two, or if the number of
      devices is not or is larger.
  """

  def __init__(
    self,
    task: Task,
    train: Split,
    indices: Callable[[Ranges], np.ndarray],
    *,
    micro_batch: int,
    seed: int,
    devices: Sequence[jax.Device] = (),
    scaled: bool = False,
    matmul: str | None = 'float32',
    spread: Callable[..., Spread] | None = None,
  ):
    if micro_batch < 1 or micro_batch & (micro_batch - 1):
      raise ValueError(
        f'micro_batch: expected a power of two, got {micro_batch}.'
      )
    count = len(devices)
    most = f'a power of two up to micro_batch, {micro_batch}'
    valid = not count & (count - 1) and count <= micro_batch
    require(valid, 'devices', most, count)
    self.task = task
    self.train = train
    self.computed = 0
    # Micro-batches that `prepare` has gathered.
    self._gathered: dict[Ranges, list[_MicroBatch]] = {}
    self._indices = indices
    self._micro_batch = micro_batch
    self._root = jax.random.key(seed)
    self._scaled = scaled
    self._matmul = matmul
    self._spread: Spread | None = None
    self._part: Callable[..., Any] = jax.jit(self.part)
    self._shares_on_host = jax.jit(self._shares)
    if count > 1:
      spread = spread or functools.partial(_Spread, devices=devices)
      self._spread = spread(self.part, others=2 + scaled)
      self._part = self._spread
    self.add = jax.jit(add_trees, donate_argnums=0)

  def __call__(
    self,
    params: Any,
    iteration: Iteration,
    *,
    step: int = 0,
  ) -> tuple[Payload, jax.Array]:
    """Returns a worker's gradient, and its loss: see `Pushes`.

    Args:
      params: Pytree of arrays.
      iteration: The iteration; its scale is 1 unless `scaled`.
      step: Number of the local step, for its random key.
    """
    parts = self.parts(iteration, step=step)
    found = self.sum_parts(params, parts)
    if found is None:
      raise ValueError('ranges: expected at least one example, got none.')
    return found

  def init(self, params: Any) -> tuple[()]:
    del params
    return ()

  def push(
    self, params: Any, iteration: Iteration, state: Any
  ) -> tuple[Payload, jax.Array, Any]:
    payload, loss = self(params, iteration)
    return payload, loss, state

  @property
  def is_spread(self) -> bool:
    """True if several devices compute each gradient."""
    return self._spread is not None

  def part(
    self,
    params: Any,
    inputs: jax.Array,
    targets: jax.Array,
    real: jax.Array,
    stamp: jax.Array,
    scale: jax.Array | None = None,
    *,
    seen: Callable[[Any], Any] = lambda params: params,
  ) -> tuple[Payload, jax.Array]:
    """Returns payload and loss of a micro-batch, weighted sums over it; pure.

    Args:
      params: Pytree of arrays.
      inputs: Inputs of the examples, [B, ...].
      targets: Targets of the examples, [B, ...].
      real: Number of the B examples that are no padding.
      stamp: Worker, iteration, and local step and micro-batch, uint32 [3], for
        the random key.
      scale: Factor of the gradient, float32; None for 1.
      seen: Function of the parameters whose result the task receives.
    """
    key = self._root
    for number in range(3):
      key = jax.random.fold_in(key, stamp[number])
    mask = jnp.arange(len(targets)) < real

    def total(params: Any) -> tuple[jax.Array, Any]:
      each, stats = self.task.loss(seen(params), inputs, targets, key)
      check_each('task.loss', each, mask)
      if self.task.weigh is not None:
        each *= self._shares(targets)
      loss = jnp.sum(jnp.where(mask, each, 0.0))
      return loss if scale is None else loss * scale, (loss, stats)

    with jax.default_matmul_precision(self._matmul):
      gradient, (loss, stats) = jax.grad(total, has_aux=True)(params)
    stats = jax.tree.map(lambda s: s * real, stats)
    return Payload(gradient, stats), loss

  def parts(
    self, iteration: Iteration, *, step: int = 0
  ) -> list[tuple[Any, ...]]:
    """Returns the arguments of `part` but `params`, for each micro-batch.

    Counts their examples in `computed`.  Examples that `prepare` has gathered
    for this iteration are used and dropped; others are gathered now.

    Args:
      iteration: The iteration.
      step: Index of the local step that the micro-batches belong to.
    """
    last = (np.float32(iteration.scale),) if self._scaled else ()
    micro_batches = self._gathered.pop(iteration.ranges, None)
    if micro_batches is None:
      micro_batches = list(self._gather(iteration.ranges))
    stamp = iteration.worker, iteration.number
    self.computed += sum(len(targets) for _, targets, _ in micro_batches)
    return [
      (
        inputs,
        targets,
        np.int32(real),
        np.array([*stamp, number], np.uint32),
        *last,
      )
      for number, (inputs, targets, real) in enumerate(
        micro_batches, start=step << _STEP_BITS
      )
    ]

  def sum_parts(
    self, params: Any, parts: Sequence[tuple[Any, ...]]
  ) -> tuple[Payload, jax.Array] | None:
    """Returns payload and loss summed over micro-batches; None without any.

    Args:
      params: Pytree of arrays.
      parts: Results of `parts`.
    """
    found = None
    if self._spread and parts:
      params = self._spread.copies(params)
    for part in parts:
      one = self._part(params, *part)
      found = one if found is None else self.add(found, one)
    return found

  def order(self, params: Any) -> tuple[int, ...]:
    """Returns the order in which the backward pass computes the leaves."""
    inputs, targets = (
      jax.ShapeDtypeStruct(
        (self._micro_batch, *array.shape[1:]),
        jax.dtypes.canonicalize_dtype(array.dtype),
      )
      for array in self.train
    )

    def gradient(*args: Any) -> Any:
      return self.part(*args)[0].gradient

    stamp = np.zeros(3, np.uint32)
    return backward_order(gradient, params, inputs, targets, np.int32(1), stamp)

  def prepare(self, *batches: Ranges) -> None:
    """Gathers the examples of the next calls, and drops those of others.

    Args:
      *batches: Positions of the examples of each call.
    """
    before = self._gathered
    self._gathered = {
      ranges: before.get(ranges) or list(self._gather(ranges))
      for ranges in batches
    }

  def _gather(self, ranges: Ranges) -> Iterator[_MicroBatch]:
    indices = self._indices(ranges)
    for start, computed, real in _spans(len(indices), self._micro_batch):
      rows = indices[start : start + real]
      yield (
        padded(self.train.inputs[rows], computed),
        padded(self.train.targets[rows], computed),
        real,
      )

  def weigh(self, ranges: Ranges) -> float:
    """Returns the weight of examples, in examples: see `Computation`.

    It is rounded to float32, in which step statistics travel.

    Raises:
      ValueError: If the task gives an example less weight than 0, or more than
        it has targets.
    """
    if self.task.weigh is None:
      return size(ranges)
    targets = self.train.targets[self._indices(ranges)]
    total = 0.0
    for start in range(0, len(targets), self._micro_batch):
      part = targets[start : start + self._micro_batch]
      with placement.on_cpu():
        shares = self._shares_on_host(padded(part, self._micro_batch))
      shares = np.asarray(shares, np.float64)[: len(part)]
      if not ((shares >= 0) & (shares <= 1)).all():
        count = math.prod(targets.shape[1:])
        raise ValueError(
          f'task.weigh: expected 0 to {count}, the number of targets of an '
          f'example, got {(shares * count).tolist()}.'
        )
      total += float(shares.sum())
    return float(np.float32(total))

  def _shares(self, targets: jax.Array) -> jax.Array:
    """Returns the share of each example's targets that count; traceable."""
    if self.task.weigh is None:
      return jnp.ones(len(targets))
    found = self.task.weigh(targets)
    check_each('task.weigh', found, jnp.ones(len(targets), bool))
    return found / math.prod(targets.shape[1:])

  def place(self, tree: Any) -> Any:
    if not self._spread:
      return tree
    return jax.tree.map(self._spread.bind, tree)

  def warm_up(
    self, params: Any, examples: int | None, *, changing: bool
  ) -> list[Payload]:
    self.weigh(((0, 1),))
    batches = self.batches(examples, changing=changing)
    return warm_up.compute_pushes(self, params, (), batches)

  def batches(self, examples: int | None, *, changing: bool) -> list[int]:
    """Returns batch sizes that together use every program of a run.

    Computing one gradient of each size compiles all programs, so that none is
    compiled later.

    Args:
      examples: Examples of a batch, the largest one if batches change; None if
        there is no bound.
      changing: Whether later batches may be smaller.

    Raises:
      ValueError: If `examples` is None although batches do not change.
    """
    if not changing:
      if examples is None:
        raise ValueError(
          'examples: expected the size of all batches, got None.'
        )
      return [examples]
    most = self._micro_batch
    if examples is not None:
      most = min(most, examples * 8 // 7)  # With padding.
    powers = [1 << bit for bit in range(most.bit_length())]
    return [*powers, 3]  # In two parts or more, which are added.


class _Spread:
  """Computation of micro-batches on several devices, which share each one."""

  def __init__(
    self,
    part: Callable[..., Any],
    devices: Sequence[jax.Device],
    *,
    others: int,
  ):
    mesh = Mesh(np.array(devices), ('examples',))
    split = NamedSharding(mesh, PartitionSpec('examples'))
    self._split = split
    self._everywhere = NamedSharding(mesh, PartitionSpec())
    self._first, self._count = devices[0], len(devices)
    self._one = jax.jit(part)
    self._all = jax.jit(
      part,
      in_shardings=(self._everywhere, split, split, *[None] * others),
      out_shardings=self._everywhere,
    )

  def copies(self, params: Any) -> tuple[Any, Any]:
    return (
      jax.device_put(params, self._first),
      jax.device_put(params, self._everywhere),
    )

  def bind(self, leaf: Any) -> Any:
    if isinstance(leaf, jax.Array | np.ndarray):
      return jax.device_put(leaf, self._first)
    return leaf

  def __call__(
    self,
    copies: tuple[Any, Any],
    inputs: np.ndarray,
    targets: np.ndarray,
    *rest: Any,
  ) -> Any:
    on_first, on_all = copies
    if len(inputs) < self._count:
      return self._one(on_first, inputs, targets, *rest)
    inputs, targets = jax.device_put((inputs, targets), self._split)
    # With several processes, XLA takes no arrays of the host.
    rest = jax.device_put(rest, self._everywhere)
    summed = self._all(on_all, inputs, targets, *rest)
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), summed)


def add_trees(one: Any, other: Any) -> Any:
  """Returns the sum of two pytrees of the same structure."""
  return jax.tree.map(jnp.add, one, other)


def _spans(examples: int, largest: int) -> Iterator[tuple[int, int, int]]:
  """Yields start, computed examples and real ones of each micro-batch."""
  start = 0
  for computed, real in micro_batches(examples, largest=largest):
    yield start, computed, real
    start += real
