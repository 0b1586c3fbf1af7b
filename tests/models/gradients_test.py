"""Tests for models.gradients, by brute force, and against JAX's own."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized
from flax import nnx

from models import gradients
from tests.support.small_models import jit

_HALVES = (jnp.bfloat16, jnp.float16)
# As AlexNet, ResNet, Inception and VGG pool.
_POOLS = {
  'alexnet': ((9, 9), (3, 3), (2, 2), 'VALID'),
  'alexnet_even': ((8, 8), (3, 3), (2, 2), 'SAME'),
  'resnet': ((8, 8), (3, 3), (2, 2), ((1, 1), (1, 1))),
  'vgg': ((8, 6), (2, 2), (2, 2), 'VALID'),
}


def _pull_back(function, primal, cotangent):
  """Returns a function's value and the gradient of one argument."""
  value, pull = jax.vjp(function, primal)
  return value, pull(cotangent)[0]


def _pooling(pool, *how):
  return lambda inputs: pool(inputs, *how)


def _windows(length, size, stride, padding):
  """Yields where each window starts along an axis; it may be outside."""
  if padding == 'SAME':
    count = -(-length // stride)
    low = max((count - 1) * stride + size - length, 0) // 2
    return [stride * i - low for i in range(count)]
  low, high = (0, 0) if padding == 'VALID' else padding
  return range(-low, length + high - size + 1, stride)


def _brute_force(inputs, window, strides, padding, cotangent_of):
  """Returns maxima of float64 [B, H, W, C] and the gradient of the inputs."""
  paddings = (padding,) * 2 if isinstance(padding, str) else padding
  starts = [
    _windows(*of_axis)
    for of_axis in zip(
      inputs.shape[1:3], window, strides, paddings, strict=True
    )
  ]
  batch, height, width, channels = inputs.shape
  maxima = np.zeros((batch, *map(len, starts), channels))
  cotangent, gradient = cotangent_of(maxima.shape), np.zeros_like(inputs)
  for b, c in itertools.product(range(batch), range(channels)):
    for (i, top), (j, left) in itertools.product(*map(enumerate, starts)):
      inside = [
        (b, y, x, c)
        for y in range(top, top + window[0])
        for x in range(left, left + window[1])
        if 0 <= y < height and 0 <= x < width
      ]
      first = max(inside, key=lambda place: inputs[place])
      maxima[b, i, j, c] = inputs[first]
      gradient[first] += cotangent[b, i, j, c]
  return maxima, cotangent, gradient


class MaxPoolTest(parameterized.TestCase):
  @parameterized.product(
    window=[(2, 2), (3, 2)],
    strides=[(1, 1), (2, 2), (3, 1)],
    padding=['VALID', 'SAME', ((1, 1), (0, 1))],
    dtype=[jnp.float32, *_HALVES],
  )
  def test_the_first_maximum_gets_the_gradient(
    self, window, strides, padding, dtype
  ):
    rng = np.random.default_rng(0)
    batch = 1 + strides[0]
    # Few values: most windows have several maxima; sums are exact in halves.
    inputs = rng.integers(-2, 2, (batch, 7, 6, 2)).astype(np.float64)
    expected, cotangent, gradient = _brute_force(
      *(inputs, window, strides, padding),
      lambda shape: rng.integers(-8, 9, shape).astype(np.float64),
    )

    def pool(inputs):
      return gradients.max_pool(inputs, window, strides, padding)

    arguments = jnp.asarray(inputs, dtype), jnp.asarray(cotangent, dtype)
    maxima, got = jit(_pull_back, static_argnums=0)(pool, *arguments)
    self.assertEqual((maxima.dtype, got.dtype), (dtype, dtype))
    np.testing.assert_array_equal(np.asarray(maxima, np.float64), expected)
    np.testing.assert_array_equal(np.asarray(got, np.float64), gradient)

  @parameterized.product(
    name=[*_POOLS], special=[(), (np.nan, np.inf, -np.inf)]
  )
  def test_max_pool_equals_that_of_jax_bit_for_bit_on_cpus(self, name, special):
    pixels, *how = _POOLS[name]
    rng = np.random.default_rng(1)
    inputs = rng.integers(-3, 3, (3, *pixels, 4)).astype(np.float32)
    for value in special:
      inputs[rng.random(inputs.shape) < 0.1] = value
    inputs = jnp.asarray(inputs)
    shape = jax.eval_shape(lambda x: nnx.max_pool(x, *how), inputs).shape
    cotangent = jnp.asarray(rng.normal(size=shape), jnp.float32)
    got, expected = (
      jit(_pull_back, static_argnums=0)(_pooling(pool, *how), inputs, cotangent)
      for pool in (gradients.max_pool, nnx.max_pool)
    )
    for one, other in zip(got, expected, strict=True):
      np.testing.assert_array_equal(one, other)

  @parameterized.parameters(*_HALVES)
  def test_16_bit_gradients_are_summed_in_float32_and_rounded_once(self, dtype):
    inputs = jnp.ones((1, 3, 3, 1), dtype).at[0, 1, 1].set(2)
    tiny = float(jnp.finfo(dtype).eps) / 4
    cotangent = jnp.asarray([1, tiny, tiny, tiny], dtype).reshape(1, 2, 2, 1)
    _, got = jit(_pull_back, static_argnums=0)(
      lambda inputs: gradients.max_pool(inputs, (2, 2)), inputs, cotangent
    )
    once = jnp.asarray(1 + 3 * tiny, dtype)
    self.assertGreater(once, 1)
    self.assertEqual(got[0, 1, 1, 0], once)

  def test_max_pool_takes_other_numbers_of_axes(self):
    rng = np.random.default_rng(2)
    row = jnp.asarray(rng.normal(size=(4, 9, 3)), jnp.float32)
    cube = jnp.asarray(rng.normal(size=(2, 4, 4, 6, 3)), jnp.float32)
    for inputs, window in ((row, (3,)), (cube, (2, 2, 3)), (row[0], (3,))):
      one, other = (
        jax.vjp(_pooling(pool, window, window), inputs)
        for pool in (gradients.max_pool, nnx.max_pool)
      )
      np.testing.assert_array_equal(one[0], other[0])
      (got,), (expected,) = one[1](one[0]), other[1](one[0])
      np.testing.assert_array_equal(got, expected)

  def test_vmap_equals_separate_calls(self):
    rng = np.random.default_rng(3)
    inputs = jnp.asarray(rng.integers(-2, 2, (3, 2, 5, 5, 2)), jnp.float32)

    def gradient(inputs, scale):
      def total(inputs):
        pooled = gradients.max_pool(inputs, (3, 3), (2, 2), 'SAME')
        return (pooled * scale).sum()

      return jax.grad(total)(inputs)

    scales = jnp.arange(1.0, 4.0)
    got = jit(jax.vmap(gradient))(inputs, scales)
    for one, each, scale in zip(got, inputs, scales, strict=True):
      np.testing.assert_array_equal(one, gradient(each, scale))
    last = jit(jax.vmap(gradient, in_axes=(4, None), out_axes=4))(inputs, 1.0)
    np.testing.assert_array_equal(last[..., 1], gradient(inputs[..., 1], 1.0))

  def test_second_derivatives_are_exact_and_forward_ones_refused(self):
    inputs = jnp.asarray(np.random.default_rng(4).normal(size=(1, 4, 4, 1)))

    def total(inputs):
      return (gradients.max_pool(inputs, (2, 2), (2, 2)) ** 3).sum()

    def slope(inputs):
      return (jax.grad(total)(inputs) ** 2).sum()

    of_slope = jax.grad(slope)(inputs)
    maxima = gradients.max_pool(inputs, (2, 2), (2, 2))
    chosen = jnp.where(inputs == maxima.repeat(2, 1).repeat(2, 2), inputs, 0)
    np.testing.assert_allclose(of_slope, 36 * chosen**3, rtol=1e-5)
    with self.assertRaisesRegex(TypeError, 'forward-mode'):
      jax.jvp(total, (inputs,), (inputs,))

  @parameterized.parameters(
    ((2, 2), (2,), (1, 4, 4, 1)),
    ((2, 2), None, (4, 4)),
  )
  def test_other_numbers_of_sizes_are_refused(self, window, strides, shape):
    with self.assertRaisesRegex(ValueError, 'window: expected as many sizes'):
      gradients.max_pool(jnp.zeros(shape), window, strides)


class EmbedTest(parameterized.TestCase):
  @parameterized.product(
    dtype=[jnp.float32, *_HALVES], shape=[(), (7,), (5, 40), (2, 3, 4)]
  )
  def test_each_row_gets_the_sum_of_its_tokens(self, dtype, shape):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(11, 6)).astype(np.float32)
    tokens = rng.integers(-2, 9, shape).astype(np.int32)  # Some from the end.
    cotangent = jnp.asarray(rng.normal(size=(*shape, 6)), dtype)

    def embed(table):
      return gradients.embed(table, tokens, dtype)

    rows, got = jit(_pull_back, static_argnums=0)(embed, table, cotangent)
    expected = np.zeros((11, 6))
    np.add.at(expected, tokens, np.asarray(cotangent, np.float64))
    np.testing.assert_array_equal(rows, jnp.asarray(table, dtype)[tokens])
    self.assertEqual(got.dtype, np.float32)
    # Float32 sums of up to 40 numbers, whatever the type.
    np.testing.assert_allclose(got, expected, rtol=0, atol=4e-6)

  def test_many_equal_tokens_lose_nothing_in_16_bits(self):
    tokens = np.zeros(4096, np.int32)
    cotangent = jnp.ones((4096, 1), jnp.bfloat16)
    _, got = _pull_back(
      lambda table: gradients.embed(table, tokens, jnp.bfloat16),
      jnp.zeros((3, 1)),
      cotangent,
    )
    np.testing.assert_array_equal(got, [[4096], [0], [0]])

  def test_tokens_out_of_range_are_nan(self):
    rows = gradients.embed(
      jnp.ones((3, 2)), np.array([2, 3, -3, -4]), 'float32'
    )
    np.testing.assert_array_equal(np.isnan(rows[:, 0]), [0, 1, 0, 1])

  def test_the_product_has_full_precision_in_any_precision_mode(self):
    tokens, cotangent = jnp.zeros(4, int), jnp.ones((4, 2))
    with jax.default_matmul_precision('bfloat16'):
      lowered = jax.jit(
        lambda table: _pull_back(
          lambda table: gradients.embed(table, tokens, 'float32'),
          *(table, cotangent),
        )
      ).lower(jnp.zeros((3, 2)))
    products = [
      line for line in lowered.as_text().splitlines() if 'dot' in line
    ]
    self.assertLen(products, 1)
    self.assertIn('HIGHEST', products[0])

  def test_vmap_equals_separate_calls(self):
    rng = np.random.default_rng(1)
    tables = jnp.asarray(rng.normal(size=(3, 5, 2)), jnp.float32)
    tokens = jnp.asarray(rng.integers(0, 5, (3, 6)))

    def gradient(table, tokens):
      def total(table):
        return (gradients.embed(table, tokens, 'float32') ** 2).sum()

      return jax.grad(total)(table)

    got = jit(jax.vmap(gradient))(tables, tokens)
    for one, *each in zip(got, tables, tokens, strict=True):
      np.testing.assert_allclose(one, gradient(*each), rtol=1e-6)


class CrossEntropyTest(parameterized.TestCase):
  def _case(self, shape, classes):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(*shape, classes)).astype(np.float32) * 5
    return logits, rng.integers(0, classes, shape), rng.normal(size=shape)

  @parameterized.product(shape=[(), (16,), (4, 9)], classes=[1, 2, 10])
  def test_against_float64(self, shape, classes):
    logits, targets, cotangent = self._case(shape, classes)
    exact = logits.astype(np.float64)
    shares = np.exp(exact - np.logaddexp.reduce(exact, -1, keepdims=True))
    ones = np.eye(classes)[targets]
    losses, got = jit(_pull_back, static_argnums=0)(
      lambda logits: gradients.softmax_cross_entropy(logits, targets),
      *(logits, cotangent.astype(np.float32)),
    )
    expected = -np.log((shares * ones).sum(-1))
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=2e-6)
    gradient = (shares - ones) * cotangent[..., None]
    np.testing.assert_allclose(got, gradient, rtol=1e-5, atol=1e-6)

  def test_cross_entropy_equals_that_of_optax_bit_for_bit_on_cpus(self):
    logits, targets, cotangent = self._case((64, 16), 37)
    arguments = logits, cotangent.astype(np.float32)
    got, expected = (
      jax.jit(_pull_back, static_argnums=0)(
        lambda logits, loss=loss: loss(logits, targets), *arguments
      )
      for loss in (
        gradients.softmax_cross_entropy,
        optax.softmax_cross_entropy_with_integer_labels,
      )
    )
    for one, other in zip(got, expected, strict=True):
      np.testing.assert_array_equal(one, other)

  def test_targets_out_of_range_are_nan(self):
    losses = gradients.softmax_cross_entropy(
      jnp.ones((4, 3)), np.array([2, 3, -3, -4])
    )
    np.testing.assert_array_equal(np.isnan(losses), [0, 1, 0, 1])

  def test_forward_derivatives_are_refused(self):
    def loss(logits):
      return gradients.softmax_cross_entropy(logits, np.array([1])).sum()

    one = jnp.ones((1, 3))
    with self.assertRaisesRegex(TypeError, 'forward-mode'):
      jax.jvp(loss, (one,), (one,))


if __name__ == '__main__':
  absltest.main()
