"""Tests for learning.local_steps, against plain loops over Optax."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

from data.dataset import Split
from learning import optimizer
from learning.gradient import TaskGradient
from learning.iteration import Iteration
from learning.local_steps import LocalSteps
from models.task import Task

_OPTIMIZERS = {
  'sgd': optimizer.sgd(momentum=0.0, nesterov=False, weight_decay=0.0),
  'momentum': optimizer.sgd(momentum=0.9, nesterov=False, weight_decay=0.01),
  'adamw': optimizer.adamw(b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.1),
}
_RATE = 0.01


def _task():
  def loss(params, inputs, targets, key):
    return (inputs @ params['w'] + params['b'] - targets) ** 2, ()

  rng = np.random.default_rng(0)
  params = {'w': rng.normal(size=4).astype(np.float32), 'b': np.float32(0.5)}
  return Task(jax.tree.map(jnp.asarray, params), loss, lambda *_: None)


def _examples(count):
  rng = np.random.default_rng(1)
  inputs = rng.normal(size=(count, 4)).astype(np.float32)
  return Split(inputs, rng.normal(size=count).astype(np.float32))


def _positions(ranges):
  return np.concatenate([np.arange(*bounds) for bounds in ranges])


def _make(name='sgd', *, batch=8):
  gradient = TaskGradient(
    _task(), _examples(200), _positions, micro_batch=4, seed=0
  )
  return LocalSteps(gradient, _OPTIMIZERS[name], worker_batch=batch)


def _train(tx, params, state, batches, rate=_RATE):
  """Returns parameters and state after a step on each batch, by Optax alone."""
  examples = _examples(200)

  @jax.grad
  def gradient(params, inputs, targets):
    return jnp.mean(_task().loss(params, inputs, targets, None)[0])

  for batch in batches:
    found = gradient(params, examples.inputs[batch], examples.targets[batch])
    updates, state = tx.update(found, state, params)
    updates = jax.tree.map(lambda u: rate * u, updates)
    params = optax.apply_updates(params, updates)
  return params, state


def _assert_close(got, expected, rtol=1e-5):
  jax.tree.map(
    lambda one, other: np.testing.assert_allclose(
      one, other, rtol=rtol, atol=1e-6
    ),
    got,
    expected,
  )


class PushTest(parameterized.TestCase):
  @parameterized.product(
    name=[*_OPTIMIZERS], count=[8, 24, 21, 5], cut=[None, (3, 11)]
  )
  def test_a_push_is_the_displacement_of_a_loop_over_batches(
    self, name, count, cut
  ):
    steps, ranges = _make(name), ((40, 40 + count),)
    if cut:  # The positions in several ranges.
      bounds = [40, *(40 + c for c in cut if c < count), 40 + count]
      ranges = tuple(itertools.pairwise(bounds))
    params = _task().params
    state = steps.init(params)
    for iteration in range(2):  # The state continues.
      payload, loss, after = steps.push(
        params, Iteration(ranges, worker=0, number=iteration, rate=_RATE), state
      )
      batches = [
        np.arange(40, 40 + count)[start : start + 8]
        for start in range(0, count, 8)
      ]
      reached, expected = _train(_OPTIMIZERS[name], params, state, batches)
      _assert_close(after, expected)
      moved = jax.tree.map(lambda a, b: (a - b) * count, params, reached)
      _assert_close(payload.gradient, moved, rtol=1e-3)
      self.assertGreater(float(loss), 0)
      state = after

  def test_a_displacement_has_the_sign_of_a_gradient(self):
    steps, params = _make(), _task().params
    payload, _, _ = steps.push(
      params,
      Iteration(((0, 24),), worker=0, number=0, rate=_RATE),
      steps.init(params),
    )
    gradient, _ = steps.gradient(
      params, Iteration(((0, 24),), worker=0, number=0)
    )
    for moved, leaf in zip(
      jax.tree.leaves(payload.gradient),
      jax.tree.leaves(gradient.gradient),
      strict=True,
    ):
      self.assertGreater(float(jnp.vdot(moved, leaf)), 0)

  def test_one_step_of_sgd_is_the_gradient_times_the_rate(self):
    steps, params = _make(batch=24), _task().params
    payload, loss, _ = steps.push(
      params,
      Iteration(((0, 24),), worker=0, number=0, rate=_RATE),
      steps.init(params),
    )
    gradient, total = steps.gradient(
      params, Iteration(((0, 24),), worker=0, number=0)
    )
    expected = jax.tree.map(lambda leaf: leaf * _RATE, gradient.gradient)
    _assert_close(payload.gradient, expected, rtol=1e-3)
    self.assertEqual(float(loss), float(total))

  def test_the_mean_of_displacements_leads_to_the_mean_of_the_copies(self):
    steps, params = _make('adamw'), _task().params
    counts, starts = (8, 16, 24), (0, 50, 100)
    pushes, copies = [], []
    for worker, (start, count) in enumerate(zip(starts, counts, strict=True)):
      state = steps.init(params)
      payload, _, _ = steps.push(
        params,
        Iteration(
          ((start, start + count),), worker=worker, number=0, rate=_RATE
        ),
        state,
      )
      pushes.append(payload.gradient)
      batches = [np.arange(s, s + 8) for s in range(start, start + count, 8)]
      reached, _ = _train(_OPTIMIZERS['adamw'], params, state, batches)
      copies.append(reached)
    mean = jax.tree.map(lambda *leaves: sum(leaves) / sum(counts), *pushes)
    merged = jax.tree.map(lambda p, m: p - m, params, mean)
    expected = jax.tree.map(
      lambda *leaves: np.average(leaves, axis=0, weights=counts), *copies
    )
    _assert_close(merged, expected, rtol=1e-4)

  def test_steps_and_iterations_have_random_keys_of_their_own(self):
    def loss(params, inputs, targets, key):
      return jax.random.normal(key, targets.shape) + 0 * params['b'], ()

    task = Task(_task().params, loss, lambda *_: None)
    gradient = TaskGradient(
      task, _examples(8), _positions, micro_batch=8, seed=0
    )
    steps = LocalSteps(gradient, _OPTIMIZERS['sgd'], worker_batch=4)
    pushed = [
      float(
        steps.push(
          task.params,
          Iteration(((0, count),), worker=worker, number=iteration, rate=0.0),
          steps.init(task.params),
        )[1]
      )
      for worker in range(2)
      for iteration in range(3)
      for count in (4, 8)
    ]
    one, both = np.array(pushed).reshape(-1, 2).T
    found = np.round([*one, *(both - one)], 4)
    self.assertLen(np.unique(found), 12)

  def test_examples_can_be_gathered_before(self):
    counted = []
    gradient = TaskGradient(
      _task(),
      _examples(200),
      lambda ranges: counted.append(ranges) or _positions(ranges),
      micro_batch=4,
      seed=0,
    )
    steps = LocalSteps(gradient, _OPTIMIZERS['sgd'], worker_batch=8)
    params = _task().params
    steps.prepare(((0, 20), (40, 44)))
    self.assertEqual(counted, [((0, 8),), ((8, 16),), ((16, 20), (40, 44))])
    steps.push(
      params,
      Iteration(((0, 20), (40, 44)), worker=0, number=0, rate=_RATE),
      steps.init(params),
    )
    self.assertLen(counted, 3)

  def test_nothing_is_compiled_after_warm_up(self):
    steps, params = _make('adamw'), _task().params
    steps.warm_up(params, 24, changing=False)
    with jax.log_compiles(False), self.assertNoLogs('jax', 'WARNING'):
      state = steps.init(params)
      with jax.log_compiles():
        for iteration in range(3):
          _, _, state = steps.push(
            params,
            Iteration(((0, 24),), worker=1, number=iteration, rate=0.1),
            state,
          )

  def test_pushes_without_examples_or_rate_are_rejected(self):
    steps, params = _make(), _task().params
    state = steps.init(params)
    with self.assertRaisesRegex(ValueError, 'ranges: expected at least one'):
      steps.push(params, Iteration((), worker=0, number=0, rate=_RATE), state)
    with self.assertRaisesRegex(ValueError, 'rate: expected a learning rate'):
      steps.push(params, Iteration(((0, 8),), worker=0, number=0), state)


if __name__ == '__main__':
  absltest.main()
