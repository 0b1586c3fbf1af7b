"""Tests for wire.dense: rounding, and sizes of messages."""

import jax
import ml_dtypes
import numpy as np
import optax
from absl.testing import absltest, parameterized
from jax import numpy as jnp

import train
from configs import default
from data.dataset import Dataset, Split
from data.stream import Stream
from learning import compilations
from learning.learner import TaskLearner
from learning.local_codec import LocalCodec
from models.task import Task
from tests.support import small
from wire import dense
from wire.codec import Payload, State

_RATE = 2.0**-6
_BATCH = 8
_EXAMPLES = 96


def _rounded(array):
  return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def _quadratic():
  """Parameter j costs c_ij w_j^2 / 2, c_ij whole: all sums are exact."""
  rng = np.random.default_rng(0)
  inputs = rng.integers(1, 9, (_EXAMPLES, 5)).astype(np.float32)
  split = Split(inputs, np.zeros(_EXAMPLES, np.int32))
  params = rng.normal(size=5).astype(np.float32)
  task = Task(
    jnp.asarray(params),
    lambda params, inputs, *_: (jnp.sum(inputs * params**2, axis=1) / 2, ()),
    lambda params, stats, inputs, targets: jnp.zeros(len(inputs)),
  )
  return task, Dataset(split, split)


def _built(task, dataset, **changed):
  config = small.config(
    batching__worker_batch=_BATCH,
    optimizer__learning_rate=_RATE,
    wire__dense__dtype='bfloat16',
    **changed,
  )
  config.model = default.get_config().model
  config.data = default.get_config().data
  return small.build(config, task=task, dataset=dataset)


class DenseTest(parameterized.TestCase):
  def test_numbers_are_rounded_to_nearest(self):
    bits = np.arange(2**32, step=99_991, dtype=np.uint64).astype(np.uint32)
    ties = np.uint32(0x3F808000) + np.arange(4, dtype=np.uint32) * 0x8000
    floats = np.concatenate([bits, ties]).view(np.float32)
    floats = np.append(
      floats[~np.isnan(floats)], [np.inf, -0.0, 1e-45, 3.4e38]
    ).astype(np.float32)
    wire = dense.make(dtype='bfloat16')
    for codec in (wire.push, wire.pull):
      for vector in (floats, jnp.asarray(floats)):
        message, state = codec.encode(codec.init(len(floats), 0), vector)
        self.assertEqual(message.dtype, ml_dtypes.bfloat16)
        self.assertEqual(message.nbytes, codec.size_bytes(len(floats)))
        self.assertEqual(state, State())
        got = np.asarray(codec.decode(message, len(floats)).vector)
        np.testing.assert_array_equal(got, _rounded(floats))
        self.assertEqual(got.dtype, np.float32)
      nan, _ = codec.encode((), jnp.float32(np.nan))
      self.assertTrue(np.isnan(codec.decode(nan, 1).vector))

  def test_size_bytes_is_the_size_of_a_message(self):
    for dtype, item in (('float32', 4), ('bfloat16', 2), ('float16', 2)):
      wire = dense.make(dtype=dtype)
      self.assertTrue(wire.elementwise)
      self.assertEqual(wire.push_bytes(15, 7), item * 15 + 4 * 7)
      self.assertEqual(wire.pull_bytes(15, 7), item * 15 + 4 * 7)


class LocalCodecTest(parameterized.TestCase):
  def test_other_numbers_travel_as_they_are(self):
    params = {'w': jnp.full(3, 1.001), 'n': jnp.arange(2**20, 2**20 + 7)}
    made = LocalCodec(dense.make(dtype='bfloat16'), params, (), servers=1)
    message, _ = made.encode(made.init(0), Payload(params, ()), 0, 1.0)
    self.assertEqual(message.gradient['w'].dtype, jnp.bfloat16)
    for got in (made.decode(message, 0).gradient, made.pull(params)):
      np.testing.assert_array_equal(got['n'], params['n'])
      np.testing.assert_array_equal(got['w'], _rounded(params['w']))

  def test_float32_costs_nothing(self):
    params, before = {'w': jnp.ones(3)}, compilations.count()
    made = LocalCodec(dense.make(dtype='float32'), params, (), servers=1)
    message, _ = made.encode(made.init(0), Payload(params, ()), 0, 1.0)
    self.assertIs(made.decode(message, 0).gradient['w'], params['w'])
    self.assertIs(made.pull(params)['w'], params['w'])
    self.assertEqual(compilations.count(), before)

  def test_a_version_is_rounded_once(self):
    run = small.build(small.config(wire__dense__dtype='bfloat16'))
    store = run.runtime.coordinator.store
    one = store.pull()
    self.assertIs(store.pull(), one)
    store.learner.params = jax.tree.map(jnp.zeros_like, store.learner.params)
    self.assertFalse(np.any(jax.tree.leaves(store.pull())[0]))


class SumTest(parameterized.TestCase):
  def test_servers_sum_in_float32(self):
    server = TaskLearner(
      params=jnp.ones(1),
      stats=(),
      tx=optax.sgd(1.0),
      schedule=lambda examples, updates: 1.0,
      reduction='sum',
      num_workers=1,
      worker_batch=512,
    )
    codec = dense.make(dtype='bfloat16').push
    for total in [256.0] + [1.0] * 256:  # In bfloat16, 256 + 1 is 256.
      message, _ = codec.encode((), jnp.full(1, total))
      payload = Payload(codec.decode(message, 1).vector, ())
      server.add(0, payload, 512 if total > 1 else 0)
    server.commit(0)
    np.testing.assert_array_equal(server.params, [1 - 512 / 512])


class RunTest(parameterized.TestCase):
  def test_a_run_equals_plain_sgd_with_pushes_and_pulls_rounded(self):
    task, dataset = _quadratic()
    run = _built(
      task, dataset, cluster__workers=1, cluster__speed__slowdown=(1.0,)
    )
    summary = run()

    stream = Stream(num_examples=_EXAMPLES, seed=0, ahead=2)
    params = np.asarray(task.params)
    for _ in range(summary['updates']):
      rows = stream.indices(stream.take(0, _BATCH))
      stream.done(0)
      pulled = _rounded(params)
      total = np.sum(dataset.train.inputs[rows] * pulled, axis=0)
      params = params - np.float32(_RATE) * _rounded(total) / _BATCH
    self.assertEqual(summary['updates'], 24)
    np.testing.assert_array_equal(
      run.runtime.coordinator.store.learner.params, params
    )
    self.assertFalse(np.array_equal(_rounded(params), params))

  @parameterized.parameters('bsp', 'asp')
  def test_steps_too_small_for_bfloat16_add_up(self, scheme):
    _, dataset = _quadratic()
    task = Task(
      jnp.ones(3),
      lambda params, inputs, *_: (
        jnp.full(len(inputs), 2.0**-6) * jnp.sum(params),
        (),
      ),
      lambda params, stats, inputs, targets: jnp.zeros(len(inputs)),
    )
    run = _built(task, dataset, sync__name=scheme)
    summary = run()
    # A step of 2^-12 from 1 changes none of the 8 bits of bfloat16.
    left = 1 - summary['iterations'] * 2.0**-12
    np.testing.assert_array_equal(
      run.runtime.coordinator.store.learner.params, [left] * 3
    )

  @parameterized.parameters(
    ('bsp', 'bfloat16'), ('ssp', 'bfloat16'), ('r2sp', 'float16')
  )
  def test_bytes_and_transfer_times_halve(self, scheme, dtype):
    # Computing takes no time worth mentioning.
    slow = {
      'cluster__network__server_up_Bps': (1e5,),
      'cluster__speed__fixed_s': 1e-9,
      'cluster__speed__per_example_s': 0.0,
    }
    _, full = small.execute(sync__name=scheme, **slow)
    _, half = small.execute(sync__name=scheme, wire__dense__dtype=dtype, **slow)
    self.assertEqual(2 * half['bytes'], full['bytes'])
    self.assertAlmostEqual(2 * half['virtual_s'], full['virtual_s'], places=6)
    self.assertEqual(half['compilations'], 0)

  def test_evaluation_reads_the_unrounded_parameters(self):
    _, dataset = _quadratic()
    task = Task(
      jnp.float32(1.001),
      lambda params, inputs, *_: (0.0 * params * inputs[:, 0], ()),
      lambda params, stats, inputs, _: jnp.full(len(inputs), params == 1.001),
    )
    self.assertEqual(_built(task, dataset)()['final_accuracy'], 1.0)

  def test_a_resumed_run_equals_an_uninterrupted_one(self):
    config = small.config(
      sync__name='asp',
      wire__dense__dtype='bfloat16',
      checkpoint__every_examples=90,
    )
    straight = small.build(config)
    expected = straight()
    folder = straight.files.workdir
    (folder / 'summary.json').unlink()
    run = train.build(config, workdir=str(folder))
    self.assertIsNotNone(run.sizes)
    self.assertEqual(small.timeless(run()), small.timeless(expected))
    for got, other in zip(
      jax.tree.leaves(run.runtime.coordinator.store.learner.params),
      jax.tree.leaves(straight.runtime.coordinator.store.learner.params),
      strict=True,
    ):
      np.testing.assert_array_equal(got, other)

  def test_numbers_of_a_timing_only_run_are_rounded_too(self):
    sizes = []
    for dtype in ('float32', 'bfloat16'):
      config = default.get_config()
      config.model.name, config.epochs = 'none', 0.01
      config.wire.dense.dtype = dtype
      run = small.build(config)
      run()
      sizes.append(run.recorder.accounting.bytes)
    self.assertEqual(sizes[0], 2 * sizes[1])

  def test_devices_without_a_model_are_refused(self):
    config = default.get_config()
    config.model.name, config.cluster.devices_per_worker = 'none', 2
    message = (
      'config.cluster.devices_per_worker: 2 is ignored because '
      "config.model.name is 'none'"
    )
    with self.assertRaisesRegex(ValueError, message):
      small.build(config)


if __name__ == '__main__':
  absltest.main()
