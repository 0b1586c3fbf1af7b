"""Tests for cluster.server and cluster.optimizer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

from cluster import optimizer
from cluster.server import Server


def _tree(seed):
  rng = np.random.default_rng(seed)
  tree = {'a': rng.normal(size=(3, 2)), 'b': rng.normal(size=4)}
  return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


def _server(tx, *, reduction='sum', rate=0.1):
  return Server(
    params=_tree(0),
    tx=tx,
    learning_rate=lambda examples: rate,
    reduction=reduction,
    num_workers=4,
    worker_batch=8,
  )


_SGD = {'momentum': 0.9, 'nesterov': True, 'weight_decay': 0.01}
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
  )
  def test_full_batches_are_plain_optax(self, tx, plain):
    server = _server(tx)
    params = _tree(0)
    state = plain.init(params)
    for update in range(5):
      gradient = _tree(update + 1)
      server.add(update, jax.tree.map(lambda g: g * 8, gradient), 8)
      server.commit(update)
      updates, state = plain.update(gradient, state, params)
      params = optax.apply_updates(params, updates)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
      server.params,
      params,
    )
    self.assertEqual((server.version, server.examples), (5, 40))

  @parameterized.parameters(('sum', 24 / 8), ('mean', 24 / 32))
  def test_the_step_is_scaled_by_the_examples(self, reduction, scale):
    tx = optimizer.sgd(momentum=0.0, nesterov=False, weight_decay=0.0)
    server = _server(tx, reduction=reduction)
    first, second = _tree(1), _tree(2)
    server.add(7, jax.tree.map(jnp.copy, first), 8)
    server.add(7, second, 16)
    server.commit(7)

    expected = jax.tree.map(
      lambda p, a, b: p - 0.1 * scale * (a + b) / 24, _tree(0), first, second
    )
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
      server.params,
      expected,
    )

  def test_a_version_that_was_pulled_stays_as_it_was(self):
    server = _server(optimizer.adamw(**_ADAMW))
    server.warm_up()
    pulled = server.params
    for update in range(3):
      server.add(update, _tree(update), 8)
      server.commit(update)
    jax.tree.map(np.testing.assert_array_equal, pulled, _tree(0))

  def test_its_size_is_that_of_the_parameters(self):
    self.assertEqual(_server(optax.sgd(1.0)).size_bytes, 4 * (6 + 4))

  def test_an_unknown_reduction_is_refused(self):
    with self.assertRaisesRegex(ValueError, "reduction: .* got 'median'"):
      _server(optax.sgd(1.0), reduction='median')


class ScheduleTest(parameterized.TestCase):
  def test_it_drops_by_examples(self):
    schedule = optimizer.schedule(
      learning_rate=1.0, drop_epochs=(0.5, 2), drop_factor=0.1, num_examples=100
    )
    rates = [schedule(examples) for examples in (0, 49, 50, 199, 200, 1000)]
    np.testing.assert_allclose(rates, [1, 1, 0.1, 0.1, 0.01, 0.01])

  @parameterized.parameters(
    ({'learning_rate': 0.0}, 'learning_rate: expected a number above 0'),
    ({'learning_rate': float('nan')}, 'learning_rate: expected'),
    ({'drop_factor': -1.0}, 'drop_factor: expected a number above 0'),
    ({'drop_epochs': (2, 1)}, 'drop_epochs: expected increasing'),
    ({'drop_epochs': (0,)}, 'drop_epochs: expected increasing'),
  )
  def test_bad_schedules_are_refused(self, changed, message):
    arguments = {
      'learning_rate': 1.0,
      'drop_epochs': (),
      'drop_factor': 0.1,
      'num_examples': 100,
    }
    with self.assertRaisesRegex(ValueError, message):
      optimizer.schedule(**arguments | changed)

  @parameterized.parameters(
    (optimizer.sgd, _SGD | {'momentum': 1.0}, 'momentum: expected'),
    (optimizer.sgd, _SGD | {'weight_decay': -1.0}, 'weight_decay: expected'),
    (optimizer.adamw, _ADAMW | {'b2': 1.5}, 'b2: expected'),
    (optimizer.adamw, _ADAMW | {'eps': 0.0}, 'eps: expected'),
  )
  def test_bad_optimisers_are_refused(self, make, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      make(**arguments)


if __name__ == '__main__':
  absltest.main()
