"""Multi-round allreduce of gradients by XLA's collectives."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cluster.allreduce.sums import native
from cluster.allreduce.sums.codec_state import CodecState, WorkerRounds
from cluster.allreduce.sums.native import AXIS, OPTIONS, NativeReducer
from cluster.network.messages import ConnectMembers
from learning import warm_up
from learning.iteration import Iteration
from learning.layout import FLOAT32, Layout
from learning.learning import Gradient, Learner
from wire.codec import PartialVector, Payload, Workspace
from wire.multi_round import MultiRoundAllreduce


class NativeMultiRoundReducer(NativeReducer):
  """A NativeReducer that sums several contributions, one after the other.

  Statistics and step statistics are summed with the last one.
  """

  codec_state: CodecState

  def __init__(
    self,
    gradient: Gradient,
    layout: Layout,
    like: Payload,
    *,
    multi_round: MultiRoundAllreduce,
    index: int,
    **native_arguments: Any,
  ):
    """Creates a reducer; compiles nothing yet.

    Args:
      gradient: Computes gradients.
      layout: Layout of gradient, statistics and step statistics.
      like: Payload of the shapes of all payloads.
      multi_round: The allreduce.
      index: Index of this worker.
      **native_arguments: As of `NativeReducer`.
    """
    super().__init__(gradient, layout, like, **native_arguments)
    self._multi_round = multi_round
    self.codec_state = CodecState(multi_round, layout, index, self.place)
    self._checks_sums |= multi_round.overflows
    self._stage, self._scale = 0, 1.0
    self._to_vector = jax.jit(layout.flatten)
    self._to_leaves = jax.jit(layout.unflatten)
    self._sum_arrays = _compiled_sum(self._devices)
    self._ended: WorkerRounds | None = None

  def warm_up(
    self, learner: Learner, examples: int | None, *, changing: bool
  ) -> None:
    """Compiles everything that needs no other worker."""
    super().warm_up(learner, examples, changing=changing)
    vector = self._to_vector(self._like.gradient)
    for reduced in self._multi_round.warm_up(vector):
      gradient, arrived = self._as_leaves(reduced)
      like = self._like._replace(gradient=gradient, arrived=arrived)
      warm_up.apply_updates(learner, like, adds=False)

  def form(self, order: ConnectMembers, limit_s: float) -> None:
    """Compiles the sums, while all other workers do the same."""
    del order, limit_s
    zeros = self.place(jax.tree.map(np.zeros_like, self._like))
    numbers = np.zeros_like(self._numbers)
    for stage in range(len(self._multi_round.codecs)):
      for scale in (1.0, 2.0):
        payload, *_ = self.reduce(zeros, numbers, stage, scale)
        self._is_finite(payload)
    self._sum_residuals()

  def compute(
    self, learner: Learner, iteration: Iteration, *, stage: int, least_s: float
  ) -> tuple[float | None, bool]:
    """Computes a gradient."""
    self._stage, self._scale = stage, iteration.scale
    return super().compute(learner, iteration, stage=stage, least_s=least_s)

  def total(self) -> tuple[list[float], bool]:
    """Runs all rounds of the allreduce; returns as `Reducer.total`."""
    payload, numbers, self._ended = self.reduce(
      self._payload, self._numbers, self._stage, self._scale
    )
    self._payload = payload
    finite = not self._checks_sums or bool(self._is_finite(payload))
    return numbers.tolist(), finite

  def apply(
    self, learner: Learner, *, examples: int, weight: float, pushes: int
  ) -> None:
    """Applies the sum to the learner."""
    super().apply(learner, examples=examples, weight=weight, pushes=pushes)
    if self._ended is not None:
      self._ended.finish(learner.version)

  def collect(self, version: int) -> None:
    """Sums all workers' residuals into `codec_state.residual_sum`."""
    del version
    self.codec_state.residual_sum = self._sum_residuals()

  def reduce(
    self, payload: Payload, numbers: np.ndarray, stage: int, scale: float
  ) -> tuple[Payload, np.ndarray, WorkerRounds]:
    """Allreduces a payload and step statistics of all workers.

    Args:
      payload: Payload of this worker, on its device.
      numbers: Step statistics of this worker, float32.
      stage: Stage of the wire.
      scale: Power of two that gradients are multiplied by.

    Returns:
      The sums, and the worker's part of the allreduce, which has ended.
    """
    rest, tree = jax.tree.flatten((payload.stats, self.place(numbers)))
    vector = self._to_vector(payload.gradient)
    rounds = self.codec_state.start(
      vector, stage=stage, scale=scale, workspace=Workspace()
    )
    contribution, others = rounds.first_contribution(), rest
    count, dtype = self._multi_round.half_precision[stage]
    while contribution is not None:
      parts, dtypes = [contribution], [FLOAT32]
      if rounds.is_last and count:
        parts = [contribution[:count], contribution[count:]]
        dtypes = [dtype, FLOAT32]
      own = len(parts)
      if rounds.is_last:
        parts, dtypes = [*parts, *rest], [*dtypes, *(FLOAT32 for _ in rest)]
      sums = self._sum_arrays(parts, tuple(dtypes))
      totals, others = sums[:own], sums[own:]
      contribution = rounds.next_contribution(
        jnp.concatenate(totals) if own > 1 else totals[0]
      )
    stats, summed_numbers = jax.tree.unflatten(tree, others)
    gradient, arrived = self._as_leaves(rounds.reduced)
    reduced = Payload(gradient, stats, arrived)
    return reduced, np.asarray(summed_numbers), rounds

  def _sum_residuals(self) -> np.ndarray:
    residual = self.place(self.codec_state.flat_residual())
    (total,) = self._sum_arrays([residual], (FLOAT32,))
    return np.asarray(total)

  def _as_leaves(self, reduced: PartialVector) -> tuple[Any, Any]:
    """Returns trees: the gradient, and which numbers arrived (() for all)."""
    masked = not isinstance(reduced.arrived, tuple)
    arrived = self._to_leaves(reduced.arrived) if masked else ()
    return self._to_leaves(reduced.vector), arrived


def _compiled_sum(
  devices: Sequence[jax.Device],
) -> Callable[[Sequence[jax.Array], Sequence[np.dtype]], list[jax.Array]]:
  """Returns a function that sums arrays of all workers.

  It takes arrays and the dtypes that they are sent as.  Each array takes one
  collective, or two if it is rounded.
  """
  count = len(devices)
  mesh = Mesh(np.array(devices), (AXIS,))
  split = NamedSharding(mesh, PartitionSpec(AXIS))

  @functools.partial(
    jax.jit, static_argnums=1, donate_argnums=0, compiler_options=OPTIONS
  )
  def program(rows: Any, dtypes: Sequence[np.dtype]) -> Any:
    return jax.shard_map(
      lambda parts: [
        native.sum_over_workers(part, dtype, count)
        for part, dtype in zip(parts, dtypes, strict=True)
      ],
      mesh=mesh,
      in_specs=PartitionSpec(AXIS),
      out_specs=PartitionSpec(AXIS),
    )(rows)

  to_row = jax.jit(
    lambda part, dtype: native.narrow(part[None], dtype), static_argnums=1
  )
  from_rows = jax.jit(
    lambda rows, dtypes: [
      native.widen(row[0], dtype)
      for row, dtype in zip(rows, dtypes, strict=True)
    ],
    static_argnums=1,
  )

  def sum_arrays(
    parts: Sequence[jax.Array], dtypes: Sequence[np.dtype]
  ) -> list[jax.Array]:
    rows = [
      jax.make_array_from_single_device_arrays(
        (count, *part.shape), split, [to_row(part, dtype)]
      )
      for part, dtype in zip(parts, dtypes, strict=True)
    ]
    with native.raising_closed():
      totals = jax.block_until_ready(program(rows, dtypes))
    sums: list[jax.Array] = from_rows(
      [total.addressable_data(0) for total in totals], dtypes
    )
    return sums

  return sum_arrays
