"""The parameters, the optimiser and the sums of pushes not yet applied."""

import copy
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from configs.checks import require
from learning.gradient import add_trees
from learning.layout import Layout
from learning.scaling import Scaling, factor
from learning.schedule import Schedule
from wire.codec import Payload

Reduction = Literal['sum', 'mean', 'barrier_mean']

_KEPT = 0.9  # Of the running statistics, by an update of X0 examples.
# Attributes of a learner that change while it runs.
_STATE = ('params', 'stats', 'version', 'examples', 'scaling')
_STATE += ('_state', '_sums')


class TaskLearner:
  """Holds one version of the parameters and makes the next.

  An update applies `tx` to the mean gradient of the examples summed into it;
  the result is multiplied by the learning rate and by their number over X0
  (reduction 'sum': the same displacement per example under every scheme),
  over n X0 ('mean'), or over X0 times the pushes summed ('barrier_mean': those
  of a barrier are averaged, one alone counts in full).  Running statistics move
  towards the mean of those that were pushed, at a rate that depends on the
  number of examples likewise.

  Gradients may come multiplied by a power of two, by which they are divided
  first, without rounding: each push as it is added, or, if all workers have the
  same `scaling`, their sum.

  Attributes:
    params: Pytree of arrays.  Never changed in place: who pulled a version
      keeps it.
    stats: Running statistics, a pytree of arrays.
    version: Updates applied, or skipped.
    examples: Examples in them.
    scaling: Of all sums; it follows what is applied and skipped.  None if they
      are not scaled, or each push by itself.
  """

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
    scaled: bool = False,
  ):
    """Starts at version 0.

    Args:
      params: Initial parameters.
      stats: Initial running statistics; () if there are none.
      tx: Built with learning rate 1; decay, clipping, momentum inside.
      schedule: Of the learning rate.
      reduction: 'sum', 'mean' or 'barrier_mean'.
      num_workers: n, as configured.
      worker_batch: X0, as configured.
      scaled: Whether pushes may be scaled, each by itself.

    Raises:
      ValueError: If `reduction` is unknown.
    """
    known = reduction in get_args(Reduction)
    expected = f'one of {get_args(Reduction)}'
    require(known, 'reduction', expected, reduction)
    self.params = params
    self.stats = stats
    self.version = 0
    self.examples = 0
    self.scaling: Scaling | None = None
    self._scaled = scaled
    self._init = jax.jit(tx.init)
    self._state = self._init(params)
    # Of each update not yet applied: the sum, its examples and pushes.
    self._sums: dict[int, tuple[Payload, int, int]] = {}
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
      kept: jax.Array,
    ) -> tuple[Any, Any, Any]:
      mean = jax.tree.map(lambda total: total / scaled, gradient)
      updates, after = tx.update(mean, state, params)
      updates = jax.tree.map(lambda u: u * scale, updates)
      if jax.tree.leaves(arrived):
        updates, after = _masked(tx, arrived, (updates, after), state)
      seen = jax.tree.map(lambda total: total / examples, pushed)
      stats = jax.tree.map(
        lambda old, new: kept * old + (1 - kept) * new, stats, seen
      )
      return optax.apply_updates(params, updates), stats, after

    # An accelerator has new parameters where the gradient was.  On CPUs a pool
    # lends its memory, and without that the program stays as it is.
    lent = (3, 4) if _on_accelerator() else ()
    self._apply = jax.jit(apply, donate_argnums=(2, *lent))
    self._add = jax.jit(add_trees, donate_argnums=0)
    self._copied = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
    self._divided = jax.jit(
      lambda tree, scale: jax.tree.map(lambda leaf: leaf / scale, tree),
      donate_argnums=0,
    )

  def twin(self, params: Any, stats: Any) -> 'TaskLearner':
    """Returns one of other parameters, with the same compiled programs."""
    twin = copy.copy(self)
    twin.params, twin.stats = params, stats
    twin._state, twin._sums = self._init(params), {}
    return twin

  def fork(self) -> 'TaskLearner':
    """Returns one that goes on from here, while this one stays as it is."""
    fork = copy.copy(self)
    # Sums and updates use this memory again.
    fork._state = self._copied(self._state)
    fork._sums = {
      update: (self._copied(total), *counts)
      for update, (total, *counts) in self._sums.items()
    }
    return fork

  def warm_up(self, like: Payload | None = None) -> None:
    """Compiles the sum and the update, and changes nothing.

    Args:
      like: Of payloads like this one; None for those of all numbers.
    """
    like = like or Payload(self.params, self.stats)
    zero = jax.tree.map(jnp.zeros_like, like)
    state = self._copied(self._state)
    payload = self._add(zero, jax.tree.map(jnp.copy, zero))
    if self._scaled and self.scaling is None:
      gradient = self._divided(payload.gradient, np.float32(1.0))
      payload = payload._replace(gradient=gradient)
    jax.block_until_ready(self._applied(state, payload, 1, 1))

  def add(
    self,
    update: int,
    payload: Payload,
    examples: int,
    *,
    pushes: int = 1,
    scale: float = 1.0,
  ) -> None:
    """Sums a push, or a sum of some, into an update.

    Args:
      update: Id of the update.
      payload: Is the learner's from now on: its memory is used again.
      examples: How many it was summed over.
      pushes: How many it is the sum of.
      scale: That its gradient is to be divided by.
    """
    if scale != 1:
      gradient = self._divided(payload.gradient, np.float32(scale))
      payload = payload._replace(gradient=gradient)
    if update in self._sums:
      total, before, count = self._sums[update]
      if not (_is_partial(total) and _is_partial(payload)):
        total, payload = _of_all(total), _of_all(payload)
      total = self._add(total, payload)
      self._sums[update] = total, before + examples, count + pushes
    else:
      self._sums[update] = payload, examples, pushes

  def replace(
    self, update: int, function: Callable[[Payload], Payload]
  ) -> Payload:
    """Puts a function of an update's sum in its place, and returns that."""
    total, *counts = self._sums[update]
    self._sums[update] = function(total), *counts
    return self._sums[update][0]

  def commit(self, update: int) -> None:
    """Applies an update; the version becomes one higher.

    One to which nothing was added changes nothing else.
    """
    if update not in self._sums:
      self.version += 1
      return
    payload, examples, pushes = self._sums.pop(update)
    applied = self._applied(self._state, payload, examples, pushes)
    self._take(applied, examples)

  def skip(self, update: int | None = None) -> None:
    """Changes but version and scaling, after an overflow.

    Args:
      update: That is forgotten; None if nothing was added yet.
    """
    self._sums.pop(update, None)
    self.version += 1
    if self.scaling:
      self.scaling = self.scaling.after(finite=False)

  def apply_buffer(
    self,
    layout: Layout,
    vector: np.ndarray,
    examples: int,
    *,
    pushes: int,
    arrived: Any = (),
  ) -> None:
    """Applies the sum of all pushes of an update, as a pool holds it.

    It is `commit` after `add` of the same numbers, in the same program, and so
    to the last bit.  Giving XLA the memory of the parameters, too, would save a
    third of the time and make another program.

    Args:
      pool: What lies where.
      vector: Float32 [pool.size]; it has been read when this returns.  Without
        a copy if it starts at a multiple of 64 bytes.
      examples: How many it was summed over.
      pushes: How many it is the sum of.
      arrived: As of `Payload`.
    """
    payload = layout.payload(vector)._replace(arrived=arrived)
    applied = self._applied(self._state, payload, examples, pushes)
    self._take(jax.block_until_ready(applied), examples)

  def warm_up_buffer(self, layout: Layout, arrived: Any = ()) -> None:
    """Compiles what `apply_buffer` needs, and changes nothing."""
    payload = layout.payload(np.zeros(layout.size, np.float32))
    payload = payload._replace(arrived=arrived)
    twin = self.fork()
    # What comes out may be bound to a device that what went in was not.
    for _ in range(2):
      twin.params, twin.stats, twin._state = jax.block_until_ready(
        twin._applied(twin._state, payload, 1, 1)
      )

  def state(self) -> dict[str, Any]:
    """Returns what commits and sums change."""
    return {name: getattr(self, name) for name in _STATE}

  def restore(self, state: dict[str, Any]) -> None:
    """Goes back to where `state` was taken; it is the learner's from now on.

    Raises:
      ValueError: If it is of a model of other shapes.
    """
    mine, its = _shapes(self.params), _shapes(state['params'])
    if mine != its:
      raise ValueError(
        f'task: expected the shapes of the checkpoint, {its}, got {mine}.'
      )
    for name in _STATE:
      setattr(self, name, state[name])

  @property
  def learning_rate(self) -> float:
    """The learning rate of the next update."""
    return self._schedule(examples=self.examples, updates=self.version)

  def _take(self, applied: tuple[Any, Any, Any], examples: int) -> None:
    self.params, self.stats, self._state = applied
    self.version += 1
    self.examples += examples
    if self.scaling:
      self.scaling = self.scaling.after(finite=True)

  def _applied(
    self, state: Any, payload: Payload, examples: int, pushes: int
  ) -> Any:
    unit = self._unit * (pushes if self._averages else 1)
    return self._apply(
      self.params,
      self.stats,
      state,
      *payload,
      np.float32(examples),
      np.float32(examples * factor(self.scaling)),
      np.float32(self.learning_rate * examples / unit),
      np.float32(_KEPT ** (examples / self._worker_batch)),
    )


def _on_accelerator() -> bool:
  """Returns whether arrays are put on one where nothing else is said."""
  if jax.default_backend() == 'cpu':
    return False
  (device,) = jax.device_put(np.float32(0)).devices()
  return device in jax.local_devices()  # And not `jax.default_device`.


def _is_partial(payload: Payload) -> bool:
  return bool(jax.tree.leaves(payload.arrived))


def _of_all(payload: Payload) -> Payload:
  return payload._replace(arrived=())


def _masked(
  tx: optax.GradientTransformation, arrived: Any, new: Any, state: Any
) -> Any:
  """Returns updates and state that leave what has not arrived as it is.

  Args:
    tx: The optimiser.
    arrived: Which numbers have, bool, like the parameters.
    new: Updates, and the optimiser's state after them.
    state: Of before.  What it has for each parameter stays likewise; what it
      has once, such as a count of updates, does not.
  """
  updates, after = new
  updates = jax.tree.map(lambda a, u: jnp.where(a, u, 0), arrived, updates)
  moves = optax.tree.map_params(
    tx, lambda _, a: a, after, arrived, transform_non_params=lambda _: True
  )
  return updates, jax.tree.map(jnp.where, moves, after, state)


def _shapes(tree: Any) -> Any:
  return jax.tree.map(lambda leaf: f'{leaf.dtype}{leaf.shape}', tree)
