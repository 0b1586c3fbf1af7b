"""Compilation before a run.

JAX compiles a program when it is first called with arguments of new shapes or
on other devices.  A warm-up therefore calls what a run will call, once for each
kind of arguments, and drops the results.  (`jit(f).lower(shapes).compile()`
would not run the programs, but needs the device of every array, and leaves out
what is computed outside of `jit`.)
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learning.iteration import Iteration
from learning.learning import Learner, Pushes
from wire.codec import Payload


def compute_pushes(
  pushes: Pushes, params: Any, state: Any, batches: Sequence[int]
) -> list[Payload]:
  """Computes a push of each size, one after the other; returns the payloads.

  Args:
    pushes: Computation of pushes.
    params: Pytree of arrays.
    state: State of a worker at its start.
    batches: Examples of each push.
  """
  payloads = []
  for version, batch in enumerate(batches):
    iteration = Iteration(((0, batch),), 0, 0, rate=0.0, version=version)
    payload, _, state = pushes.push(params, iteration, state)
    payloads.append(jax.block_until_ready(payload))
  return payloads


def apply_updates(learner: Learner, like: Payload, *, adds: bool) -> None:
  """Applies updates of zeros to a copy of a learner.

  Args:
    learner: The learner, which does not change.
    like: Payload of the kind that will come.
    adds: Whether pushes will be added one by one.
  """
  if not learner.has_model:
    return
  twin = learner.fork()
  # Results may be bound to a device although the arguments were not.
  for _ in range(2):
    if adds:
      for _ in range(2):
        zeros = jax.tree.map(_zeros, like)
        twin.add(-1, zeros, 1, scale=2.0)
      twin.commit(-1)
    else:
      twin.apply(jax.tree.map(_zeros, like), 1, pushes=1)
  jax.block_until_ready(twin.state())


def _zeros(array: Any) -> Any:
  """Returns zeros like an array; no device computes those of NumPy."""
  if isinstance(array, np.ndarray):
    return np.zeros_like(array)
  return jnp.zeros_like(array)
