"""Tests for virtual runs with local steps."""

import json
import pathlib
import tempfile

import jax
import numpy as np
from absl.testing import absltest, parameterized

import train
from configs import default
from tests.support import small, stopping

_SCHEMES = ('bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp', 'quorum')
_ONE = {'cluster__workers': 1, 'cluster__speed__slowdown': (1.0,)}
_UNEQUAL = {
  'batching__name': 'lb_bsp',
  'batching__lb_bsp__unit': 'steps',
  'batching__local_steps': 4,
  'data__ahead': 0,
}
_ADAMW = {'optimizer__name': 'adamw', 'optimizer__learning_rate': 0.01}


def _params(run):
  leaves = jax.tree.leaves(run.runtime.coordinator.store.learner.params)
  return np.concatenate([np.ravel(leaf) for leaf in leaves])


class EquivalenceTest(parameterized.TestCase):
  @parameterized.parameters(
    {'optimizer__sgd__momentum': 0.9},
    _ADAMW,
    # The rate drops between two iterations.
    {**_ADAMW, 'schedule__name': 'step', 'schedule__step__epochs': (1.0,)},
  )
  def test_averaging_of_one_worker_is_training_without_local_steps(
    self, **optimizer
  ):
    plain, _ = small.execute(**_ONE, **optimizer)
    found, summary = small.execute(**_ONE, **optimizer, batching__local_steps=4)
    self.assertEqual(summary['updates'], 2 * 192 // 8 // 4)
    np.testing.assert_allclose(_params(found), _params(plain), 1e-4, 1e-6)


class RunTest(parameterized.TestCase):
  @parameterized.parameters(*_SCHEMES)
  def test_bytes_of_an_example_fall_by_the_number_of_steps(self, name):
    found = [
      small.execute(
        sync__name=name, batching__local_steps=steps, epochs=6.0, **_ADAMW
      )[1]
      for steps in (1, 2)
    ]
    one, two = (each['bytes'] / each['examples'] for each in found)
    self.assertAlmostEqual(two / one, 0.5, delta=0.03)
    self.assertEqual(found[1]['compilations'], 0)
    self.assertGreater(found[1]['final_accuracy'], 0.5)

  @parameterized.parameters(
    {'wire__dense__dtype': 'bfloat16'},
    {'wire__name': 'sparse', 'wire__sparse__chunk': 16},
    {'wire__name': 'topk'},
    {'wire__name': 'quantised'},
    {'wire__name': 'quantised', 'wire__quantised__bits': 2},
    {'wire__name': 'lowrank'},
    {'route__name': 'ring', 'optimizer__name': 'sgd'},
    {'route__name': 'ring', 'wire__name': 'lowrank'},
    {'route__server__pipelined': True},
    {'precision__dtype': 'bfloat16'},
  )
  def test_wires_routes_and_models_take_displacements(self, **fields):
    run, summary = small.execute(
      **{**_ADAMW, 'epochs': 1.0, **fields}, batching__local_steps=2
    )
    self.assertEqual(summary['compilations'], 0)
    self.assertTrue(np.isfinite(_params(run)).all())

  @parameterized.parameters('sgd', 'nesterov', 'delayed_nesterov')
  def test_outer_optimizers_learn(self, name):
    _, summary = small.execute(
      **_ADAMW,
      epochs=6.0,
      batching__local_steps=2,
      outer__name=name,
      outer__learning_rate=0.7,
    )
    self.assertGreater(summary['final_accuracy'], 0.5)

  @parameterized.product(bits=[8, 4, 2], outer=['sgd', 'nesterov'])
  def test_displacements_of_few_bits_learn_as_exact_ones(self, bits, outer):
    fields = {
      **_ADAMW,
      'epochs': 6.0,
      'batching__local_steps': 2,
      'outer__name': outer,
      'outer__learning_rate': 0.7,
    }
    _, exact = small.execute(**fields)
    _, found = small.execute(
      **fields, wire__name='quantised', wire__quantised__bits=bits
    )
    self.assertAlmostEqual(
      found['final_accuracy'], exact['final_accuracy'], delta=0.05
    )


class UnequalStepsTest(parameterized.TestCase):
  @parameterized.parameters('last', 'ema', 'arima', 'narx')
  def test_faster_workers_take_more_steps_of_the_same_batch(self, predictor):
    run, summary = small.execute(
      **_ADAMW,
      **_UNEQUAL,
      batching__lb_bsp__predictor__name=predictor,
      batching__lb_bsp__threshold=0.0,
      epochs=6.0,
    )
    self.assertEqual(summary['compilations'], 0)
    rows = [
      row for row in small.rows(run, 'events.jsonl') if row['event'] == 'push'
    ]
    steps = np.array([row['examples'] for row in rows]) / 8
    np.testing.assert_array_equal(steps, np.maximum(np.round(steps), 1))
    last = {row['worker']: row['examples'] // 8 for row in rows[-6:-3]}
    # 12 steps by speeds of 1, 1 / 1.3 and 1 / 3.1: 5.74, 4.41 and 1.85.
    self.assertEqual(last, {0: 6, 1: 4, 2: 2})

  def test_whole_steps_need_local_steps(self):
    with self.assertRaisesRegex(
      ValueError, "lb_bsp.unit: expected 'examples', .*local_steps is 1"
    ):
      small.build(small.config(**{**_UNEQUAL, 'batching__local_steps': 1}))


class LossTest(absltest.TestCase):
  def test_states_of_workers_that_leave_are_listed(self):
    _, summary = small.execute(
      **_ADAMW,
      batching__local_steps=2,
      epochs=6.0,
      cluster__script=((1.0, 'leave', 1), (2.0, 'join', 1)),
    )
    (lost,), (new,) = summary['lost_states'], summary['new_states']
    self.assertEqual((lost['worker'], lost['time']), (1, 1.0))
    self.assertEqual(new['worker'], 1)
    self.assertGreater(new['time'], 2.0)


class ResumeTest(parameterized.TestCase):
  @parameterized.parameters(('bsp', 'adamw'), ('asp', 'adamw'), ('bsp', 'muon'))
  def test_a_resumed_run_has_the_states_of_inner_optimizers(self, scheme, name):
    fields = {
      **_ADAMW,
      'optimizer__name': name,
      'batching__local_steps': 2,
      'outer__name': 'nesterov',
      'optimizer__sgd__momentum': 0.0,
    }
    straight = small.build(stopping.eventful(scheme, **fields))
    straight()
    workdir = pathlib.Path(tempfile.mkdtemp()) / 'run'
    config = stopping.eventful(scheme, **fields)
    run = train.build(config, workdir=str(workdir))
    with self.assertRaises(stopping.Killed):
      stopping.stop(run, saved_at=[20], killed_at=30)
    run = train.build(config, workdir=str(workdir))
    run()
    np.testing.assert_array_equal(_params(run), _params(straight))


class PrefetchingTest(parameterized.TestCase):
  @parameterized.parameters((2, 2), (4, 1), (8, 0))
  def test_workers_prefetch_no_more_iterations_than_an_epoch_has(
    self, steps, expected
  ):
    """Three workers share 192 examples, in batches of 8: eight each."""
    found = []
    for ahead in (2, expected):
      run, summary = small.execute(
        batching__local_steps=steps, data__ahead=ahead, sync__name='ssp'
      )
      manifest = json.loads((run.files.workdir / 'manifest.json').read_text())
      self.assertEqual(manifest['prefetched_iterations'], expected)
      found.append((small.timeless(summary), _params(run).tolist()))
    self.assertEqual(*found)

  def test_eight_local_steps_run_with_the_other_defaults(self):
    config = default.get_config()
    config.batching.local_steps = 8
    train.check(config)
    config.model.name = 'mlp'
    config.epochs = 0.5
    self.assertEqual(small.build(config)()['ended'], 'finished')


class RejectionTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      {'batching__local_steps': 9},
      'config.batching.local_steps: expected at most 8 with batches of 8, .* 9',
    ),
    (
      {'outer__learning_rate': 0.7},
      'config.outer.learning_rate: .* because config.batching.local_steps is 1',
    ),
    ({'outer__name': 'nesterov'}, 'config.outer.name: .*local_steps is 1'),
    (
      {'batching__local_steps': 2, 'optimizer__reduction': 'mean'},
      'config.optimizer.reduction: .* config.outer.reduction takes its place',
    ),
    (
      {
        'batching__local_steps': 2,
        'wire__name': 'sparse',
        'wire__sparse__correction': 'local',
      },
      'config.wire.sparse.correction: .* gradients alone',
    ),
    (
      {'batching__local_steps': 2, 'precision__loss_scaling': 'dynamic'},
      'config.precision.dtype: .* no loss scale',
    ),
  )
  def test_rejects(self, fields, message):
    with self.assertRaisesRegex(ValueError, message):
      small.build(small.config(**fields))


if __name__ == '__main__':
  absltest.main()
