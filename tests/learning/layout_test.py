"""Tests for learning.layout and learning.gradient_buffer."""

import functools
import itertools
import math
import random
import threading

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from learning import compilations, optimizer, schedule, warm_up
from learning.digest import digest
from learning.gradient_buffer import BucketFiller, backward_order
from learning.layout import (
  Layout,
  concatenate,
  required_shards,
  reshard,
  split_evenly,
)
from learning.learner import TaskLearner
from learning.timing_only import TimingOnlyLearner
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
_BYTES = (64, 520, 0, 84, 4)  # Bytes of the leaves in that order.


def _layout(bucket_bytes=0.0, step_statistics=3):
  return Layout(
    *_trees(0),
    order=_ORDER,
    bucket_bytes=bucket_bytes,
    step_statistics=step_statistics,
  )


def _fill(layout, seed):
  """Returns a buffer with the numbers of a payload, and the payload.

  It starts at a multiple of 64 bytes, so that XLA reads it without a copy.
  """
  whole = np.zeros(layout.size + 16, np.float32)
  start = -whole.ctypes.data % 64 // 4
  vector = whole[start : start + layout.size]
  params, stats = _trees(seed)
  for leaf, array in enumerate(jax.tree.leaves(params)):
    layout.write_leaf(vector, leaf, array)
  layout.write_stats(vector, stats)
  return vector, Payload(params, stats)


class LayoutTest(parameterized.TestCase):
  def test_a_buffer_has_the_written_values_and_zeros(self):
    layout = _layout()
    vector, payload = _fill(layout, 1)
    layout.step_statistics(vector)[...] = 1, 2, 3
    leaves = jax.tree.leaves(payload.gradient)
    numbers = [leaves[leaf] for leaf in _ORDER]
    numbers += [*payload.stats, np.arange(1, 4)]
    expected = np.concatenate([np.ravel(leaf) for leaf in numbers])
    np.testing.assert_array_equal(vector[vector != 0], expected)

  def test_a_payload_is_views_and_the_same_when_compiled(self):
    layout = _layout()
    vector, expected = _fill(layout, 2)
    payload = layout.payload(vector)
    jax.tree.map(np.testing.assert_array_equal, payload, expected)
    for leaf in jax.tree.leaves(payload):
      if leaf.size:
        self.assertTrue(np.shares_memory(leaf, vector))
        self.assertEqual(leaf.ctypes.data % 64, 0)
    compiled = jax.jit(layout.payload)(vector)
    jax.tree.map(np.testing.assert_array_equal, compiled, expected)

  @parameterized.product(alignment_bytes=[4, 64], multiple=[1, 24, 32])
  def test_flattening_inverts_unflattening(self, alignment_bytes, multiple):
    params, stats = _trees(3)
    layout = Layout(
      params,
      stats,
      order=_ORDER,
      alignment_bytes=alignment_bytes,
      step_statistics=2,
      multiple=multiple,
    )
    vector = jax.jit(layout.flatten)(params)
    self.assertEqual(vector.shape, (layout.gradient_size,))
    # Leaves end at 168, or at 193 with padding; statistics are aligned, too.
    end = 168 if alignment_bytes == 4 else 193
    expected = next(
      size
      for size in itertools.count(end)
      if size % multiple == 0 and size * 4 % alignment_bytes == 0
    )
    self.assertEqual(layout.gradient_size, expected)
    got = (
      layout.unflatten(vector),
      layout.unflatten_stats(layout.flatten_stats(stats)),
    )
    jax.tree.map(np.testing.assert_array_equal, got, (params, stats))
    whole = layout.pack(Payload(params, stats), jnp.array([5.0, 6.0]))
    expected = np.zeros(layout.size, np.float32)
    for leaf, array in enumerate(jax.tree.leaves(params)):
      layout.write_leaf(expected, leaf, array)
    layout.write_stats(expected, stats)
    layout.step_statistics(expected)[...] = 5, 6
    np.testing.assert_array_equal(whole, expected)

  @parameterized.parameters(0, 1, 65, 100, 584, 600, math.inf)
  def test_buckets_close_as_soon_as_they_have_enough(self, bucket_bytes):
    layout = _layout(bucket_bytes)
    buckets, leaves = [], []
    for leaf, size in zip(_ORDER, _BYTES, strict=True):
      if size:
        leaves.append((leaf, size))
        if sum(size for _, size in leaves) >= bucket_bytes:
          buckets.append({leaf for leaf, _ in leaves})
          leaves = []
    # The last bucket has the remaining leaves.
    buckets.append({leaf for leaf, _ in leaves})
    got = [set(bucket.leaves) - {3} for bucket in layout.buckets]  # 3 is empty.
    self.assertEqual(got, buckets)
    for number, bucket in enumerate(layout.buckets):
      for leaf in bucket.leaves:
        self.assertEqual(layout.bucket_of[leaf], number)
    ends = [0, *(bucket.end for bucket in layout.buckets)]
    self.assertEqual([bucket.start for bucket in layout.buckets], ends[:-1])
    self.assertEqual(ends[-1], layout.size)

  def test_a_layout_needs_no_statistics_and_no_leaves(self):
    params = [np.zeros(3, np.float32), np.zeros(20, np.float32)]
    layout = Layout(params, order=(1, 0), bucket_bytes=0)
    bounds = [bucket.bounds for bucket in layout.buckets]
    self.assertEqual(bounds, [(0, 32), (32, 48)])
    self.assertEqual(layout.size, 48)
    (bucket,) = Layout((), bucket_bytes=0, step_statistics=2).buckets
    self.assertEqual(bucket.bounds, (0, 2))

  def test_only_gradients_are_rounded(self):
    half = np.dtype(np.float16)
    layout = Layout(*_trees(0), bucket_bytes=0, dtype=half, step_statistics=3)
    *rounded, last = layout.buckets
    self.assertEqual({bucket.dtype for bucket in rounded}, {half})
    self.assertEqual(last.dtype, np.float32)
    self.assertEqual(last.bounds, (layout.gradient_size, layout.size))
    self.assertEqual(
      layout.size_bytes,
      2 * layout.gradient_size + 4 * (layout.size - layout.gradient_size),
    )

  @parameterized.parameters(0, 64, 96, 352, 600, math.inf)
  def test_combined_buckets_are_the_fewest_of_one_dtype(self, combine_bytes):
    layout = Layout(
      *_trees(0), bucket_bytes=0, dtype=np.dtype(np.float16), step_statistics=3
    )
    combined = layout.combined_buckets(combine_bytes)
    starts = [bucket.start for bucket in combined]
    self.assertEqual(starts, [0, *(bucket.end for bucket in combined[:-1])])
    self.assertEqual(combined[-1].end, layout.size)
    self.assertEqual(combined[-1].dtype, np.float32)
    for bucket in combined[:-2]:
      self.assertGreaterEqual(bucket.size_bytes, combine_bytes)
    for start, end, dtype, leaves in combined:
      parts = [b for b in layout.buckets if start <= b.start < end]
      self.assertEqual({part.dtype for part in parts}, {dtype})
      self.assertEqual(sum((part.leaves for part in parts), ()), leaves)
      # Its last part was needed.
      before = sum(part.size_bytes for part in parts[:-1])
      self.assertTrue(before < combine_bytes or len(parts) == 1)
    if combine_bytes == math.inf:
      self.assertLen(combined, 2)

  @parameterized.parameters(1, 2, 3, 5)
  def test_shards_are_even_and_have_whole_rows(self, count):
    # Numbers that tell their position; boundaries cut both matrices.
    numbers = np.arange(281, dtype=np.float32)
    first, vector, second = np.split(numbers, [210, 221])
    params = [first.reshape(30, 7), vector, second.reshape(4, 3, 5)]
    layout = Layout(params, _trees(0)[1], alignment_bytes=4)
    shards = layout.shards(count)
    self.assertEqual(
      [shard.sizes for shard in shards],
      [*zip(split_evenly(281, count), split_evenly(5, count), strict=True)],
    )
    rows = [*params[0], *params[2].reshape(12, 5)]
    found_in_all = 0
    for shard in shards:
      start, end = shard.params
      part = np.asarray(layout.flatten(params))[start:end]
      found = [
        row.tolist()
        for first, height, width in layout.matrices(start, end)
        for row in part[first : first + height * width].reshape(height, width)
      ]
      whole = [row for row in rows if start <= row[0] and row[-1] < end]
      self.assertEqual(found, [row.tolist() for row in whole])
      found_in_all += len(found)
    self.assertEqual(found_in_all < len(rows), count > 1)

  def test_sizes_are_split_evenly(self):
    self.assertEqual(split_evenly(10, 4), [3, 3, 2, 2])
    self.assertEqual(split_evenly(2, 3), [1, 1, 0])

  @parameterized.parameters(0, 1, 3)
  def test_vectors_are_concatenated(self, count):
    vectors = [jnp.arange(3.0) + number for number in range(count)]
    expected = np.concatenate([np.zeros(0), *vectors])
    np.testing.assert_array_equal(concatenate(vectors), expected)

  @parameterized.parameters(
    ({'order': (0, 1, 2, 3, 3)}, 'order: expected each of 0 to 4 once'),
    ({'bucket_bytes': -1.0}, 'bucket_bytes: expected at least 0'),
    ({'bucket_bytes': math.nan}, 'bucket_bytes: expected at least 0'),
    ({'step_statistics': -1}, 'step_statistics: expected at least 0'),
    ({'blank': -1}, 'blank: expected at least 0'),
  )
  def test_bad_arguments_are_refused(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      Layout(*_trees(0), **changed)

  def test_leaves_that_are_not_float32_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'float32 leaves, got int32'):
      Layout([np.zeros(3, np.int32)])

  def test_more_servers_than_numbers_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'servers: expected at most 5'):
      Layout(*_trees(0), alignment_bytes=4).shards(6)


class ReshardTest(parameterized.TestCase):
  # With 5 and 6 numbers, parts of both kinds can have the same lengths.
  @parameterized.product(
    numbers=[(11, 6), (5, 6)], before=[1, 2, 3, 5], now=[1, 2, 4, 5]
  )
  def test_states_are_joined_and_split_for_another_number_of_shards(
    self, numbers, before, now
  ):
    params, stats = np.arange(numbers[0]), 100 + np.arange(numbers[1])

    def cut(index, count):
      one, other = (
        np.split(array, np.cumsum(split_evenly(len(array), count)))[index]
        for array in (params, stats)
      )
      sums = {2: (Payload(jnp.array(2 * one), jnp.array(3 * other)), 40)}
      return {
        'params': jnp.array(one),
        'stats': jnp.array(other),
        'version': 3,
        'sums': sums,
      }

    states = [cut(index, before) for index in range(before)]
    sizes = [*zip(*(split_evenly(n, now) for n in numbers), strict=True)]
    for index in range(now):
      jax.tree.map(
        np.testing.assert_array_equal,
        reshard(
          {k: states[k] for k in required_shards(before, sizes, index)},
          before,
          sizes,
          index,
        ),
        cut(index, now),
      )

  @parameterized.parameters(
    (4, 4, 2, [2]), (4, 2, 1, [2, 3]), (2, 4, 1, [0]), (1, 3, 2, [0])
  )
  def test_a_server_needs_only_the_shards_that_it_overlaps(
    self, before, now, index, expected
  ):
    sizes = [(n, 0) for n in split_evenly(1000, now)]
    self.assertEqual([*required_shards(before, sizes, index)], expected)


class BucketFillerTest(parameterized.TestCase):
  @parameterized.parameters(0, 100, math.inf)
  def test_a_bucket_is_reported_once_when_it_is_complete(self, bucket_bytes):
    layout = _layout(bucket_bytes)
    expected, payload = _fill(layout, 3)
    layout.step_statistics(expected)[...] = 4
    leaves = jax.tree.leaves(payload.gradient)
    for seed in range(5):
      vector = np.zeros(layout.size, np.float32)
      reported = []

      def ready(number, vector=vector, reported=reported):
        part = slice(*layout.buckets[number].bounds)
        np.testing.assert_array_equal(vector[part], expected[part])
        reported.append(number)

      filler = BucketFiller(layout, vector, ready)
      jobs = [
        threading.Thread(target=filler.put, args=(leaf, leaves[leaf]))
        for leaf in _ORDER
      ]
      finish = (payload.stats, (4, 4, 4))
      jobs.append(threading.Thread(target=filler.finish, args=finish))
      random.Random(seed).shuffle(jobs)
      for job in jobs:
        job.start()
      for job in jobs:
        job.join()
      self.assertCountEqual(reported, range(len(layout.buckets)))


def _classify(make, shape, targets=(), dtype=np.float32):
  model = drawn.model(make)
  if targets:
    learned = task.next_token(model)
  else:
    learned = task.classification(model, lambda x: x, lambda x, _: x)
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
  return *_classify(make, shape), both


def _mlp():
  make = functools.partial(
    mlp.make, input_shape=(4, 4, 1), num_classes=3, seed=0, hidden=(5, 6)
  )
  both = [f'layers {n} {p}' for n in range(3) for p in ('kernel', 'bias')]
  return *_classify(make, (4, 4, 1)), both


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
  return *_classify(make, shape), used


def _transformer():
  size = {'size': 'tiny', 'width': 8, 'heads': 2, 'dropout': 0.1}
  make = functools.partial(
    transformer.make, input_shape=(6,), num_classes=9, seed=0, **size
  )
  layer = ('attention_norm scale', 'queries_keys_values kernel', 'mix kernel',
           'dense_norm scale', 'gate_and_up kernel',
           'down kernel')  # fmt: skip
  used = ['tokens embedding']
  used += [f'layers {n} {name}' for n in range(2) for name in layer]
  used += ['norm scale']
  return *_classify(make, (6,), (6,), np.int32), used


class OrderTest(parameterized.TestCase):
  @parameterized.parameters(_vgg, _mlp, _resnet, _transformer)
  def test_order_is_the_reverse_of_use(self, make):
    params, order, used = make()
    names = [
      jax.tree_util.keystr(path, simple=True, separator=' ')
      for path, _ in jax.tree_util.tree_leaves_with_path(params)
    ]
    self.assertEqual([names[leaf] for leaf in order], used[::-1])

  def test_leaves_of_calls_are_ordered_and_those_of_loops_are_not(self):
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

  def test_unused_leaves_are_in_the_order(self):
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
  def test_update_of_a_buffer_equals_that_of_payloads_bit_for_bit(
    self, tx, reduction
  ):
    layout = _layout()
    replica, plain = (_learner(_TXS[tx](), reduction) for _ in 'ab')
    like = Payload(plain.params, plain.stats)
    warm_up.apply_updates(plain, like, adds=True)
    warm_up.apply_updates(replica, like, adds=False)
    before = compilations.count()
    for update in range(5):
      examples, pushes = 20 + 3 * update, 1 + update % 3
      vector, payload = _fill(layout, update)
      payload = jax.tree.map(jnp.array, payload)
      replica.apply(layout.payload(vector), examples, pushes=pushes)
      plain.add(update, payload, examples, pushes=pushes)
      plain.commit(update)
      self.assertEqual(digest(replica.state()), digest(plain.state()))
      vector[...] = np.nan  # It is the caller's again.
    self.assertEqual(digest(replica.state()), digest(plain.state()))
    self.assertEqual(replica.version, 5)
    self.assertEqual(compilations.count(), before)

  def test_a_version_that_was_read_does_not_change(self):
    layout, replica = _layout(), _learner(_TXS['adamw']())
    params, fork = replica.params, replica.fork()
    before = digest(fork.state())
    for update in range(3):
      vector, _ = _fill(layout, update)
      replica.apply(layout.payload(vector), 8, pushes=1)
    jax.tree.map(np.testing.assert_array_equal, params, _trees(0)[0])
    self.assertEqual(digest(fork.state()), before)

  def test_a_learner_without_a_model_counts_updates(self):
    learner = TimingOnlyLearner((), ())
    learner.apply(Payload((), ()), 24, pushes=3)
    self.assertEqual((learner.version, learner.examples), (1, 24))


class DigestTest(absltest.TestCase):
  def test_digest_depends_on_every_bit(self):
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

  def test_digest_depends_on_signs_of_zero_shapes_and_names(self):
    zero = np.zeros(2, np.float32)
    states = {'a': zero}, {'a': -zero}, {'b': zero}, {'a': zero[None]}
    self.assertLen({digest(state) for state in states}, 4)
    self.assertLen({digest({'version': n}) for n in (1, 1, 2)}, 2)


if __name__ == '__main__':
  absltest.main()
