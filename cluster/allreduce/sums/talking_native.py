"""Sums by conversations, of XLA's collectives."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cluster.allreduce.sums import native
from cluster.allreduce.sums.memory import Memory, Talking
from cluster.allreduce.sums.native import AXIS, OPTIONS, NativeSumming
from cluster.network.messages import ConnectMembers
from learning.learning import Gradient, Learner
from learning.pool import FLOAT32, Pool
from learning.scaling import factor
from wire.codec import Payload, Room
from wire.talks import Talks


class TalkingNative(NativeSumming):
  """A NativeSumming whose workers say several arrays, one after the other.

  Statistics and books are summed with the last of them.
  """

  memory: Memory

  def __init__(
    self,
    gradient: Gradient,
    pool: Pool,
    like: Payload,
    *,
    talks: Talks,
    index: int,
    **of_native: Any,
  ):
    """Compiles nothing yet.

    Args:
      gradient: Computes.
      pool: What lies where.
      like: What a payload looks like.
      talks: The conversations.
      index: Of this worker.
      **of_native: As of `NativeSumming`.
    """
    super().__init__(gradient, pool, like, **of_native)
    self.memory = Memory(talks, pool, index, self.placed)
    self._looks |= talks.overflows
    self._stage, self._scale = 0, 1.0
    self._whole, self._leaves = jax.jit(pool.whole), jax.jit(pool.leaves)
    self._each = _sums(self._devices)
    self._ended: Talking | None = None

  def warm_up(
    self, learner: Learner, examples: int | None, *, changing: bool
  ) -> None:
    """Compiles all that can be without the others."""
    super().warm_up(learner, examples, changing=changing)
    vector = self._whole(self._like.gradient)
    for summed in self.memory.talks.warm_up(vector):
      gradient, arrived = self._payload_of(summed)
      learner.warm_up(self._like._replace(gradient=gradient, arrived=arrived))

  def form(self, order: ConnectMembers, limit_s: float) -> None:
    """Compiles the sums, with all others, who do the same now."""
    del order, limit_s
    zeros = self.placed(jax.tree.map(np.zeros_like, self._like))
    numbers = np.zeros_like(self._numbers)
    for stage in range(len(self.memory.talks.said)):
      for scale in (1.0, 2.0):
        payload, *_ = self._talk(zeros, numbers, stage, scale)
        self._is_finite(payload)
    self._collected()

  def compute(
    self, version: int, learner: Learner, *args: Any, stage: int, **of_all: Any
  ) -> tuple[float | None, bool]:
    """Computes a gradient; arguments as of NativeSumming."""
    self._stage, self._scale = stage, factor(learner.scaling)
    return super().compute(version, learner, *args, stage=stage, **of_all)

  def total(self) -> tuple[list[float], bool]:
    """Converses until everything is summed."""
    payload, books, self._ended = self._talk(
      self._payload, self._numbers, self._stage, self._scale
    )
    self._payload = payload
    finite = not self._looks or bool(self._is_finite(payload))
    return books.tolist(), finite

  def apply(self, learner: Learner, *, examples: int, pushes: int) -> None:
    """Has the learner apply the sum."""
    super().apply(learner, examples=examples, pushes=pushes)
    if self._ended is not None:
      self._ended.end(learner.version)

  def collect(self, version: int) -> None:
    """Sums what all keep."""
    del version
    self.memory.total = self._collected()

  def _collected(self) -> np.ndarray:
    (total,) = self._each([self.placed(self.memory.kept())], (FLOAT32,))
    return np.asarray(total)

  def _talk(
    self, payload: Payload, books: np.ndarray, stage: int, scale: float
  ) -> tuple[Payload, np.ndarray, Talking]:
    """Returns the sums of all, and the conversation."""
    rest, tree = jax.tree.flatten((payload.stats, self.placed(books)))
    vector = self._whole(payload.gradient)
    talking = self.memory.talk(vector, stage=stage, scale=scale, room=Room())
    said, others = talking.begin(), rest
    count, dtype = self.memory.talks.halves[stage]
    while said is not None:
      parts, dtypes = [said], [FLOAT32]
      if talking.last and count:
        parts, dtypes = [said[:count], said[count:]], [dtype, FLOAT32]
      own = len(parts)
      if talking.last:
        parts, dtypes = [*parts, *rest], [*dtypes, *(FLOAT32 for _ in rest)]
      sums = self._each(parts, tuple(dtypes))
      heard, others = sums[:own], sums[own:]
      said = talking.hear(jnp.concatenate(heard) if own > 1 else heard[0])
    stats, numbers = jax.tree.unflatten(tree, others)
    gradient, arrived = self._payload_of(talking.summed)
    return Payload(gradient, stats, arrived), np.asarray(numbers), talking

  def _payload_of(self, summed: Any) -> tuple[Any, Any]:
    arrived = summed.arrived
    some = not isinstance(arrived, tuple)
    return self._leaves(summed.vector), self._leaves(arrived) if some else ()


def _sums(
  each: Sequence[jax.Device],
) -> Callable[[Sequence[jax.Array], Sequence[np.dtype]], list[jax.Array]]:
  """Returns what sums arrays of all workers, and of which dtype each travels.

  Each in one collective, or in two if it is rounded.
  """
  mesh = Mesh(np.array(each), (AXIS,))
  split = NamedSharding(mesh, PartitionSpec(AXIS))

  @functools.partial(
    jax.jit, static_argnums=1, donate_argnums=0, compiler_options=OPTIONS
  )
  def program(rows: Any, dtypes: Sequence[np.dtype]) -> Any:
    return jax.shard_map(
      lambda parts: [
        native.summed(part, dtype, len(each))
        for part, dtype in zip(parts, dtypes, strict=True)
      ],
      mesh=mesh,
      in_specs=PartitionSpec(AXIS),
      out_specs=PartitionSpec(AXIS),
    )(rows)

  row = jax.jit(
    lambda part, dtype: native.narrowed(part[None], dtype), static_argnums=1
  )
  heard = jax.jit(
    lambda rows, dtypes: [
      native.widened(row[0], dtype)
      for row, dtype in zip(rows, dtypes, strict=True)
    ],
    static_argnums=1,
  )

  def summed(
    parts: Sequence[jax.Array], dtypes: Sequence[np.dtype]
  ) -> list[jax.Array]:
    rows = [
      jax.make_array_from_single_device_arrays(
        (len(each), *part.shape), split, [row(part, dtype)]
      )
      for part, dtype in zip(parts, dtypes, strict=True)
    ]
    with native.together():
      totals = jax.block_until_ready(program(rows, dtypes))
    return heard([total.addressable_data(0) for total in totals], dtypes)

  return summed
