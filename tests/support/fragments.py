"""A linear model, and its training in fragments in NumPy alone, for tests."""

import contextlib
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from configs import default
from data.dataset import Dataset, Split
from learning.fragment_steps import FragmentSteps
from models.task import Task
from tests.support import small

BATCH = 2  # Examples of a local step.
FIELDS = {
  'batching__worker_batch': BATCH,
  'batching__local_steps': 4,
  'data__ahead': 0,
  'optimizer__learning_rate': 0.05,
  'optimizer__sgd__momentum': 0.5,
  'outer__name': 'nesterov',
  'outer__learning_rate': 0.7,
  'outer__nesterov__momentum': 0.9,
  'route__name': 'ring',
  'cluster__workers': 2,
  'cluster__speed__slowdown': (1.0, 1.3),
  'epochs': 1.0,
}
_SIZES = {'a': 3, 'b': 2, 'c': 4, 'd': 1}


def make_task(examples=96):
  """Returns a task of four leaves, and its data."""
  rng = np.random.default_rng(0)
  width = sum(_SIZES.values())
  inputs = rng.normal(size=(examples, width)).astype(np.float32)
  split = Split(inputs, rng.normal(size=examples).astype(np.float32))
  params = {
    name: jnp.asarray(rng.normal(size=size).astype(np.float32))
    for name, size in _SIZES.items()
  }

  def loss(params, inputs, targets, key):
    found, start = -targets, 0
    for name, size in _SIZES.items():
      found += inputs[:, start : start + size] @ params[name]
      start += size
    return found**2 / 2, ()

  def correct(params, stats, inputs, targets):
    return jnp.zeros(len(targets))

  return Task(params, loss, correct), Dataset(split, split)


def config(**changed):
  """Returns the config of a run of the task, which is an argument of build."""
  result = small.config(**{**FIELDS, **changed})
  defaults = default.get_config()
  ahead = result.data.ahead
  result.model, result.data = defaults.model, defaults.data
  result.data.ahead = ahead
  return result


@contextlib.contextmanager
def recording(found):
  """Records the ranges of each push, by version and worker."""
  push = FragmentSteps.push

  def record(self, params, iteration, state, **arguments):
    if iteration.rate:  # Not 0, as in the warm-up.
      found[iteration.version, iteration.worker] = iteration.ranges
    return push(self, params, iteration, state, **arguments)

  with mock.patch.object(FragmentSteps, 'push', record):
    yield


def flat(params):
  """Returns all numbers of a pytree in one vector."""
  return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def train(config_, ranges, indices, leaves):
  """Returns the parameters after the schedule, float64 [numbers].

  Args:
    config_: Config of the run.
    ranges: Ranges of examples by version and worker.
    indices: Function from ranges to indices of examples.
    leaves: Indices of the leaves of each fragment.
  """
  task, dataset = make_task()
  names, route = sorted(_SIZES), config_.route
  places, start = {}, 0
  for name, size in _SIZES.items():
    places[name] = np.arange(start, start + size)
    start += size
  params = flat(task.params).astype(np.float64)
  parts = [
    np.concatenate([places[names[leaf]] for leaf in each]) for each in leaves
  ]
  workers = sorted({worker for _, worker in ranges})
  own = {worker: params.copy() for worker in workers}
  speed = {worker: np.zeros_like(params) for worker in workers}
  momentum, outer = np.zeros_like(params), config_.outer
  steps = config_.batching.local_steps // route.fragments

  def step(worker, positions):
    inputs, targets = dataset.train.inputs, dataset.train.targets
    x, y = inputs[positions].astype(np.float64), targets[positions]
    gradient = x.T @ (x @ own[worker] - y) / len(y)
    decay = config_.optimizer.sgd.momentum
    speed[worker] = decay * speed[worker] + gradient
    own[worker] = own[worker] - config_.optimizer.learning_rate * speed[worker]

  for version in range(max(version for version, _ in ranges) + 1):
    part = parts[version % route.fragments]
    moved, examples = np.zeros(len(part)), 0
    for worker in workers:
      if version:
        last, blend = parts[(version - 1) % route.fragments], route.blend
        own[worker][last] *= blend
        own[worker][last] += (1 - blend) * params[last]
      positions = np.asarray(indices(ranges[version, worker]))
      batches = positions.reshape(steps, BATCH)
      for batch in batches[: steps - route.overlap_steps]:
        step(worker, batch)
      moved += len(positions) * (params[part] - own[worker][part])
      examples += len(positions)
      for batch in batches[steps - route.overlap_steps :]:
        step(worker, batch)
    mean = moved / examples
    momentum[part] = outer.nesterov.momentum * momentum[part] + mean
    change = mean + outer.nesterov.momentum * momentum[part]
    params[part] -= outer.learning_rate * change
  return params
