"""Tests for learning.pool, learning.digest and the update of a pool's sums."""

import functools
import math
import random
import threading

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from learning import compilations, optimizer, schedule
from learning.digest import digest
from learning.learner import TaskLearner
from learning.nothing import NoLearner
from learning.pool import Filling, Pool, backward_order
from models import mlp, resnet, task, transformer, vgg
from tests.support import drawn
from wire.codec import Payload


def _trees(seed):
  rng = np.random.default_rng(seed)
  shapes = {'a': (3, 7), 'b': (), 'c': (130,), 'd': (0,), 'e': (16,)}
  params = {
    name: np.asarray(rng.normal(size=shape), np.float32)
    for name, shape in shapes.items()
  }
  stats = [np.asarray(rng.normal(size=5), np.float32)]
  return params, stats


_ORDER = (4, 2, 3, 0, 1)
_BYTES = (64, 520, 0, 84, 4)  # Of the leaves in that order.


def _pool(bucket_bytes=0.0, books=3):
  return Pool(*_trees(0), _ORDER, bucket_bytes=bucket_bytes, books=books)


def _filled(pool, seed):
  """Returns a vector of XLA's taste with the numbers of a payload, and it."""
  whole = np.zeros(pool.size + 16, np.float32)
  start = -whole.ctypes.data % 64 // 4
  vector = whole[start : start + pool.size]
  params, stats = _trees(seed)
  for leaf, array in enumerate(jax.tree.leaves(params)):
    pool.put(vector, leaf, array)
  pool.put_stats(vector, stats)
  return vector, Payload(params, stats)


class PoolTest(parameterized.TestCase):
  def test_what_was_put_is_there_and_nothing_else(self):
    pool = _pool()
    vector, payload = _filled(pool, 1)
    pool.books(vector)[...] = 1, 2, 3
    leaves = jax.tree.leaves(payload.gradient)
    numbers = [leaves[leaf] for leaf in _ORDER]
    numbers += [*payload.stats, np.arange(1, 4)]
    expected = np.concatenate([np.ravel(leaf) for leaf in numbers])
    np.testing.assert_array_equal(vector[vector != 0], expected)

  def test_a_payload_of_numpy_is_views_and_in_a_program_the_same(self):
    pool = _pool()
    vector, expected = _filled(pool, 2)
    payload = pool.payload(vector)
    jax.tree.map(np.testing.assert_array_equal, payload, expected)
    for leaf in jax.tree.leaves(payload):
      if leaf.size:
        self.assertTrue(np.shares_memory(leaf, vector))
        self.assertEqual(leaf.ctypes.data % 64, 0)
    in_program = jax.jit(pool.payload)(vector)
    jax.tree.map(np.testing.assert_array_equal, in_program, expected)

  @parameterized.parameters(0, 1, 65, 100, 584, 600, math.inf)
  def test_ranges_close_as_soon_as_they_may(self, bucket_bytes):
    pool = _pool(bucket_bytes)
    ranges, leaves = [], []
    for leaf, size in zip(_ORDER, _BYTES, strict=True):
      if size:
        leaves.append((leaf, size))
        if sum(size for _, size in leaves) >= bucket_bytes:
          ranges.append({leaf for leaf, _ in leaves})
          leaves = []
    # The rest goes with what comes last.
    ranges.append({leaf for leaf, _ in leaves})
    got = [set() for _ in pool.ranges]
    for leaf, number in enumerate(pool.range_of):
      if leaf != 3:  # It has no numbers.
        got[number].add(leaf)
    self.assertEqual(got, ranges)
    ends = [0, *(end for _, end in pool.ranges)]
    self.assertEqual([start for start, _ in pool.ranges], ends[:-1])
    self.assertEqual(ends[-1], pool.size)

  def test_ranges_of_leaves_alone(self):
    params = [np.zeros(3, np.float32), np.zeros(20, np.float32)]
    pool = Pool(params, (), (1, 0), bucket_bytes=0, books=0)
    self.assertEqual(pool.ranges, ((0, 32), (32, 48)))
    self.assertEqual(pool.size, 48)
    nothing = Pool((), (), (), bucket_bytes=0, books=2)
    self.assertEqual(nothing.ranges, ((0, 2),))

  @parameterized.parameters(
    ((0, 1, 2, 3, 3), {}, 'order: expected each of 0 to 4 once'),
    (_ORDER, {'bucket_bytes': -1.0}, 'bucket_bytes: expected at least 0'),
    (_ORDER, {'bucket_bytes': math.nan}, 'bucket_bytes: expected at least 0'),
    (_ORDER, {'books': -1}, 'books: expected at least 0'),
  )
  def test_bad_arguments_are_refused(self, order, changed, message):
    arguments = {'bucket_bytes': 0.0, 'books': 0} | changed
    with self.assertRaisesRegex(ValueError, message):
      Pool(*_trees(0), order, **arguments)

  def test_other_numbers_are_refused(self):
    params = [np.zeros(3, np.int32)]
    with self.assertRaisesRegex(ValueError, 'float32 leaves, got int32'):
      Pool(params, (), (0,), bucket_bytes=0, books=0)

  @parameterized.parameters(0, 100, math.inf)
  def test_a_range_is_told_of_when_it_is_full_and_once(self, bucket_bytes):
    pool = _pool(bucket_bytes)
    expected, payload = _filled(pool, 3)
    pool.books(expected)[...] = 4
    leaves = jax.tree.leaves(payload.gradient)
    for seed in range(5):
      vector = np.zeros(pool.size, np.float32)
      told = []

      def ready(number, vector=vector, told=told):
        start, end = pool.ranges[number]
        np.testing.assert_array_equal(vector[start:end], expected[start:end])
        told.append(number)

      filling = Filling(pool, vector, ready)
      jobs = [
        threading.Thread(target=filling.put, args=(leaf, leaves[leaf]))
        for leaf in _ORDER
      ]
      finish = (payload.stats, (4, 4, 4))
      jobs.append(threading.Thread(target=filling.finish, args=finish))
      random.Random(seed).shuffle(jobs)
      for job in jobs:
        job.start()
      for job in jobs:
        job.join()
      self.assertCountEqual(told, range(len(pool.ranges)))


def _classified(make, shape, targets=(), dtype=np.float32):
  learned = task.classification(drawn.model(make), lambda x: x, lambda x, _: x)
  args = (
    jax.ShapeDtypeStruct((4, *shape), dtype),
    jax.ShapeDtypeStruct((4, *targets), np.int32),
  )

  def loss(params, inputs, targets):
    key = jax.random.key(0)
    return learned.loss(params, inputs, targets, key)[0].sum()

  order = backward_order(jax.grad(loss), learned.params, *args)
  return learned.params, order


def _vgg():
  shape = (32, 32, 3)
  size = {'depth': 16, 'width': 0.125, 'dropout': 0.5}
  make = functools.partial(
    vgg.make, input_shape=shape, num_classes=10, seed=0, **size
  )
  used = [f'blocks {n} {m}' for n, most in enumerate((2, 2, 3, 3, 3))
          for m in range(most)]  # fmt: skip
  used += ['hidden 0', 'hidden 1', 'logits']
  both = [f'{name} {part}' for name in used for part in ('kernel', 'bias')]
  return *_classified(make, shape), both


def _mlp():
  make = functools.partial(
    mlp.make, input_shape=(4, 4, 1), num_classes=3, seed=0, hidden=(5, 6)
  )
  both = [f'layers {n} {p}' for n in range(3) for p in ('kernel', 'bias')]
  return *_classified(make, (4, 4, 1)), both


def _resnet():
  shape = (32, 32, 3)
  size = {'depth': 20, 'width': 0.25, 'norm': 'batch'}
  make = functools.partial(
    resnet.make, input_shape=shape, num_classes=10, seed=0, **size
  )
  layers = [f'blocks {n} convs {m}' for n in range(9) for m in range(2)]
  parts = ('conv kernel', 'norm scale', 'norm bias')
  used = [f'{name} {part}' for name in ['stem', *layers] for part in parts]
  used += ['logits kernel', 'logits bias']
  return *_classified(make, shape), used


def _transformer():
  size = {'layers': 2, 'width': 8, 'heads': 2, 'dropout': 0.1}
  make = functools.partial(
    transformer.make, input_shape=(6,), num_classes=9, seed=0, **size
  )
  norm, dense = ('scale', 'bias'), ('kernel', 'bias')
  layer = [('attention_norm', norm), ('queries_keys_values', dense),
           ('mix', dense), ('dense_norm', norm), ('up', dense),
           ('down', dense)]  # fmt: skip
  used = ['positions', 'tokens embedding']
  used += [f'layers {n} {name} {part}' for n in range(2)
           for name, parts in layer for part in parts]  # fmt: skip
  used += [f'norm {part}' for part in norm]
  used += [f'logits {part}' for part in dense]
  return *_classified(make, (6,), (6,), np.int32), used


class OrderTest(parameterized.TestCase):
  @parameterized.parameters(_vgg, _mlp, _resnet, _transformer)
  def test_it_is_the_reverse_of_use(self, make):
    params, order, used = make()
    names = [
      jax.tree_util.keystr(path, simple=True, separator=' ')
      for path, _ in jax.tree_util.tree_leaves_with_path(params)
    ]
    self.assertEqual([names[leaf] for leaf in order], used[::-1])

  def test_calls_are_looked_into_and_loops_are_not(self):
    @jax.jit
    def called(p, x):
      return jnp.sin(jnp.sin(x * p['first']) * p['next'])

    @jax.checkpoint
    def again(p, x):
      return jnp.sin(jnp.sin(x * p['third']) * p['a_fourth'])

    def loop(p, x):
      def step(x, _):
        return jnp.sin(x * p['fifth']) * p['fifth_too'], None

      return jax.lax.scan(step, x, length=3)[0]

    def loss(p, x):
      return loop(p, again(p, called(p, x))) * p['last']

    names = ('first', 'next', 'third', 'a_fourth', 'fifth', 'fifth_too', 'last')
    params = dict.fromkeys(names, 1.0)
    order = backward_order(jax.grad(loss), params, 2.0)
    got = [sorted(names)[leaf] for leaf in order]
    self.assertEqual(got[0], 'last')
    self.assertCountEqual(got[1:3], ['fifth', 'fifth_too'])
    self.assertEqual(got[3:], ['a_fourth', 'third', 'next', 'first'])

  def test_what_is_not_used_is_there_from_the_start(self):
    order = backward_order(jax.grad(lambda p: p[0] * p[2]), [1.0, 2.0, 3.0])
    self.assertCountEqual(order, range(3))


_SGD = {'momentum': 0.9, 'nesterov': False, 'weight_decay': 1e-3}
_LARS = _SGD | {'trust_coefficient': 0.02, 'skip_vectors': False}
_TXS = {
  'sgd': lambda: optimizer.sgd(**_SGD | {'momentum': 0.0}),
  'momentum': lambda: optimizer.sgd(**_SGD),
  'nesterov': lambda: optimizer.sgd(**_SGD | {'nesterov': True}),
  'adamw': lambda: optimizer.adamw(b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.1),
  'lars': lambda: optimizer.lars(**_LARS),
  'clipped': lambda: optimizer.clipped(optimizer.sgd(**_SGD), clip_norm=0.1),
}


def _learner(tx, reduction='mean'):
  rates = schedule.schedule(
    rate=0.5,
    warmup_epochs=2.0,
    counts='examples',
    shape=schedule.constant(total_epochs=9.0),
    epoch=100,
    update=32,
  )
  params, stats = jax.tree.map(jnp.asarray, _trees(0))
  return TaskLearner(
    params=params,
    stats=stats,
    tx=tx,
    schedule=rates,
    reduction=reduction,
    num_workers=3,
    worker_batch=8,
  )


class UpdateTest(parameterized.TestCase):
  @parameterized.parameters(
    *((tx, 'mean') for tx in _TXS),
    ('momentum', 'sum'),
    ('adamw', 'barrier_mean'),
  )
  def test_it_is_that_of_a_sum_to_the_last_bit(self, tx, reduction):
    pool = _pool()
    replica, plain = (_learner(_TXS[tx](), reduction) for _ in 'ab')
    plain.warm_up()
    replica.warm_up_pool(pool)
    before = compilations.count()
    for update in range(5):
      examples, pushes = 20 + 3 * update, 1 + update % 3
      vector, payload = _filled(pool, update)
      payload = jax.tree.map(jnp.array, payload)
      replica.apply_pool(pool, vector, examples, pushes=pushes)
      plain.add(update, payload, examples, pushes=pushes)
      plain.commit(update)
      self.assertEqual(digest(replica.state()), digest(plain.state()))
      vector[...] = np.nan  # It is the caller's again.
    self.assertEqual(digest(replica.state()), digest(plain.state()))
    self.assertEqual(replica.version, 5)
    self.assertEqual(compilations.count(), before)

  def test_a_version_that_was_read_stays_as_it_was(self):
    pool, replica = _pool(), _learner(_TXS['adamw']())
    params, fork = replica.params, replica.fork()
    before = digest(fork.state())
    for update in range(3):
      vector, _ = _filled(pool, update)
      replica.apply_pool(pool, vector, 8, pushes=1)
    jax.tree.map(np.testing.assert_array_equal, params, _trees(0)[0])
    self.assertEqual(digest(fork.state()), before)

  def test_nothing_is_counted(self):
    learner = NoLearner((), ())
    pool = Pool((), (), (), bucket_bytes=0, books=1)
    learner.warm_up_pool(pool)
    learner.apply_pool(pool, np.zeros(1, np.float32), 24, pushes=3)
    self.assertEqual((learner.version, learner.examples), (1, 24))


class DigestTest(absltest.TestCase):
  def test_it_tells_every_bit(self):
    state = _learner(_TXS['adamw']()).state()
    expected = digest(state)
    leaves, tree = jax.tree.flatten(state)
    copies = jax.tree.map(np.array, jax.device_get(leaves))
    self.assertEqual(digest(jax.tree.unflatten(tree, copies)), expected)
    for number, leaf in enumerate(leaves):
      if not np.size(leaf):
        continue
      changed = np.array(leaf)
      changed.reshape(-1).view(np.uint8)[-1] ^= 1
      other = [*leaves[:number], changed, *leaves[number + 1 :]]
      self.assertNotEqual(digest(jax.tree.unflatten(tree, other)), expected)

  def test_it_tells_signs_of_zero_shapes_and_names(self):
    zero = np.zeros(2, np.float32)
    states = {'a': zero}, {'a': -zero}, {'b': zero}, {'a': zero[None]}
    self.assertLen({digest(state) for state in states}, 4)
    self.assertLen({digest({'version': n}) for n in (1, 1, 2)}, 2)


if __name__ == '__main__':
  absltest.main()
