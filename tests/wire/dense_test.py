"""Tests for cluster.wire: what is rounded, what is not, and its bytes."""

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
from learning.gradient import Payload
from learning.learner import Server
from models.task import Task
from tests.support import small
from wire.dense import Wire

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


class WireTest(parameterized.TestCase):
  def test_numbers_are_rounded_to_nearest(self):
    bits = np.arange(2**32, step=99_991, dtype=np.uint64).astype(np.uint32)
    ties = np.uint32(0x3F808000) + np.arange(4, dtype=np.uint32) * 0x8000
    floats = np.concatenate([bits, ties]).view(np.float32)
    floats = np.append(
      floats[~np.isnan(floats)], [np.inf, -0.0, 1e-45, 3.4e38]
    ).astype(np.float32)
    wire = Wire(dtype='bfloat16')
    for way in (wire.pushed, wire.pulled):
      got = np.asarray(way({'w': jnp.asarray(floats)})['w'])
      np.testing.assert_array_equal(got, _rounded(floats))
      self.assertEqual(got.dtype, np.float32)
    self.assertTrue(np.isnan(wire.pushed(jnp.float32(np.nan))))

  def test_other_numbers_travel_as_they_are(self):
    whole = jnp.arange(2**20, 2**20 + 7)
    self.assertTrue(
      jnp.array_equal(Wire(dtype='bfloat16').pushed(whole), whole)
    )

  def test_sizes_are_those_on_the_way(self):
    tree = (jnp.zeros((3, 5)), {'count': jnp.zeros(7, jnp.int32)}, ())
    self.assertEqual(Wire(dtype='float32').size_bytes(tree), 4 * (15 + 7))
    self.assertEqual(Wire(dtype='bfloat16').size_bytes(tree), 2 * 15 + 4 * 7)
    self.assertEqual(Wire(dtype='bfloat16').dtype, ml_dtypes.bfloat16)

  def test_float32_costs_nothing(self):
    tree = {'w': jnp.ones(3)}
    wire, before = Wire(dtype='float32'), compilations.count()
    wire.warm_up(tree, ())
    self.assertIs(wire.pushed(tree), tree)
    self.assertIs(wire.pulled(tree), tree)
    self.assertEqual(compilations.count(), before)

  def test_a_version_is_rounded_once(self):
    wire = Wire(dtype='bfloat16')
    one, other = jnp.full(3, 1.001), jnp.full(3, 2.001)
    self.assertIs(wire.pulled(one), wire.pulled(one))
    np.testing.assert_array_equal(wire.pulled(other), [2.0] * 3)
    np.testing.assert_array_equal(wire.pulled(one), [1.0] * 3)

  @parameterized.parameters('float16', 'float8', '')
  def test_other_dtypes_are_refused(self, dtype):
    message = (
      r"config.wire.dense.dtype: expected one of \['float32', 'bfloat16'\], "
      f'got {dtype!r}'
    )
    with self.assertRaisesRegex(ValueError, message):
      small.build(small.config(wire__dense__dtype=dtype))

  def test_servers_sum_in_float32(self):
    server = Server(
      params=jnp.ones(1),
      stats=(),
      tx=optax.sgd(1.0),
      schedule=lambda examples, updates: 1.0,
      reduction='sum',
      num_workers=1,
      worker_batch=512,
    )
    wire = Wire(dtype='bfloat16')
    for total in [256.0] + [1.0] * 256:  # In bfloat16, 256 + 1 is 256.
      payload = Payload(jnp.full(1, total), ())
      server.add(0, wire.pushed(payload), 512 if total > 1 else 0)
    server.commit(0)
    np.testing.assert_array_equal(server.params, [1 - 512 / 512])


class RunTest(parameterized.TestCase):
  def test_it_computes_what_plain_sgd_does_with_both_ways_rounded(self):
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
    np.testing.assert_array_equal(run.cluster.lead.server.params, params)
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
    # Of the 8 bits of bfloat16 a step of 2^-12 from 1 changes none.
    left = 1 - summary['iterations'] * 2.0**-12
    np.testing.assert_array_equal(run.cluster.lead.server.params, [left] * 3)

  @parameterized.parameters('bsp', 'ssp', 'r2sp')
  def test_bytes_and_transfer_times_halve(self, scheme):
    # Computing takes no time worth mentioning.
    slow = {
      'cluster__network__server_up_Bps': (1e5,),
      'cluster__speed__fixed_s': 1e-9,
      'cluster__speed__per_example_s': 0.0,
    }
    _, full = small.trained(sync__name=scheme, **slow)
    _, half = small.trained(
      sync__name=scheme, wire__dense__dtype='bfloat16', **slow
    )
    self.assertEqual(2 * half['bytes'], full['bytes'])
    self.assertAlmostEqual(2 * half['virtual_s'], full['virtual_s'], places=6)
    self.assertEqual(half['compilations'], 0)

  def test_evaluation_reads_what_the_server_holds(self):
    _, dataset = _quadratic()
    task = Task(
      jnp.float32(1.001),
      lambda params, inputs, *_: (0.0 * params * inputs[:, 0], ()),
      lambda params, stats, inputs, _: jnp.full(len(inputs), params == 1.001),
    )
    self.assertEqual(_built(task, dataset)()['final_accuracy'], 1.0)

  def test_a_run_that_goes_on_gives_what_a_straight_one_does(self):
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
      jax.tree.leaves(run.cluster.lead.server.params),
      jax.tree.leaves(straight.cluster.lead.server.params),
      strict=True,
    ):
      np.testing.assert_array_equal(got, other)

  @parameterized.parameters(
    ('wire.dense.dtype', 'bfloat16'), ('cluster.devices_per_worker', 2)
  )
  def test_fields_without_a_meaning_are_refused(self, field, value):
    config = default.get_config()
    config.model.name = 'none'
    config.update_from_flattened_dict({field: value})
    message = f"config.{field}: expected .* because config.model.name is 'none'"
    with self.assertRaisesRegex(ValueError, message):
      small.build(config)


if __name__ == '__main__':
  absltest.main()
