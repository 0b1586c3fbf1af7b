"""Tests that workers of several devices push the same as those of one.

The numbers come from a separate process with four CPU devices.
"""

import contextlib
import functools
import json
import pathlib
import sys
import tempfile

import jax
import numpy as np
import optax
from absl.testing import absltest, parameterized
from flax import nnx

import train
from data.dataset import Split
from learning import compilations, warm_up
from learning.gradient import TaskGradient
from learning.gradient_buffer import BucketFiller
from learning.iteration import Iteration
from learning.layout import Layout
from learning.learner import TaskLearner
from learning.streaming import StreamingGradient
from models import gradients, norm, task
from tests.support import accelerators, small, stopping

_EXAMPLES = 17  # With at most 8 at once: 8 + 8 + 1.


class _Model(nnx.Module):
  """A little of all that depends on the whole batch or on a key."""

  def __init__(self):
    rngs = nnx.Rngs(0)
    self.first = nnx.Linear(7, 16, use_bias=False, rngs=rngs)
    self.table = nnx.Param(np.eye(3, 16, dtype=np.float32))
    self.norm = norm.make('batch', 16, rngs)
    self.dropout = nnx.Dropout(0.4)
    self.last = nnx.Linear(7, 5, rngs=rngs)

  def __call__(self, inputs, *, rngs=None):
    tokens = (inputs[:, :2] > 0).sum(axis=1)
    x = self.first(inputs)
    x = x + gradients.embed(self.table[...], tokens, x.dtype)
    x = nnx.relu(self.norm(x, train=rngs is not None))
    x = gradients.max_pool(x[..., None], (3,), (2,))[..., 0]
    x = self.dropout(x, deterministic=rngs is None, rngs=rngs)
    return self.last(x)


class _Mask(nnx.Module):
  """Model whose gradient by parameter j is twice the sum of active inputs j."""

  def __init__(self):
    self.weights = nnx.Param(np.ones(7, np.float32))
    self.dropout = nnx.Dropout(0.5)

  def __call__(self, inputs, *, rngs=None):
    kept = self.dropout(inputs, deterministic=rngs is None, rngs=rngs)
    return kept @ self.weights[...]


def _tasks():
  yield 'batch', task.classification(_Model(), lambda x: x, lambda x, _: x)
  same = {'loss': lambda out, _: out, 'correct': lambda out, _: out}
  yield 'mask', task.supervised(_Mask(), **same)


def _split(kind):
  rng = np.random.default_rng(0)
  inputs = rng.normal(size=(_EXAMPLES, 7)).astype(np.float32)
  if kind == 'mask':  # Their sum tells which are in it.
    powers = 2.0 ** np.arange(_EXAMPLES)
    inputs = np.repeat(powers[:, None], 7, axis=1).astype(np.float32)
  return Split(inputs, rng.integers(5, size=_EXAMPLES).astype(np.int32))


def _pushes():
  """Returns losses and numbers pushed, by kind of model and of devices."""
  found = {}
  for kind, learned in _tasks():
    for count in (0, 4) if kind == 'batch' else (0, 1, 2, 4):
      gradient = TaskGradient(
        learned,
        _split(kind),
        lambda ranges: np.arange(*ranges[0]),
        micro_batch=8,
        seed=0,
        devices=jax.local_devices()[:count],
      )
      params = gradient.place(learned.params)
      changing = kind == 'mask' and count == 4
      gradient.warm_up(params, _EXAMPLES, changing=changing)
      before = compilations.count()
      for examples in range(1, _EXAMPLES) if changing else ():
        gradient(params, Iteration(((0, examples),), worker=0, number=0))
      results = [
        gradient(params, Iteration(((0, examples),), worker=1, number=examples))
        for examples in (_EXAMPLES, 8)
      ]
      leaves = jax.tree.leaves(results)
      found[f'{kind} {count}'] = {
        'numbers': [np.ravel(leaf).tolist() for leaf in leaves],
        'compilations': compilations.count() - before,
        'devices': sorted({d.id for leaf in leaves for d in leaf.devices()}),
        'updated': _apply_update(gradient, params, results[0][0]),
      }
  return found


def _apply_update(gradient, params, expected):
  """Returns how streams and updates of pools differ, and compile late."""
  learned, order = gradient.task, gradient.order(params)
  layout = Layout(
    params, learned.stats, order=order, bucket_bytes=0, step_statistics=0
  )
  streaming = StreamingGradient(
    gradient, [each.leaves for each in layout.buckets], overlap=True
  )
  streaming.warm_up(params, _EXAMPLES, changing=False)
  learner = TaskLearner(
    params=params,
    stats=gradient.place(learned.stats),
    tx=optax.sgd(1.0, momentum=0.9),
    schedule=lambda examples, updates: 0.1,
    reduction='sum',
    num_workers=1,
    worker_batch=8,
  )
  like = layout.payload(np.zeros(layout.size, np.float32))
  warm_up.apply_updates(learner, like, adds=False)
  before = compilations.count()
  for _ in range(2):
    vector = np.zeros(layout.size, np.float32)
    filling = BucketFiller(layout, vector, lambda number: None)
    iteration = Iteration(((0, _EXAMPLES),), worker=1, number=_EXAMPLES)
    stats, _ = streaming.stream(params, iteration, filling.put)
    filling.finish(stats)
    learner.apply(layout.payload(vector), _EXAMPLES, pushes=1)
  same = jax.tree.map(np.array_equal, layout.payload(vector), expected)
  return {
    'same': all(jax.tree.leaves(same)),
    'overlap': streaming.overlap,
    'compilations': compilations.count() - before,
  }


def _runs():
  """Returns the results of runs with 1 and 2 devices; one was resumed."""
  found = {}
  for name, changed in {
    'one': {},
    'two': {
      'cluster__devices_per_worker': 2,
      'checkpoint__every_examples': 90,
    },
    'two bfloat16': {
      'cluster__devices_per_worker': 2,
      'wire__dense__dtype': 'bfloat16',
    },
  }.items():
    config = small.config(
      sync__name='bsp', batching__worker_batch=9, epochs=2.0, **changed
    )
    run = small.build(config)
    summary = run()
    if name == 'two':  # From its newest checkpoint.
      (run.files.workdir / 'summary.json').unlink()
      run = train.build(config, workdir=str(run.files.workdir))
      summary = run()
    leaves = jax.tree.leaves(run.runtime.coordinator.store.learner.params)
    found[name] = {
      'resumed': run.sizes is not None,
      'numbers': [np.ravel(leaf).tolist() for leaf in leaves],
      'compilations': summary['compilations'],
      'accuracy': summary['final_accuracy'],
      'virtual_s': summary['virtual_s'],
    }
  return found


def _late_compilations():
  """Returns the late compilations of a run resumed with pushes in flight."""
  config = stopping.eventful(
    'asp', cluster__devices_per_worker=2, epochs=1.0, cluster__script=()
  )
  workdir = f'{tempfile.mkdtemp()}/run'
  run = train.build(config, workdir=workdir)
  with contextlib.suppress(stopping.Killed):
    stopping.stop(run, saved_at=[44], killed_at=46)
  run = train.build(config, workdir=workdir)
  in_flight = sum(w.message is not None for w in run.runtime._workers)
  return {'in_flight': in_flight, 'compilations': run()['compilations']}


def _results(folder):
  """Returns the results of both functions, and the programs of the first."""
  pushes = _pushes()
  programs = pathlib.Path(folder).glob('*after_optimizations.txt')
  texts = [program.read_text() for program in programs]
  return {
    'pushes': pushes,
    'programs': texts,
    'runs': _runs(),
    'resumed': _late_compilations(),
  }


@functools.cache
def _in_a_process():
  """Returns the result of `_results` in a process with four devices."""
  folder = tempfile.mkdtemp()
  dump = f'--xla_dump_to={folder} --xla_dump_hlo_module_re=jit_part'
  dump += ' --xla_backend_optimization_level=0'  # It compiles a lot.
  done = small.python(
    '-m',
    'tests.learning.devices_test',
    folder,
    XLA_FLAGS=f'--xla_force_host_platform_device_count=4 {dump}',
    # A new cache, because XLA does not dump cached programs.
    JAX_COMPILATION_CACHE_DIR=tempfile.mkdtemp(),
    **(accelerators.environment(devices=4) if accelerators.is_fake() else {}),
  )
  if done.returncode:
    raise RuntimeError(done.stderr)
  return json.loads(done.stdout.splitlines()[-1])


class PushTest(parameterized.TestCase):
  def test_push_equals_that_of_one_device_within_rounding(self):
    found = _in_a_process()['pushes']
    got, expected = found['batch 4'], found['batch 0']
    for one, other in zip(got['numbers'], expected['numbers'], strict=True):
      scale = np.abs(other).max()
      np.testing.assert_allclose(one, other, rtol=1e-5, atol=3e-6 * scale)

  def test_one_device_equals_the_default_device_bit_for_bit(self):
    found = _in_a_process()['pushes']
    self.assertEqual(found['mask 1'], found['mask 0'])

  @parameterized.parameters(2, 4)
  def test_every_example_is_dropped_as_on_one_device(self, devices):
    found = _in_a_process()['pushes']
    got, expected = found[f'mask {devices}'], found['mask 0']
    self.assertEqual(got['numbers'][:1], expected['numbers'][:1])
    self.assertLen(set(expected['numbers'][0]), 7)  # The masks differ.

  def test_push_is_on_one_device_and_nothing_is_compiled_late(self):
    found = _in_a_process()['pushes']
    for name, push in found.items():
      self.assertEqual(push['compilations'], 0, name)
      self.assertEqual(push['devices'], [0], name)

  def test_streamed_push_is_the_same_and_its_update_compiles_nothing(self):
    for name, push in _in_a_process()['pushes'].items():
      overlap = 'backward' if name.endswith(('0', '1')) else 'none'
      overlap = 'copies' if accelerators.is_fake() else overlap
      expected = {'same': True, 'overlap': overlap, 'compilations': 0}
      self.assertEqual(push['updated'], expected, name)

  def test_devices_exchange_sums_and_no_examples(self):
    programs = _in_a_process()['programs']
    spread = [text for text in programs if 'all-reduce' in text]
    # 8 examples: two micro-batches on 4 devices, one on 2; 4 examples: one.
    self.assertLen(spread, 4)
    for text in programs:
      for other in ('all-gather', 'all-to-all', 'collective-permute'):
        self.assertNotIn(other, text)


class RunTest(parameterized.TestCase):
  def test_runs_learn_alike(self):
    found = _in_a_process()['runs']
    one, two = found['one'], found['two']
    for got, expected in zip(two['numbers'], one['numbers'], strict=True):
      np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
    self.assertEqual(two['virtual_s'], one['virtual_s'])
    self.assertAlmostEqual(two['accuracy'], one['accuracy'], delta=1 / 64)

  def test_rounded_runs_learn_alike(self):
    found = _in_a_process()['runs']
    one, two = found['one'], found['two bfloat16']
    for got, expected in zip(two['numbers'], one['numbers'], strict=True):
      np.testing.assert_allclose(got, expected, rtol=1e-2, atol=1e-3)

  def test_pushes_in_flight_of_a_checkpoint_compile_nothing(self):
    resumed = _in_a_process()['resumed']
    self.assertGreater(resumed['in_flight'], 0)
    self.assertEqual(resumed['compilations'], 0)

  def test_nothing_is_compiled_late(self):
    found = _in_a_process()['runs']
    self.assertEqual({run['compilations'] for run in found.values()}, {0})
    self.assertTrue(found['two']['resumed'])


class CheckTest(parameterized.TestCase):
  @parameterized.parameters(
    (3, 'a power of two up to config.batching.micro_batch, 1024, got 3'),
    (2048, 'a power of two up to config.batching.micro_batch, 1024, got 2048'),
    (1024, 'at most [0-9]+, the devices of this process, got 1024'),
  )
  def test_bad_numbers_are_named(self, devices, message):
    config = small.config(
      cluster__devices_per_worker=devices, batching__micro_batch=1024
    )
    field = 'config.cluster.devices_per_worker'
    with self.assertRaisesRegex(ValueError, f'{field}: expected {message}'):
      small.build(config)

  @parameterized.parameters(3, 32)
  def test_gradients_check_numbers_of_devices_too(self, count):
    _, learned = next(_tasks())
    devices = jax.local_devices()[:1] * count
    message = f'devices: expected a power of two up to .* 16, got {count}'
    with self.assertRaisesRegex(ValueError, message):
      TaskGradient(
        learned, _split(''), None, micro_batch=16, seed=0, devices=devices
      )


if __name__ == '__main__':
  if len(sys.argv) == 2 and pathlib.Path(sys.argv[1]).is_dir():
    print(json.dumps(_results(sys.argv[1])))
  else:
    absltest.main()
