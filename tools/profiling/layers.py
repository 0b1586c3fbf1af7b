"""Times at which gradients of layers are ready in an iteration.

A batch of the config's model and data is computed as workers do it, in
micro-batches.  In the last one, a callback records the time at which the
backward pass has computed each leaf of the gradient.  Times are exact only on
CPUs: callbacks of other devices run too late.
"""

import json
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback
from ml_collections import ConfigDict

from cluster.speed import layers
from configs.checks import require
from learning import build as learning
from learning import compilations
from learning.gradient import TaskGradient, micro_batches
from outputs import atomic


class Leaf(NamedTuple):
  """Leaf of the gradient, with the time of its appearance.

  Attributes:
    name: Path of the leaf in the parameters.
    bytes: Size of the leaf, bytes.
    ready: Median share of the iteration's time after which the leaf is ready.
  """

  name: str
  bytes: int
  ready: float


class Profile(NamedTuple):
  """Measured times at which the leaves of a gradient appear.

  Attributes:
    model: Name of the model, and the data.
    batch: Examples of the batch.
    seconds: Median time of an iteration, seconds.
    layers: Leaves, in the order in which they appear.
  """

  model: str
  batch: int
  seconds: float
  layers: Sequence[Leaf]


def measure(config: ConfigDict, *, batch: int | None, rounds: int) -> Profile:
  """Returns when the leaves of a gradient appear on the CPUs of this machine.

  Args:
    config: Names the model and the data; every field is checked.
    batch: Examples; None for config.batching.worker_batch.

  Raises:
    ValueError: If an argument is wrong, or there is no CPU to compute on.
  """
  platform = jax.default_backend()
  require(platform == 'cpu', 'JAX_PLATFORMS', 'cpu', platform)
  require(rounds > 0, 'rounds', 'at least 1', rounds)
  batch = config.batching.worker_batch if batch is None else batch
  require(batch > 0, 'batch', 'at least 1', batch)
  learned = learning.from_config(config)
  params, gradient = learned.params, learned.gradient
  if not isinstance(gradient, TaskGradient):
    name = config.model.name
    raise ValueError(f'config.model.name: expected a model, got {name!r}.')
  shown = _Shown(gradient.task.loss, compilations.matmul(config))
  train = gradient.train
  parts = [
    tuple(
      np.resize(np.asarray(each[:size]), (size, *each.shape[1:]))
      for each in train
    )
    for size, _ in micro_batches(batch, largest=config.batching.micro_batch)
  ]
  for part in parts:
    shown.seconds(params, *part)  # Compiles.
  times, whole = [], []
  for _ in range(rounds):
    earlier_s = sum(shown.seconds(params, *part)[0] for part in parts[:-1])
    last_s, seen_s = shown.seconds(params, *parts[-1])
    whole.append(earlier_s + last_s)
    times.append([(earlier_s + each) / whole[-1] for each in seen_s])
  paths = jax.tree_util.tree_leaves_with_path(params)
  leaves = [
    Leaf(jax.tree_util.keystr(path), leaf.nbytes, statistics.median(each))
    for (path, leaf), each in zip(paths, zip(*times, strict=True), strict=True)
    if leaf.dtype == jnp.float32
  ]
  return Profile(
    model=f'{config.model.name} of {config.data.name}',
    batch=batch,
    seconds=statistics.median(whole),
    layers=sorted(leaves, key=lambda leaf: leaf.ready),
  )


def write(profile: Profile, path: str | pathlib.Path) -> None:
  """Writes a profile for `layers.parse`.

  Raises:
    OSError: If the file cannot be written.
  """
  content = {
    'version': layers.VERSION,
    **profile._asdict(),
    'layers': [leaf._asdict() for leaf in profile.layers],
  }
  text = json.dumps(content, indent=2)
  atomic.write(path, f'{text}\n')


def describe(profile: Profile) -> str:
  """Returns a table of leaves: ready time, share of the gradient until then."""
  total = sum(leaf.bytes for leaf in profile.layers)
  lines = [
    f'{profile.model}, {profile.batch} examples in '
    f'{1e3 * profile.seconds:.4g} ms, {len(profile.layers)} leaves of '
    f'{total / 1e6:.4g} MB',
    'ready at     ms  bytes so far  leaf',
  ]
  done = 0
  for leaf in profile.layers:
    done += leaf.bytes
    lines.append(
      f'{leaf.ready:8.1%}  {1e3 * leaf.ready * profile.seconds:5.4g}  '
      f'{done / total:12.1%}  {leaf.name}'
    )
  return '\n'.join(lines)


class _Shown:
  """Gradient that records the time at which each of its leaves is ready."""

  def __init__(self, loss: Callable[..., Any], matmul: str | None):
    self._matmul = matmul
    self._seen_s: dict[int, float] = {}

    def total(params: Any, inputs: Any, targets: Any) -> jax.Array:
      leaves, tree = jax.tree.flatten(params)
      leaves = [self._record_time(n)(leaf) for n, leaf in enumerate(leaves)]
      params = jax.tree.unflatten(tree, leaves)
      return jnp.sum(loss(params, inputs, targets, jax.random.key(0))[0])

    self._gradient = jax.jit(jax.grad(total))

  def seconds(
    self, params: Any, inputs: Any, targets: Any
  ) -> tuple[float, list[float]]:
    """Returns the duration, and the time of each leaf, seconds."""
    # A leaf without dependants is ready at the end.
    self._seen_s.clear()
    start_s = time.perf_counter()
    with jax.default_matmul_precision(self._matmul):
      gradient = self._gradient(params, inputs, targets)
      jax.block_until_ready(gradient)
    whole_s = time.perf_counter() - start_s
    count = len(jax.tree.leaves(params))
    seen_s = [self._seen_s.get(n, start_s + whole_s) for n in range(count)]
    return whole_s, [min(each - start_s, whole_s) for each in seen_s]

  def _record_time(self, leaf: int) -> Callable[[jax.Array], jax.Array]:
    """Returns an identity whose backward pass records the time of a leaf."""

    def record(context: Any, results: Any, cotangent: Any) -> None:
      del context, results, cotangent
      self._seen_s[leaf] = time.perf_counter()

    @jax.custom_vjp
    def identity(array: jax.Array) -> jax.Array:
      return array

    def backward(_: None, cotangent: jax.Array) -> tuple[jax.Array]:
      buffer_callback(record, (), has_side_effect=True)(cotangent)
      return (cotangent,)

    identity.defvjp(lambda array: (array, None), backward)
    return identity
