"""The parameters, the optimiser and the sums of pushes not yet applied."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cluster.gradient import add_trees
from cluster.schedule import Schedule


class Server:
  """Holds one version of the parameters and makes the next.

  An update applies `tx` to the mean gradient of the examples summed into it;
  the result is multiplied by the learning rate and by their number over X0
  (reduction 'sum': the same displacement per example under every scheme) or
  over n X0 ('mean').

  Attributes:
    params: Pytree of arrays.  Never changed in place: who pulled a version
      keeps it.
    version: Updates applied.
    examples: Examples in them.
  """

  def __init__(
    self,
    *,
    params: Any,
    tx: optax.GradientTransformation,
    schedule: Schedule,
    reduction: Literal['sum', 'mean'],
    num_workers: int,
    worker_batch: int,
  ):
    """Starts at version 0.

    Args:
      params: Initial parameters.
      tx: Built with learning rate 1; decay, clipping, momentum inside.
      schedule: Of the learning rate.
      reduction: 'sum' or 'mean'.
      num_workers: n, as configured.
      worker_batch: X0, as configured.

    Raises:
      ValueError: If `reduction` is unknown.
    """
    if reduction not in ('sum', 'mean'):
      raise ValueError(
        f"reduction: expected 'sum' or 'mean', got {reduction!r}."
      )
    self.params = params
    self.version = 0
    self.examples = 0
    self._state = jax.jit(tx.init)(params)
    self._sums: dict[int, tuple[Any, int]] = {}
    self._schedule = schedule
    self._unit = worker_batch * (num_workers if reduction == 'mean' else 1)

    def apply(params, state, gradient, examples, scale):
      mean = jax.tree.map(lambda g: g / examples, gradient)
      updates, state = tx.update(mean, state, params)
      updates = jax.tree.map(lambda u: u * scale, updates)
      return optax.apply_updates(params, updates), state

    def is_finite(params):
      leaves = jax.tree.leaves(params)
      return jnp.array([jnp.isfinite(leaf).all() for leaf in leaves]).all()

    self._is_finite = jax.jit(is_finite)
    self._apply = jax.jit(apply, donate_argnums=1)
    self._add = jax.jit(add_trees, donate_argnums=0)

  def warm_up(self) -> None:
    """Compiles the sum and the update, and changes nothing."""
    zero = jax.tree.map(jnp.zeros_like, self.params)
    state = jax.tree.map(jnp.copy, self._state)
    one = np.float32(1)
    gradient = self._add(zero, jax.tree.map(jnp.copy, zero))
    jax.block_until_ready(self._apply(self.params, state, gradient, one, one))
    self.is_finite()

  def add(self, update: int, gradient: Any, examples: int) -> None:
    """Sums a push into an update.

    Args:
      update: Id of the update.
      gradient: Pytree like the parameters, summed over the examples.  It is
        the server's from now on: its memory is used again.
      examples: How many.
    """
    if update in self._sums:
      total, before = self._sums[update]
      self._sums[update] = self._add(total, gradient), before + examples
    else:
      self._sums[update] = gradient, examples

  def commit(self, update: int) -> None:
    """Applies an update; the version becomes one higher."""
    gradient, examples = self._sums.pop(update)
    scale = self.learning_rate * examples / self._unit
    self.params, self._state = self._apply(
      self.params,
      self._state,
      gradient,
      np.float32(examples),
      np.float32(scale),
    )
    self.version += 1
    self.examples += examples

  def is_finite(self) -> bool:
    """Returns whether all parameters are finite."""
    return bool(self._is_finite(self.params))

  @property
  def learning_rate(self) -> float:
    """The learning rate of the next update."""
    return self._schedule(examples=self.examples, updates=self.version)

  @property
  def size_bytes(self) -> int:
    """Bytes of the parameters, and so of a push and of a pull."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(self.params))
