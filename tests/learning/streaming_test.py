"""Tests that learning.streaming streams the returned gradient by buckets."""

import functools
import hashlib
import json
import math
import sys
import threading
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from flax import nnx

from data.dataset import Split
from learning import compilations, timing_only
from learning.device_copies import PageableCopies
from learning.gradient import TaskGradient
from learning.gradient_buffer import BucketFiller
from learning.iteration import Iteration
from learning.layout import Layout
from learning.learning import Overlap
from learning.streaming import StreamingGradient, find_overlap
from models import mlp, norm, task, transformer
from models.task import Task
from tests.support import accelerators, drawn, small

_EXAMPLES = 16
_MODULE = 'tests.learning.streaming_test'


# Overlaps that the devices of all tests allow.
_OVERLAP = 'copies' if accelerators.is_fake() else 'backward'


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


def _gradient(learned, inputs, targets, micro_batch=4, devices=()):
  return TaskGradient(
    learned,
    Split(inputs, targets),
    lambda ranges: np.arange(*ranges[0]),
    micro_batch=micro_batch,
    seed=0,
    devices=devices,
  )


@functools.cache
def _make(kind, devices=()):
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
    size |= {
      'size': 'tiny',
      'layers': 1,
      'width': 8,
      'heads': 2,
      'dropout': 0.0,
    }
    make = functools.partial(transformer.make, input_shape=(6,), **size)
    inputs, targets = rng.integers(5, size=(2, _EXAMPLES, 6)).astype(np.int32)
  model = drawn.model(make)
  if kind == 'transformer':
    learned = task.next_token(model)
  else:
    learned = task.classification(model, lambda x: x, lambda x, _: x)
  return _gradient(learned, inputs, targets, devices=devices)


def _digests():
  """Returns digests of pools that streams have filled, by model and devices."""
  found = {'backend': jax.default_backend()}
  for kind, count in (('conv', 1), ('mlp', 2)):
    gradient = _make(kind, tuple(jax.local_devices()[:count]))
    layout = _layout(gradient, bucket_bytes=100.0)
    streaming = StreamingGradient(
      gradient, [each.leaves for each in layout.buckets], overlap=True
    )
    params = gradient.place(gradient.task.params)
    streaming.warm_up(params, 15, changing=False)
    before = compilations.count()
    vector, reported = _stream(streaming, gradient, layout, 15)
    found[f'{kind} {count}'] = {
      'digest': hashlib.sha256(vector.tobytes()).hexdigest(),
      'some': int(np.count_nonzero(vector)),
      'in_order': reported == sorted(reported),
      'overlap': streaming.overlap,
      'late': compilations.count() - before,
    }
  return found


def _in_a_process(**environ):
  done = small.python('-W', 'error', '-m', _MODULE, 'digests', **environ)
  if done.returncode:
    raise AssertionError(done.stderr)
  return json.loads(done.stdout.splitlines()[-1])


class _DelayedCopies(PageableCopies):
  """Copies that a test can delay, with a log of their starts and ends."""

  def __init__(self, order, log, may_land):
    self.order, self.log, self.may_land = order, log, may_land

  def start_to_host(self, arrays):
    """Starts the copies of all leaves."""
    self.log += [('request', leaf) for leaf in self.order]
    return [*zip(self.order, arrays, strict=True)]

  def wait_for_host(self, copy):
    """Waits for the copy of a leaf."""
    leaf, array = copy
    if not self.may_land[leaf].wait(10):
      raise AssertionError(f'Leaf {leaf} was waited for too early.')
    self.log.append(('land', leaf))
    return np.asarray(array)


def _layout(gradient, bucket_bytes=0.0):
  learned = gradient.task
  order = gradient.order(learned.params)
  sizes = {'bucket_bytes': bucket_bytes, 'step_statistics': 1}
  return Layout(learned.params, learned.stats, order=order, **sizes)


def _stream(streaming, gradient, layout, examples):
  """Returns the buffer after a call, and the order of reported buckets."""
  vector, reported = np.zeros(layout.size, np.float32), []
  filling = BucketFiller(layout, vector, reported.append)
  iteration = Iteration(((0, examples),), worker=1, number=examples)
  params = gradient.task.params
  stats, loss = streaming.stream(params, iteration, filling.put)
  filling.finish(stats, [loss])
  return vector, reported


def _compute_expected(gradient, layout, examples):
  vector = np.zeros(layout.size, np.float32)
  iteration = Iteration(((0, examples),), worker=1, number=examples)
  payload, loss = gradient(gradient.task.params, iteration)
  for leaf, array in enumerate(jax.tree.leaves(payload.gradient)):
    layout.write_leaf(vector, leaf, array)
  layout.write_stats(vector, payload.stats)
  layout.step_statistics(vector)[...] = loss
  return vector


class StreamingTest(parameterized.TestCase):
  @parameterized.parameters(
    ('conv', 1), ('mlp', 0), ('mlp', 1), ('transformer', 1)
  )
  def test_leaves_equal_the_gradient_bit_for_bit(self, kind, overlap):
    self._check_same(kind, overlap)

  @parameterized.parameters('conv', 'transformer')
  @pytest.mark.soak
  def test_leaves_of_other_models_without_overlap_equal_the_gradient(
    self, kind
  ):
    self._check_same(kind, 0)

  def _check_same(self, kind, overlap):
    gradient = _make(kind)
    layout = _layout(gradient, bucket_bytes=100.0)
    streaming = StreamingGradient(
      gradient, [each.leaves for each in layout.buckets], overlap=overlap
    )
    self.assertEqual(streaming.overlap, _OVERLAP if overlap else 'none')
    for examples in (4, 15, 7):  # Micro-batches of 4 need few programs.
      vector, reported = _stream(streaming, gradient, layout, examples)
      expected = _compute_expected(gradient, layout, examples)
      np.testing.assert_array_equal(vector.view('u4'), expected.view('u4'))
      self.assertCountEqual(reported, range(len(layout.buckets)))
      self.assertGreater(np.count_nonzero(vector), layout.size // 2)
    leaves = len(layout.order) - (kind == 'conv')  # One is not used.
    streams = overlap and not accelerators.is_fake()
    self.assertEqual(streaming.streamed, 3 * leaves if streams else 0)

  def test_nothing_is_compiled_late(self):
    gradient = _make('mlp')
    layout = _layout(gradient, math.inf)
    streaming = StreamingGradient(
      gradient, [each.leaves for each in layout.buckets], overlap=True
    )
    params = gradient.task.params
    streaming.warm_up(params, 6, changing=True)
    before = compilations.count()
    for examples in range(1, 7):
      _stream(streaming, gradient, layout, examples)
    self.assertEqual(compilations.count(), before)

  def test_a_warm_up_of_one_size_compiles_its_programs(self):
    for overlap in (True, False):
      gradient = _make.__wrapped__('mlp')
      layout = _layout(gradient)
      streaming = StreamingGradient(
        gradient, [each.leaves for each in layout.buckets], overlap=overlap
      )
      streaming.warm_up(gradient.task.params, 8, changing=False)
      before = compilations.count()
      _stream(streaming, gradient, layout, 8)
      self.assertEqual(compilations.count(), before)

  @parameterized.parameters(KeyError, KeyboardInterrupt)
  def test_errors_of_the_sink_are_raised_unchanged(self, kind):
    def put(leaf, array):
      leaves.append(leaf)
      if len(leaves) == 2:
        raise raised

    gradient = _make('mlp')
    layout = _layout(gradient)
    streaming = StreamingGradient(
      gradient, [each.leaves for each in layout.buckets], overlap=True
    )
    leaves, raised = [], kind('its own')
    iteration = Iteration(((0, 4),), worker=0, number=0)
    with self.assertRaises(kind) as caught:
      streaming.stream(gradient.task.params, iteration, put)
    self.assertIs(caught.exception, raised)
    self.assertLen(leaves, 2)
    vector, _ = _stream(streaming, gradient, layout, 4)  # The stream continues.
    np.testing.assert_array_equal(
      vector, _compute_expected(gradient, layout, 4)
    )

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
    layout = _layout(gradient)
    streaming = StreamingGradient(
      gradient, [each.leaves for each in layout.buckets], overlap=True
    )
    for examples in (4, 7):
      vector, _ = _stream(streaming, gradient, layout, examples)
      expected = _compute_expected(gradient, layout, examples)
      np.testing.assert_array_equal(vector.view('u4'), expected.view('u4'))
    self.assertEqual(streaming.streamed, 0 if accelerators.is_fake() else 6)


class AcceleratorTest(parameterized.TestCase):
  @mock.patch.object(jax, 'default_backend', lambda: 'fake')
  def test_a_bucket_is_sent_before_later_copies_land(self):
    gradient = _make('transformer')
    layout = _layout(gradient, bucket_bytes=100.0)
    buckets = [
      leaves for leaves in [each.leaves for each in layout.buckets] if leaves
    ]
    self.assertGreater(len(buckets), 4)
    log, may_land = [], [threading.Event() for _ in layout.order]
    streaming = StreamingGradient(
      gradient,
      [each.leaves for each in layout.buckets],
      overlap=True,
      copies=_DelayedCopies(layout.order, log, may_land),
    )
    vector = np.zeros(layout.size, np.float32)

    def ready(number):
      log.append(('send', number))
      for leaf in dict(enumerate(buckets)).get(number + 1, ()):
        may_land[leaf].set()  # Not before this one is sent.

    for leaf in buckets[0]:
      may_land[leaf].set()
    filling = BucketFiller(layout, vector, ready)
    iteration = Iteration(((0, 7),), worker=1, number=7)
    stats, loss = streaming.stream(gradient.task.params, iteration, filling.put)
    filling.finish(stats, [loss])

    self.assertNotEqual(layout.order, tuple(sorted(layout.order)))
    count = len(layout.order)
    self.assertEqual(log[:count], [('request', leaf) for leaf in layout.order])
    events = []
    for number, leaves in enumerate([each.leaves for each in layout.buckets]):
      events += [('land', leaf) for leaf in leaves] + [('send', number)]
    self.assertEqual(log[count:], events)
    expected = _compute_expected(gradient, layout, 7)
    np.testing.assert_array_equal(vector.view('u4'), expected.view('u4'))

  @mock.patch.object(jax, 'default_backend', lambda: 'fake')
  def test_without_overlap_all_copies_land_before_the_first_is_sent(self):
    gradient = _make('mlp')
    layout = _layout(gradient)
    log, may_land = [], [threading.Event() for _ in layout.order]
    for event in may_land:
      event.set()
    streaming = StreamingGradient(
      gradient,
      [each.leaves for each in layout.buckets],
      overlap=False,
      copies=_DelayedCopies(layout.order, log, may_land),
    )
    vector = np.zeros(layout.size, np.float32)
    filling = BucketFiller(
      layout, vector, lambda number: log.append(('send', number))
    )
    iteration = Iteration(((0, 4),), worker=0, number=0)
    streaming.stream(gradient.task.params, iteration, filling.put)
    kinds = [kind for kind, _ in log]
    count = len(layout.order)
    self.assertEqual(kinds[: 2 * count], ['request'] * count + ['land'] * count)
    self.assertEqual({*kinds[2 * count :]}, {'send'})

  def test_buffers_equal_those_of_the_cpu_bit_for_bit(self):
    fake = _in_a_process(**accelerators.environment(devices=2))
    cpu = _in_a_process(JAX_NUM_CPU_DEVICES='2', **accelerators.cpu())
    self.assertEqual((fake.pop('backend'), cpu.pop('backend')), ('fake', 'cpu'))
    for name, expected in cpu.items():
      got = fake[name]
      self.assertEqual(got['digest'], expected['digest'], name)
      self.assertGreater(got['some'], 100)
      self.assertTrue(got['in_order'])
      self.assertEqual((got['late'], expected['late']), (0, 0), name)
      self.assertEqual(got['overlap'], 'copies')
      overlap = 'none' if name.endswith('2') else 'backward'
      self.assertEqual(expected['overlap'], overlap)

  @parameterized.parameters(
    ('gpu', True, 'copies', 'still copied from the accelerator .gpu.'),
    ('cpu', True, 'backward', 'while the backward pass runs'),
    ('gpu', False, 'none', 'config.route.overlap is False'),
    ('cpu', False, 'none', 'config.route.overlap is False'),
  )
  def test_overlap_is_described(
    self, platform, wants_overlap, overlap, sentence
  ):
    with mock.patch.object(jax, 'default_backend', lambda: platform):
      found, why = find_overlap(_make('mlp'), wanted=wants_overlap)
    self.assertEqual(found, Overlap(overlap))
    self.assertRegex(why, sentence)


class NothingTest(absltest.TestCase):
  def test_a_buffer_without_a_model_is_as_large_and_complete_at_once(self):
    learning = timing_only.make(size_bytes=4000, num_train=10, stream=None)
    layout = learning.layout(bucket_bytes=0, step_statistics=2)
    self.assertBetween(layout.size, 1002, 1017)
    streaming = learning.streaming(layout, overlap=True)
    streaming.warm_up((), 4, changing=True)
    vector, reported = np.zeros(layout.size, np.float32), []
    filling = BucketFiller(layout, vector, reported.append)
    stats, loss = streaming.stream(
      (), Iteration(((0, 4),), worker=0, number=0), sink=filling.put
    )
    self.assertIsNone(loss)
    self.assertEqual(reported, [])
    filling.finish(stats, (1, 2))
    self.assertEqual(reported, [0])
    np.testing.assert_array_equal(vector[-2:], [1, 2])
    self.assertFalse(vector[:-2].any())


if __name__ == '__main__':
  if sys.argv[1:] == ['digests']:
    print(json.dumps(_digests()))
  else:
    absltest.main()
