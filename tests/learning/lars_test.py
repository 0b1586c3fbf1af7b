"""Tests for LARS: by hand in float64, and of gradients of which parts wait."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from learning import optimizer
from learning.learner import TaskLearner
from wire.codec import Payload

_RATE, _KEPT, _DECAY, _TRUST = 4.0, 0.9, 0.01, 0.02
_SHAPES = {'kernel': (3, 4, 5), 'bias': (5,), 'scale': (7,), 'none': (2, 2)}


def _tree(seed):
  rng = np.random.default_rng(seed)
  tree = {n: rng.normal(size=s).astype(np.float32) for n, s in _SHAPES.items()}
  if seed == 0:
    tree['bias'][...] = tree['none'][...] = 0.0
  return tree


def _learner(*, skip_vectors):
  return TaskLearner(
    params=jax.tree.map(jnp.asarray, _tree(0)),
    stats=(),
    tx=optimizer.lars(
      momentum=_KEPT,
      nesterov=False,
      weight_decay=_DECAY,
      trust_coefficient=_TRUST,
      skip_vectors=skip_vectors,
    ),
    schedule=lambda examples, updates: _RATE,
    reduction='mean',
    num_workers=2,
    worker_batch=8,
  )


def _by_hand(updates, arrived, *, skip_vectors):
  """Returns the parameters after gradients, of which some numbers arrive."""
  params = {name: leaf.astype(np.float64) for name, leaf in _tree(0).items()}
  moved = {name: np.zeros_like(leaf) for name, leaf in params.items()}
  for gradient in updates:
    for name, w in params.items():
      here = arrived[name]
      g = np.where(here, gradient[name].astype(np.float64), 0)
      if w.ndim > 1 or not skip_vectors:
        g = g + _DECAY * w
        # Norms of whole layers, independent of the arrived part.
        long, step = np.sqrt((w**2).sum()), np.sqrt((g**2).sum())
        g = g * (_TRUST * long / step if long * step else 1.0)
      moved[name] = np.where(here, _KEPT * moved[name] + g, moved[name])
      params[name] = np.where(here, w - _RATE * moved[name], w)
  return params


class LarsTest(parameterized.TestCase):
  @parameterized.product(skip_vectors=[False, True], waits=[False, True])
  def test_steps_equal_those_computed_by_hand(self, skip_vectors, waits):
    rng = np.random.default_rng(9)
    arrived = {
      name: rng.random(shape) < (0.5 if waits else 1.1)
      for name, shape in _SHAPES.items()
    }
    learner = _learner(skip_vectors=skip_vectors)
    updates = [_tree(seed) for seed in range(1, 5)]
    for number, gradient in enumerate(updates):
      summed = {
        name: jnp.asarray(np.where(arrived[name], 16 * leaf, 0))
        for name, leaf in gradient.items()
      }
      mask = jax.tree.map(jnp.asarray, arrived) if waits else ()
      learner.add(number, Payload(summed, (), mask), 16, pushes=2)
      learner.commit(number)
    want = _by_hand(updates, arrived, skip_vectors=skip_vectors)
    for name, leaf in want.items():
      np.testing.assert_allclose(
        learner.params[name], leaf, rtol=2e-5, atol=1e-5, err_msg=name
      )


if __name__ == '__main__':
  absltest.main()
