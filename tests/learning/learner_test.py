"""Tests for learning.learner and learning.optimizer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

from learning import optimizer, schedule, warm_up
from learning.learner import TaskLearner
from wire.codec import Payload


def _tree(seed):
  rng = np.random.default_rng(seed)
  tree = {'a': rng.normal(size=(3, 2)), 'b': rng.normal(size=4)}
  return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


def _schedule(**changed):
  arguments = {
    'rate': 1.0,
    'warmup_epochs': 0.0,
    'counts': 'examples',
    'shape': schedule.constant(total_epochs=1.0),
    'epoch': 100,
    'update': 32,
  }
  return schedule.schedule(**arguments | changed)


def _server(tx, *, reduction='sum', rate=0.1):
  return TaskLearner(
    params=_tree(0),
    stats=(),
    tx=tx,
    schedule=_schedule(rate=rate),
    reduction=reduction,
    num_workers=4,
    worker_batch=8,
  )


def _payload(gradient, times=1):
  return Payload(jax.tree.map(lambda g: g * times, gradient), ())


_SGD = {'momentum': 0.9, 'nesterov': True, 'weight_decay': 0.01}
_LARS = {
  'momentum': 0.9,
  'nesterov': False,
  'weight_decay': 0.01,
  'trust_coefficient': 0.02,
}
_ADAMW = {'b1': 0.8, 'b2': 0.95, 'eps': 1e-6, 'weight_decay': 0.01}


class UpdateTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      optimizer.sgd(**_SGD),
      optax.chain(
        optax.add_decayed_weights(0.01),
        optax.sgd(0.1, momentum=0.9, nesterov=True),
      ),
    ),
    (optimizer.adamw(**_ADAMW), optax.adamw(0.1, **_ADAMW)),
    (
      optimizer.lars(**_LARS, skip_vectors=False),
      optax.lars(0.1, **_LARS),
    ),
  )
  def test_full_batches_are_plain_optax(self, tx, plain):
    server = _server(tx)
    params = _tree(0)
    state = plain.init(params)
    for update in range(5):
      gradient = _tree(update + 1)
      server.add(update, _payload(gradient, 8), 8)
      server.commit(update)
      updates, state = plain.update(gradient, state, params)
      params = optax.apply_updates(params, updates)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
      server.params,
      params,
    )
    self.assertEqual((server.version, server.examples), (5, 40))

  @parameterized.parameters(
    ('sum', 24 / 8), ('mean', 24 / 32), ('barrier_mean', 24 / 16)
  )
  def test_the_step_is_scaled_by_the_examples(self, reduction, scale):
    tx = optimizer.sgd(momentum=0.0, nesterov=False, weight_decay=0.0)
    server = _server(tx, reduction=reduction)
    first, second = _tree(1), _tree(2)
    server.add(7, _payload(first), 8)
    server.add(7, _payload(second), 16)
    server.commit(7)

    expected = jax.tree.map(
      lambda p, a, b: p - 0.1 * scale * (a + b) / 24, _tree(0), first, second
    )
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
      server.params,
      expected,
    )

  def test_pushes_of_a_barrier_are_averaged_and_others_count_in_full(self):
    tx = optimizer.sgd(momentum=0.0, nesterov=False, weight_decay=0.0)
    server = _server(tx, reduction='barrier_mean')
    alone, *three = (_tree(seed) for seed in range(1, 5))
    for gradient in three[:2]:
      server.add(1, _payload(gradient, 8), 8)
    server.add(0, _payload(alone, 8), 8)
    server.commit(0)
    server.add(1, _payload(three[2], 8), 8)
    server.restore(server.state())
    server.commit(1)

    expected = jax.tree.map(
      lambda p, g, *others: p - 0.1 * g - 0.1 * np.mean(others, axis=0),
      *(_tree(0), alone, *three),
    )
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
      server.params,
      expected,
    )

  def test_a_version_that_was_pulled_does_not_change(self):
    server = _server(optimizer.adamw(**_ADAMW))
    pulled = server.params
    before = jax.device_get(server.state())
    warm_up.apply_updates(server, _payload(_tree(9)), adds=True)
    jax.tree.map(np.testing.assert_array_equal, server.state(), before)
    for update in range(3):
      server.add(update, _payload(_tree(update)), 8)
      server.commit(update)
    jax.tree.map(np.testing.assert_array_equal, pulled, _tree(0))

  def test_a_fork_is_independent(self):
    server, straight = (_server(optax.sgd(1.0, momentum=0.9)) for _ in 'ab')
    for each in (server, straight):
      each.add(0, _payload(_tree(1)), 8)
      each.commit(0)
      each.add(1, _payload(_tree(2)), 8)
    before = jax.tree.map(np.array, server.state())
    fork = server.fork()
    for each in (fork, straight):
      each.add(1, _payload(_tree(3)), 8)
      each.commit(1)
    jax.tree.map(np.testing.assert_array_equal, server.state(), before)
    jax.tree.map(np.testing.assert_array_equal, fork.state(), straight.state())

  def test_an_unknown_reduction_is_refused(self):
    with self.assertRaisesRegex(ValueError, "reduction: .* got 'median'"):
      _server(optax.sgd(1.0), reduction='median')


_STATES = {
  'sgd': optimizer.sgd(**_SGD),
  'adamw': optimizer.adamw(**_ADAMW),
  'clipped': optimizer.clipped(optimizer.sgd(**_SGD), clip_norm=0.5),
}


class ArrivedTest(parameterized.TestCase):
  def test_momentum_of_numbers_that_have_not_arrived_does_not_change(self):
    server = _server(optax.sgd(1.0, momentum=0.9), rate=0.5)
    rng = np.random.default_rng(0)
    params, momentum = jax.tree.map(np.array, _tree(0)), {'a': 0.0, 'b': 0.0}
    for update in range(4):
      gradient = _tree(update + 1)
      # Two sparse pushes: numbers of either push have arrived.
      masks = [
        jax.tree.map(lambda leaf: rng.random(leaf.shape) < 0.4, gradient)
        for _ in range(2)
      ]
      for mask in masks:
        sent = jax.tree.map(lambda m, g: jnp.where(m, 8 * g, 0), mask, gradient)
        mask = jax.tree.map(jnp.asarray, mask)
        server.add(update, Payload(sent, (), mask), 8)
      server.commit(update)
      for name in params:
        one, other = (mask[name] for mask in masks)
        mean = (one * 1.0 + other) * gradient[name] / 2
        moved = 0.9 * momentum[name] + mean
        momentum[name] = np.where(one | other, moved, momentum[name])
        params[name] -= np.where(one | other, 0.5 * 2 * moved, 0)
      for name, expected in params.items():
        np.testing.assert_allclose(server.params[name], expected, atol=1e-5)

  @parameterized.parameters(*_STATES)
  def test_a_mask_of_all_numbers_changes_nothing(self, name):
    server, plain = (_server(_STATES[name]) for _ in 'ab')
    all_of = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, bool), _tree(0))
    none = jax.tree.map(jnp.logical_not, all_of)
    for update in range(3):
      gradient = _tree(update + 1)
      plain.add(update, _payload(gradient, 8), 8)
      server.add(update, _payload(gradient, 8)._replace(arrived=all_of), 8)
      for each in (plain, server):
        each.commit(update)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
      server.params,
      plain.params,
    )
    before = server.params
    server.add(3, _payload(_tree(9))._replace(arrived=none), 8)
    server.commit(3)
    jax.tree.map(np.testing.assert_array_equal, server.params, before)

  @parameterized.parameters(0, 1)
  def test_a_sum_with_a_push_of_all_numbers_has_all(self, first):
    none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, bool), _tree(0))
    server, plain = (_server(optax.sgd(1.0, momentum=0.9)) for _ in 'ab')
    for each in (server, plain):
      payloads = [_payload(_tree(1)), _payload(_tree(2))]
      if each is server:
        payloads[first] = payloads[first]._replace(arrived=none)
      for payload in payloads:
        each.add(0, payload, 8)
      each.commit(0)
    jax.tree.map(np.testing.assert_array_equal, server.params, plain.params)


class ClippingTest(parameterized.TestCase):
  @parameterized.parameters(0.5, 100.0)
  def test_the_norm_of_the_mean_gradient_is_bounded(self, clip_norm):
    tx = optimizer.sgd(momentum=0.0, nesterov=False, weight_decay=0.0)
    server = _server(optimizer.clipped(tx, clip_norm=clip_norm))
    gradient = _tree(1)
    norm = np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(gradient)))
    server.add(0, _payload(gradient, 8), 8)
    server.commit(0)

    scale = 0.1 * min(1.0, clip_norm / norm)
    jax.tree.map(
      lambda a, p, g: np.testing.assert_allclose(a, p - scale * g, rtol=1e-5),
      server.params,
      _tree(0),
      gradient,
    )

  def test_an_infinite_norm_changes_nothing(self):
    tx = optax.sgd(1.0)
    self.assertIs(optimizer.clipped(tx, clip_norm=float('inf')), tx)


class ScheduleTest(parameterized.TestCase):
  def _rates(self, made, examples):
    return [made(examples=e, updates=0) for e in examples]

  def test_steps_drop_by_examples(self):
    shape = schedule.step(total_epochs=9.0, epochs=(0.5, 2), factor=0.1)
    np.testing.assert_allclose(
      self._rates(_schedule(shape=shape), (0, 49, 50, 199, 200, 1000)),
      [1, 1, 0.1, 0.1, 0.01, 0.01],
    )

  def test_cosine_is_that_of_optax(self):
    shape = schedule.cosine(total_epochs=3.0, final=0.2)
    reference = optax.cosine_decay_schedule(1.0, 300, alpha=0.2)
    examples = range(0, 400, 10)
    np.testing.assert_allclose(
      self._rates(_schedule(shape=shape), examples),
      [reference(e) for e in examples],
      rtol=1e-5,
    )

  def test_warm_up_rises_linearly_and_starts_above_0(self):
    made = _schedule(rate=2.0, warmup_epochs=2.0)
    np.testing.assert_allclose(
      self._rates(made, (0, 50, 100, 200, 300)), [0.01, 0.5, 1.0, 2.0, 2.0]
    )

  def test_updates_count_as_full_ones_if_configured(self):
    shape = schedule.step(total_epochs=9.0, epochs=(1,), factor=0.5)
    made = _schedule(shape=shape, counts='updates', update=50)
    rates = [made(examples=10**6, updates=updates) for updates in (1, 2)]
    self.assertEqual(rates, [1, 0.5])

  @parameterized.parameters(
    ({'rate': 0.0}, 'learning_rate: expected a finite number above 0'),
    ({'rate': float('nan')}, 'learning_rate: expected'),
    ({'warmup_epochs': -1.0}, 'warmup_epochs: expected a finite number of at'),
    ({'counts': 'pushes'}, r"counts: expected one of \['examples', 'updates'"),
  )
  def test_bad_schedules_are_refused(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      _schedule(**changed)

  def test_steps_that_do_not_increase_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'epochs: expected increasing'):
      schedule.step(total_epochs=1.0, epochs=(2, 1), factor=0.1)


if __name__ == '__main__':
  absltest.main()
