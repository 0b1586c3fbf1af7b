"""Tests for learning/island.py, on two devices of a separate process."""

import json
import sys

import jax
import numpy as np
import optax
from absl.testing import absltest, parameterized
from flax import nnx

from configs import declared
from data.dataset import Split
from learning import compilations
from learning.gradient import TaskGradient
from learning.island import IslandMesh, IslandPushes
from learning.iteration import Iteration
from learning.local_steps import LocalSteps
from models import task
from tests.support import small

_SHARDINGS = declared.find_field('cluster.island_sharding').choices
_EXAMPLES = 7  # In steps of 4 and 3, in micro-batches of 4, 2 and 1.
_STORED = 8  # As many as two steps need, which compile all programs.


class _Model(nnx.Module):
  def __init__(self, width):
    rngs = nnx.Rngs(0)
    self.first = nnx.Linear(3, width, use_bias=False, rngs=rngs)
    self.last = nnx.Linear(width, 3, rngs=rngs)

  def __call__(self, inputs, *, rngs=None):
    return self.last(nnx.relu(self.first(inputs)))


class _Announced:
  """Followers that record what is announced."""

  def __init__(self):
    self.states = []

  def prepare(self, ranges):
    pass

  def warm_up(self, examples, *, changing):
    pass

  def push(self, ranges, *, has_state, **arguments):
    self.states.append(has_state)


def _pushes(learned, mesh=None, followers=None):
  rng = np.random.default_rng(0)
  inputs = rng.normal(size=(_STORED, 3)).astype(np.float32)
  gradient = TaskGradient(
    learned,
    Split(inputs, rng.integers(3, size=_STORED).astype(np.int32)),
    lambda ranges: np.concatenate([np.arange(*each) for each in ranges]),
    micro_batch=4,
    seed=0,
    devices=mesh.devices if mesh else (),
    spread=mesh.spread(learned.params) if mesh else None,
  )
  steps = LocalSteps(
    gradient,
    optax.sgd(1.0, momentum=0.9),
    worker_batch=4,
    **({'constrain': mesh.constrain} if mesh else {}),
  )
  if mesh is None:
    return steps
  return IslandPushes(steps, gradient, mesh, learned.params, followers)


def _run(pushes, params):
  """Returns numbers of three pushes, of which the third repeats the second."""
  pushes.warm_up(params, _EXAMPLES, changing=False)
  before, found = compilations.count(), []
  state = first = pushes.init(params)
  for iteration in range(3):
    if iteration == 2:
      state = first  # The second push was lost.
    *result, state = pushes.push(
      params,
      Iteration(
        ((0, _EXAMPLES),), worker=1, number=min(iteration, 1), rate=0.1
      ),
      state,
    )
    if iteration == 0:
      first = state
    found += [np.ravel(x).tolist() for x in jax.tree.leaves((result, state))]
  return {'numbers': found, 'compilations': compilations.count() - before}


def _bytes_per_device(tree):
  found = {}
  for leaf in jax.tree.leaves(tree):
    for shard in leaf.addressable_shards:
      size = found.get(shard.device.id, 0) + shard.data.nbytes
      found[shard.device.id] = size
  return max(found.values())


def _results():
  """Returns what a process with two devices has computed."""
  learned = task.classification(_Model(6), lambda x: x, lambda x, _: x)
  found = {'one': _run(_pushes(learned), learned.params)}
  for sharding in _SHARDINGS:
    followers = _Announced()
    mesh = IslandMesh(jax.local_devices(), sharding)
    pushes = _pushes(learned, mesh, followers)
    found[sharding] = _run(pushes, learned.params)
    found[sharding]['states'] = followers.states
    shared = mesh.share(learned.params, learned.params)
    found[sharding]['bytes'] = _bytes_per_device((shared, pushes._held))
  odd = task.classification(_Model(1025), lambda x: x, lambda x, _: x)
  try:
    IslandMesh(jax.local_devices(), 'fsdp').check(odd.params)
  except ValueError as error:
    found['error'] = str(error)
  return found


class IslandTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    process = small.python(
      *('-m', 'tests.learning.island_test', 'child'),
      JAX_PLATFORMS='cpu',
      JAX_NUM_CPU_DEVICES='2',
    )
    if process.returncode:
      raise AssertionError(process.stderr)
    cls._found = json.loads(process.stdout.splitlines()[-1])

  @parameterized.parameters(*_SHARDINGS)
  def test_pushes_equal_those_of_one_device(self, sharding):
    expected, found = self._found['one'], self._found[sharding]
    pairs = zip(expected['numbers'], found['numbers'], strict=True)
    for one, other in pairs:
      np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
    self.assertEqual(found['compilations'], 0)

  @parameterized.parameters(*_SHARDINGS)
  def test_states_are_sent_at_the_start_and_after_a_lost_push(self, sharding):
    states = self._found[sharding]['states']
    self.assertEqual(states, [True, False, True])

  def test_fsdp_halves_parameters_and_states(self):
    # Parameters and momentum: 3 x 6 and 6 x 3 numbers, and 3 of a bias.
    self.assertEqual(self._found['replicated']['bytes'], 2 * 4 * 39)
    self.assertEqual(self._found['fsdp']['bytes'], 2 * 4 * (9 + 9 + 3))

  def test_fsdp_refuses_large_arrays_that_devices_do_not_divide(self):
    self.assertRegex(
      self._found['error'],
      r"island_sharding: expected 'replicated', as .*kernel.*\(3, 1025\), is a "
      "multiple of 2, the devices of an island, got 'fsdp'",
    )


if __name__ == '__main__':
  if sys.argv[1:] == ['child']:
    print(json.dumps(_results()))
  else:
    absltest.main()
