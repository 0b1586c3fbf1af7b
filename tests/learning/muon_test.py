"""Tests for Muon, by hand in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

from learning import optimizer

_FIELDS = {
  'momentum': 0.9,
  'nesterov': True,
  'iterations': 5,
  'rms': 0.2,
  'b1': 0.8,
  'b2': 0.95,
  'eps': 1e-8,
  'weight_decay': 0.1,
}
# Matrices from inputs to outputs, and what takes steps of AdamW.
_MATRICES = {'wide': (3, 8), 'convolution': (2, 2, 3, 5)}
_OTHERS = {'bias': (5,), 'scale': ()}
_TABLE = (6, 4)


def _tree(seed):
  """Returns random leaves of all kinds."""
  rng = np.random.default_rng(seed)
  flat = {
    name: rng.normal(size=shape).astype(np.float32)
    for name, shape in {**_MATRICES, **_OTHERS}.items()
  }
  table = rng.normal(size=_TABLE).astype(np.float32)
  return {**flat, 'tokens': {'embedding': table}}


def _orthogonal(matrix):
  """Returns the result of five iterations of a quintic polynomial."""
  x = matrix / np.linalg.norm(matrix)
  for _ in range(_FIELDS['iterations']):
    a = x @ x.T
    x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
  return x


def _by_hand(nesterov):
  """Returns the matrices after two gradients, at a rate of 1."""
  decay, found = _FIELDS['momentum'], {}
  for name in _MATRICES:
    w = _tree(0)[name].astype(np.float64)
    mean = np.zeros_like(w)
    for count in (1, 2):
      g = _tree(count)[name].astype(np.float64)
      mean = decay * mean + (1 - decay) * g
      ahead = mean / (1 - decay**count)
      if nesterov:
        ahead = decay * mean / (1 - decay ** (count + 1)) + (1 - decay) * g / (
          1 - decay**count
        )
      matrix = ahead.reshape(-1, w.shape[-1])
      step = _orthogonal(matrix).reshape(w.shape)
      scale = 0.2 * np.sqrt(max(matrix.shape))
      w = w - scale * step - _FIELDS['weight_decay'] * w
    found[name] = w
  return found


class MuonTest(parameterized.TestCase):
  @parameterized.parameters(True, False)
  def test_matrices_are_made_orthogonal_and_others_take_steps_of_adamw(
    self, nesterov
  ):
    tx = optimizer.muon(**_FIELDS | {'nesterov': nesterov})
    adamw = optax.adamw(
      1.0, b1=0.8, b2=0.95, weight_decay=0.1, nesterov=nesterov
    )
    params = jax.tree.map(jnp.asarray, _tree(0))
    others = {k: params[k] for k in (*_OTHERS, 'tokens')}
    state, other_state = jax.jit(tx.init)(params), adamw.init(others)
    update = jax.jit(tx.update)
    for seed in (1, 2):
      gradient = _tree(seed)
      updates, state = update(gradient, state, params)
      params = optax.apply_updates(params, updates)
      other = {k: gradient[k] for k in others}
      updates, other_state = adamw.update(other, other_state, others)
      others = optax.apply_updates(others, updates)
    for name, expected in _by_hand(nesterov).items():
      np.testing.assert_allclose(params[name], expected, rtol=1e-4, atol=1e-4)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
      {k: params[k] for k in others},
      others,
    )

  def test_steps_have_about_the_size_of_adams(self):
    tx = optimizer.muon(**_FIELDS | {'weight_decay': 0.0})
    params = {'kernel': jnp.zeros((16, 64))}
    noise = {'kernel': np.random.default_rng(0).normal(size=(16, 64))}
    updates, _ = jax.jit(tx.update)(noise, jax.jit(tx.init)(params), params)
    size = float(jnp.sqrt(jnp.mean(jnp.square(updates['kernel']))))
    self.assertBetween(size, 0.12, 0.25)

  @parameterized.parameters(
    ({'momentum': 0.0}, 'nesterov: expected False without momentum'),
  )
  def test_rejects(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      optimizer.muon(**_FIELDS | changed)


if __name__ == '__main__':
  absltest.main()
