"""Parameters, optimizer state, and sums of pushes that are not yet applied."""

import copy
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from configs import declared
from learning.gradient import add_trees
from learning.scaling import Scaling, factor
from learning.schedule import Schedule
from wire.codec import Payload

Reduction = Literal['sum', 'mean', 'barrier_mean']

# Decay of the running statistics by an update of X0 examples.
_STATS_DECAY = 0.9
# Attributes that change while a run proceeds.
_STATE = (
  'params',
  'stats',
  'version',
  'examples',
  'scaling',
  '_state',
  '_sums',
)


class TaskLearner:
  """A `Learner` of a model: see `learning.learning`.

  An update applies `tx` to the weighted mean gradient of the examples summed
  into it: an example weighs 1, or the share of its targets that count.  The
  result is multiplied by the learning rate and by the sum of weights over X0
  (reduction 'sum': the same displacement per example under every scheme), over
  n X0 ('mean'), or over X0 times the number of pushes ('barrier_mean': the
  pushes of a barrier are averaged, a single one counts in full).  Running
  statistics move towards the mean of the pushed ones, at a rate that depends on
  the number of examples, too.  An update of weight 0 has no mean: it
  changes neither parameters nor statistics nor the optimizer's state.

  Gradients may be multiplied by a power of two.  They are divided by it first,
  without rounding: each push when it is added, or, if all workers have the same
  `scaling`, their sum.

  Attributes:
    params: Pytree of arrays.  They are never changed in place, so that workers
      may continue to use a version that they have pulled.
    stats: Running statistics, a pytree of arrays.
    version: Number of updates applied or skipped.
    examples: Number of examples in applied updates.
    scaling: Loss scale of all sums, which follows updates and skips.  None if
      gradients are not scaled, or each push by its own scale.

  Args:
    tx: Optimizer with learning rate 1, with decay, clipping and momentum.
    schedule: Schedule of the learning rate.
    reduction: 'sum', 'mean' or 'barrier_mean'.
    num_workers: Number of workers n, as configured.
    worker_batch: Examples of a worker's batch X0, as configured.

  Raises:
    ValueError: If `reduction` is unknown.
  """

  has_model = True

  def __init__(
    self,
    *,
    params: Any,
    stats: Any,
    tx: optax.GradientTransformation,
    schedule: Schedule,
    reduction: Reduction,
    num_workers: int,
    worker_batch: int,
  ):
    declared.check('optimizer', reduction=reduction)
    self.params = params
    self.stats = stats
    self.version = 0
    self.examples = 0
    self.scaling: Scaling | None = None
    self._init = jax.jit(tx.init)
    self._state = self._init(params)
    # Sum, examples, weight and pushes of each update that is not yet applied.
    self._sums: dict[int, tuple[Payload, int, float, int]] = {}
    self._schedule = schedule
    self._unit = worker_batch * (num_workers if reduction == 'mean' else 1)
    self._averages = reduction == 'barrier_mean'
    self._worker_batch = worker_batch

    def apply(
      params: Any,
      stats: Any,
      state: Any,
      gradient: Any,
      pushed: Any,
      arrived: Any,
      examples: jax.Array,
      scaled: jax.Array,
      scale: jax.Array,
      decay: jax.Array,
    ) -> tuple[Any, Any, Any]:
      mean = jax.tree.map(lambda total: total / scaled, gradient)
      updates, after = tx.update(mean, state, params)
      updates = jax.tree.map(lambda u: u * scale, updates)
      if jax.tree.leaves(arrived):
        updates, after = _masked(tx, arrived, (updates, after), state)
      seen = jax.tree.map(lambda total: total / examples, pushed)
      stats = jax.tree.map(
        lambda old, new: decay * old + (1 - decay) * new, stats, seen
      )
      return optax.apply_updates(params, updates), stats, after

    # An accelerator writes new parameters where the gradient was.  On CPUs the
    # gradient may be a view of a gradient buffer, which must not be donated.
    donated = (3, 4) if _uses_accelerator() else ()
    self._apply = jax.jit(apply, donate_argnums=(2, *donated))
    self._add = jax.jit(add_trees, donate_argnums=0)
    self._copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
    self._divide = jax.jit(
      lambda tree, scale: jax.tree.map(lambda leaf: leaf / scale, tree),
      donate_argnums=0,
    )

  def twin(self, params: Any, stats: Any) -> 'TaskLearner':
    twin = copy.copy(self)
    twin.params, twin.stats = params, stats
    twin._state, twin._sums = self._init(params), {}
    return twin

  def fork(self) -> 'TaskLearner':
    fork = copy.copy(self)
    # Later sums and updates reuse the memory of these arrays.
    fork._state = self._copy(self._state)
    fork._sums = {
      update: (self._copy(total), *counts)
      for update, (total, *counts) in self._sums.items()
    }
    return fork

  def add(
    self,
    update: int,
    payload: Payload,
    examples: int,
    *,
    weight: float | None = None,
    pushes: int = 1,
    scale: float = 1.0,
  ) -> None:
    weight = examples if weight is None else weight
    if scale != 1:
      gradient = self._divide(payload.gradient, np.float32(scale))
      payload = payload._replace(gradient=gradient)
    if update in self._sums:
      total, before, weight_before, count = self._sums[update]
      if not (_is_partial(total) and _is_partial(payload)):
        total, payload = _complete(total), _complete(payload)
      total = self._add(total, payload)
      self._sums[update] = (
        *(total, before + examples),
        *(weight_before + weight, count + pushes),
      )
    else:
      self._sums[update] = payload, examples, weight, pushes

  def replace(
    self, update: int, function: Callable[[Payload], Payload]
  ) -> Payload:
    total, examples, weight, pushes = self._sums[update]
    total = function(total)
    self._sums[update] = total, examples, weight, pushes
    return total

  def commit(self, update: int) -> None:
    """Applies an update and increments the version.

    An update to which nothing was added changes nothing else; one of weight 0
    counts its examples.
    """
    if update not in self._sums:
      self.version += 1
      return
    payload, examples, weight, pushes = self._sums.pop(update)
    self._apply_sum(payload, examples, weight, pushes)

  def skip(self, update: int | None = None) -> None:
    if update is not None:
      self._sums.pop(update, None)
    self.version += 1
    if self.scaling:
      self.scaling = self.scaling.after(finite=False)

  def apply(
    self,
    payload: Payload,
    examples: int,
    *,
    weight: float | None = None,
    pushes: int,
  ) -> None:
    """Applies the sum of an update's pushes, as `add` and `commit` would.

    The result is the same bit for bit, as the program is the same.  Donating
    the parameters' memory would save a third of the time, but with another
    program.

    Args:
      payload: The sum; it has been read on return.  Views of NumPy arrays are
        not copied if they start at a multiple of 64 bytes.
      examples: Number of examples that it was summed over.
      weight: Their weight, in examples; None for their number.
      pushes: Number of pushes that it is the sum of.
    """
    weight = examples if weight is None else weight
    self._apply_sum(payload, examples, weight, pushes)
    jax.block_until_ready((self.params, self.stats, self._state))

  def state(self) -> dict[str, Any]:
    return {name: getattr(self, name) for name in _STATE}

  def restore(self, state: dict[str, Any]) -> None:
    """Restores the result of `state`; the learner owns its memory from now on.

    Raises:
      ValueError: If the state belongs to a model of other shapes.
    """
    got, expected = _shapes(self.params), _shapes(state['params'])
    if got != expected:
      raise ValueError(
        f'task: expected the shapes of the checkpoint, {expected}, got {got}.'
      )
    for name in _STATE:
      setattr(self, name, state[name])

  @property
  def learning_rate(self) -> float:
    """The learning rate of the next update."""
    return self._schedule(examples=self.examples, updates=self.version)

  def _apply_sum(
    self, payload: Payload, examples: int, weight: float, pushes: int
  ) -> None:
    """Applies a sum, unless it weighs nothing, as the next version."""
    if weight:
      unit = self._unit * (pushes if self._averages else 1)
      self.params, self.stats, self._state = self._apply(
        self.params,
        self.stats,
        self._state,
        *payload,
        np.float32(examples),
        np.float32(weight * factor(self.scaling)),
        np.float32(self.learning_rate * weight / unit),
        np.float32(_STATS_DECAY ** (examples / self._worker_batch)),
      )
    self.version += 1
    self.examples += examples
    if self.scaling:
      self.scaling = self.scaling.after(finite=True)


def _uses_accelerator() -> bool:
  """Returns whether JAX puts arrays on an accelerator by default."""
  if jax.default_backend() == 'cpu':
    return False
  (device,) = jax.device_put(np.float32(0)).devices()
  return device in jax.local_devices()  # Not one of jax.default_device.


def _is_partial(payload: Payload) -> bool:
  return bool(jax.tree.leaves(payload.arrived))


def _complete(payload: Payload) -> Payload:
  """Returns a payload whose numbers are all to be applied."""
  return payload._replace(arrived=())


def _masked(
  tx: optax.GradientTransformation, arrived: Any, new: Any, state: Any
) -> Any:
  """Returns updates and state that change only numbers that have arrived."""
  updates, after = new
  updates = jax.tree.map(lambda a, u: jnp.where(a, u, 0), arrived, updates)
  moves = optax.tree.map_params(
    tx, lambda _, a: a, after, arrived, transform_non_params=lambda _: True
  )
  return updates, jax.tree.map(jnp.where, moves, after, state)


def _shapes(tree: Any) -> Any:
  return jax.tree.map(lambda leaf: f'{leaf.dtype}{leaf.shape}', tree)
