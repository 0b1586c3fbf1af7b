"""Tests for learning.streaming: what is handed out is what is returned."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from flax import nnx

from data.dataset import Split
from learning import compilations
from learning.gradient import TaskGradient
from learning.nothing import Nothing
from learning.pool import Filling, Pool
from learning.streaming import StreamingGradient
from models import mlp, norm, task, transformer
from models.task import Task
from tests.support import drawn

_EXAMPLES = 16


class _Conv(nnx.Module):
  """Statistics of the batch, dropout, and a bias that nothing depends on."""

  def __init__(self):
    rngs = nnx.Rngs(0)
    self.conv = nnx.Conv(1, 6, (3, 3), use_bias=False, rngs=rngs)
    self.norm = norm.make('batch', 6, rngs)
    self.dropout = nnx.Dropout(0.4)
    self.last = nnx.Linear(6, 5, rngs=rngs)
    self.unused = nnx.Param(jnp.ones(3))

  def __call__(self, inputs, *, rngs=None):
    x = nnx.relu(self.norm(self.conv(inputs), train=rngs is not None))
    x = x.mean(axis=(1, 2))
    x = self.dropout(x, deterministic=rngs is None, rngs=rngs)
    return self.last(x)


def _gradient(learned, inputs, targets, micro_batch=4):
  return TaskGradient(
    learned,
    Split(inputs, targets),
    lambda ranges: np.arange(*ranges[0]),
    micro_batch=micro_batch,
    seed=0,
  )


@functools.cache
def _made(kind):
  rng = np.random.default_rng(0)
  inputs = rng.normal(size=(_EXAMPLES, 6, 6, 1)).astype(np.float32)
  targets = rng.integers(5, size=_EXAMPLES).astype(np.int32)
  size = {'num_classes': 5, 'seed': 0}
  if kind == 'conv':
    make = _Conv
  elif kind == 'mlp':
    size |= {'input_shape': (6, 6, 1), 'hidden': (7, 9)}
    make = functools.partial(mlp.make, **size)
  else:
    size |= {'layers': 1, 'width': 8, 'heads': 2, 'dropout': 0.0}
    make = functools.partial(transformer.make, input_shape=(6,), **size)
    inputs, targets = rng.integers(5, size=(2, _EXAMPLES, 6)).astype(np.int32)
  model = drawn.model(make)
  learned = task.classification(model, lambda x: x, lambda x, _: x)
  return _gradient(learned, inputs, targets)


def _pool(gradient, range_bytes=0.0):
  learned = gradient.task
  order = gradient.order(learned.params)
  sizes = {'range_bytes': range_bytes, 'books': 1}
  return Pool(learned.params, learned.stats, order, **sizes)


def _streamed(streaming, gradient, pool, examples):
  """Returns the pool after a call, and which ranges were told of when."""
  vector, told = np.zeros(pool.size, np.float32), []
  filling = Filling(pool, vector, told.append)
  call = {'worker': 1, 'iteration': examples, 'into': filling}
  params = gradient.task.params
  stats, loss = streaming.stream(params, ((0, examples),), **call)
  filling.finish(stats, [loss])
  return vector, told


def _expected(gradient, pool, examples):
  vector = np.zeros(pool.size, np.float32)
  call = {'worker': 1, 'iteration': examples}
  payload, loss = gradient(gradient.task.params, ((0, examples),), **call)
  for leaf, array in enumerate(jax.tree.leaves(payload.gradient)):
    pool.put(vector, leaf, array)
  pool.put_stats(vector, payload.stats)
  pool.books(vector)[...] = loss
  return vector


class StreamingTest(parameterized.TestCase):
  @parameterized.parameters(
    ('conv', 1), ('mlp', 0), ('mlp', 1), ('transformer', 1)
  )
  def test_it_is_the_gradient_to_the_last_bit(self, kind, overlap):
    self._check_same(kind, overlap)

  @parameterized.parameters('conv', 'transformer')
  @pytest.mark.soak
  def test_so_it_is_of_other_models_without_overlap(self, kind):
    self._check_same(kind, 0)

  def _check_same(self, kind, overlap):
    gradient = _made(kind)
    pool = _pool(gradient, range_bytes=100.0)
    streaming = StreamingGradient(gradient, pool.leaves_of, overlap=overlap)
    self.assertEqual(streaming.overlaps, bool(overlap))
    for examples in (4, 15, 7):  # Of 4 each: few programs.
      vector, told = _streamed(streaming, gradient, pool, examples)
      expected = _expected(gradient, pool, examples)
      np.testing.assert_array_equal(vector.view('u4'), expected.view('u4'))
      self.assertCountEqual(told, range(len(pool.ranges)))
      self.assertGreater(np.count_nonzero(vector), pool.size // 2)
    leaves = len(pool.order) - (kind == 'conv')  # One is not used.
    self.assertEqual(streaming.early, 3 * leaves if overlap else 0)

  def test_nothing_is_compiled_late(self):
    gradient = _made('mlp')
    pool = _pool(gradient, math.inf)
    streaming = StreamingGradient(gradient, pool.leaves_of, overlap=True)
    params = gradient.task.params
    computed = gradient.computed
    streaming.warm_up_stream(params, 6, changing=True)
    self.assertEqual(streaming.computed, computed)
    before = compilations.count()
    for examples in range(1, 7):
      _streamed(streaming, gradient, pool, examples)
    self.assertEqual(compilations.count(), before)

  def test_one_size_compiles_what_it_needs(self):
    for overlap in (True, False):
      gradient = _made.__wrapped__('mlp')
      pool = _pool(gradient)
      streaming = StreamingGradient(gradient, pool.leaves_of, overlap=overlap)
      streaming.warm_up_stream(gradient.task.params, 8, changing=False)
      before = compilations.count()
      _streamed(streaming, gradient, pool, 8)
      self.assertEqual(compilations.count(), before)

  @parameterized.parameters(KeyError, KeyboardInterrupt)
  def test_what_goes_wrong_outside_is_raised_as_it_is(self, kind):
    class Into:
      def put(self, leaf, array):
        leaves.append(leaf)
        if len(leaves) == 2:
          raise raised

    gradient = _made('mlp')
    pool = _pool(gradient)
    streaming = StreamingGradient(gradient, pool.leaves_of, overlap=True)
    leaves, raised = [], kind('its own')
    call = {'worker': 0, 'iteration': 0, 'into': Into()}
    with self.assertRaises(kind) as caught:
      streaming.stream(gradient.task.params, ((0, 4),), **call)
    self.assertIs(caught.exception, raised)
    self.assertLen(leaves, 2)
    vector, _ = _streamed(streaming, gradient, pool, 4)  # It goes on.
    np.testing.assert_array_equal(vector, _expected(gradient, pool, 4))

  def test_tied_parameters_loops_and_remat(self):
    def loss(params, inputs, targets, key):
      @jax.checkpoint
      def again(x):
        return jnp.sin(x @ params['twice'])

      x, _ = jax.lax.scan(
        lambda x, _: (jnp.tanh(x @ params['loop']), None), inputs, length=3
      )
      return (again(x) @ params['twice']).sum(axis=1) * params['one'], ()

    rng = np.random.default_rng(0)
    shapes = {'loop': (9, 9), 'twice': (9, 9), 'one': ()}
    params = {
      name: jnp.asarray(rng.normal(size=shape), jnp.float32)
      for name, shape in shapes.items()
    }
    inputs = rng.normal(size=(_EXAMPLES, 9)).astype(np.float32)
    learned = Task(params, loss, loss)
    gradient = _gradient(learned, inputs, np.zeros(_EXAMPLES, np.int32))
    pool = _pool(gradient)
    streaming = StreamingGradient(gradient, pool.leaves_of, overlap=True)
    for examples in (4, 7):
      vector, _ = _streamed(streaming, gradient, pool, examples)
      expected = _expected(gradient, pool, examples)
      np.testing.assert_array_equal(vector.view('u4'), expected.view('u4'))
    self.assertEqual(streaming.early, 6)

  def test_it_is_a_gradient_too(self):
    gradient = _made('mlp')
    streaming = StreamingGradient(gradient, (), overlap=False)
    params, ranges = gradient.task.params, ((0, 4),)
    streaming.prepare(ranges)
    call = {'worker': 0, 'iteration': 0}
    got = streaming(streaming.placed(params), ranges, **call)
    expected = gradient(params, ranges, **call)
    jax.tree.map(np.testing.assert_array_equal, got, expected)
    self.assertLen(streaming.warm_up(params, 4, changing=False), 1)


class NothingTest(absltest.TestCase):
  def test_a_pool_of_nothing_is_as_large_and_full_at_once(self):
    learning = Nothing(size_bytes=4000, num_train=10, stream=None)
    pool = learning.pool(range_bytes=0, books=2)
    self.assertBetween(pool.size, 1002, 1017)
    streaming = learning.streaming(pool, overlap=True)
    streaming.warm_up_stream((), 4, changing=True)
    vector, told = np.zeros(pool.size, np.float32), []
    filling = Filling(pool, vector, told.append)
    stats, loss = streaming.stream(
      (), ((0, 4),), worker=0, iteration=0, into=filling
    )
    self.assertIsNone(loss)
    self.assertEqual(told, [])
    filling.finish(stats, (1, 2))
    self.assertEqual(told, [0])
    np.testing.assert_array_equal(vector[-2:], [1, 2])
    self.assertFalse(vector[:-2].any())


if __name__ == '__main__':
  absltest.main()
