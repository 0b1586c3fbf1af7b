"""Tests for models that compute in halves of float32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from flax import nnx

from models import norm, task
from tests.support import small_models

_EPS = {'bfloat16': 2.0**-7, 'float16': 2.0**-10}
_MODELS = {
  'alexnet': (
    functools.partial(small_models.make_alexnet, norm='batch', dropout=0.0),
    small_models.images((4, 32, 32, 3)),
  ),
  'transformer': (
    functools.partial(small_models.make_transformer, layers=1, dropout=0.0),
    small_models.tokens((4, 8)),
  ),
}


@functools.cache
def _make(name, dtype):
  """Returns loss and gradient of parameters, and these."""
  make, inputs = _MODELS[name]
  model = small_models.make_by_numpy(make, dtype=jnp.dtype(dtype))
  if inputs.dtype == np.int32:
    learned, targets = task.next_token(model), inputs
  else:
    learned = task.classification(model, lambda x: x, lambda x, _: x)
    targets = np.arange(len(inputs))

  def loss(params, inputs):
    each, stats = learned.loss(params, inputs, targets, jax.random.key(0))
    return each.sum(), stats

  return jax.value_and_grad(loss, has_aux=True), (learned.params, inputs)


@functools.cache
def _compute(name, dtype):
  """Returns loss, gradient as one vector, and statistics."""
  function, arguments = _make(name, dtype)
  (loss, stats), gradient = small_models.jit(function)(*arguments)
  leaves = jax.tree.leaves(gradient)
  return float(loss), np.concatenate([np.ravel(x) for x in leaves]), stats


def _equations(jaxpr):
  for equation in jaxpr.eqns:
    yield equation
    for value in jax.tree.leaves(
      equation.params, is_leaf=lambda x: hasattr(x, 'jaxpr')
    ):
      inner = getattr(value, 'jaxpr', value)
      if hasattr(inner, 'eqns'):
        yield from _equations(inner)


class ModelTest(parameterized.TestCase):
  @parameterized.product(name=[*_MODELS], dtype=[*_EPS])
  def test_layers_compute_in_halves_and_norms_in_float32(self, name, dtype):
    function, arguments = _make(name, dtype)
    jaxpr, ((loss, stats), gradient) = jax.make_jaxpr(
      function, return_shape=True
    )(*arguments)
    leaves = [loss, *jax.tree.leaves((stats, gradient, arguments[0]))]
    self.assertEqual({leaf.dtype for leaf in leaves}, {np.dtype(np.float32)})
    found = {'layer': set(), 'norm': set()}
    for equation in _equations(jaxpr.jaxpr):
      kind = equation.primitive.name
      dtypes = {var.aval.dtype.name for var in equation.invars}
      if kind == 'dot_general':
        _, (batched, _) = equation.params['dimension_numbers']
        if not batched:  # Attention sums in float32.
          found['layer'] |= dtypes
      elif kind == 'conv_general_dilated':
        found['layer'] |= dtypes
      elif kind == 'rsqrt':
        found['norm'] |= dtypes
    self.assertEqual(found, {'layer': {dtype}, 'norm': {'float32'}})

  # A layer rounds its inputs, its parameters and its results, on the way
  # there and back: 6 roundings of at most eps / 2.
  @parameterized.parameters(
    ('alexnet', 5, 'bfloat16'),
    ('transformer', 6, 'bfloat16'),
    ('transformer', 6, 'float16'),
  )
  def test_gradients_are_within_rounding_of_float32(self, name, layers, dtype):
    self._check_rounding(name, layers, dtype)

  @pytest.mark.soak
  def test_float16_of_alexnet_is_within_rounding_too(self):
    self._check_rounding('alexnet', 5, 'float16')

  def _check_rounding(self, name, layers, dtype):
    most = 3 * layers * _EPS[dtype]
    exact_loss, exact, exact_stats = _compute(name, 'float32')
    loss, gradient, stats = _compute(name, dtype)
    self.assertAlmostEqual(loss / exact_loss, 1, delta=most)
    apart = np.linalg.norm(gradient - exact)
    self.assertBetween(apart / np.linalg.norm(exact), most / 100, most)
    jax.tree.map(
      lambda got, want: self.assertLess(
        np.linalg.norm(got - want), most * np.linalg.norm(want)
      ),
      stats,
      exact_stats,
    )

  @parameterized.parameters('group', 'batch')
  def test_norms_accept_numbers_whose_square_overflows_float16(self, kind):
    inputs = np.float16(300) * small_models.images((4, 2, 2, 8))
    layer = norm.make(kind, 8, nnx.Rngs(0))
    found = layer(jnp.asarray(inputs, jnp.float16), train=True)
    axes = (0, 1, 2) if kind == 'batch' else (1, 2)
    wide = inputs.astype(np.float16).astype(np.float64)
    wide -= wide.mean(axes, keepdims=True)
    want = wide / np.sqrt((wide**2).mean(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


if __name__ == '__main__':
  absltest.main()
