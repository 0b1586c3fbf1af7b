"""Tests for weights of pushes by staleness, alone and in runs of both kinds.

In runs every example costs |p - c|^2 / 2, so that a gradient or a displacement
follows from the version that its worker has pulled, and the parameters from the
recorded events alone.
"""

import json
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import train
from configs import default
from data.dataset import Dataset, Split
from learning import staleness
from models.task import Task
from tests.support import accounts, processes, small, stopping, together
from tests.support.recomputing import recompute

_CENTRE = np.array([1.0, -2.0, 0.5], np.float32)
_FIRST = np.array([3.0, 1.0, -1.0], np.float32)
_EXAMPLES, _BATCH, _RATE = 192, 8, 0.1
_POLYNOMIAL = {
  'staleness__name': 'polynomial',
  'staleness__polynomial__exponent': 0.7,
}
_NESTEROV = {
  'batching__local_steps': 2,
  'outer__name': 'nesterov',
  'outer__learning_rate': 0.5,
}


def _quadratic():
  """Returns the task and its data set."""
  split = Split(np.tile(_CENTRE, (_EXAMPLES, 1)), np.zeros(_EXAMPLES, np.int32))
  task = Task(
    jnp.asarray(_FIRST),
    lambda params, inputs, *_: (jnp.sum((params - inputs) ** 2, 1) / 2, ()),
    lambda params, stats, inputs, targets: jnp.zeros(len(inputs)),
  )
  return {'task': task, 'dataset': Dataset(split, split)}


def _config(**fields):
  fields = {
    'optimizer__learning_rate': _RATE,
    'batching__worker_batch': _BATCH,
    **fields,
  }
  config = small.config(**fields)
  config.model = default.get_config().model
  config.data = default.get_config().data
  return config


def _expected(folder, *, workers, steps=1, momentum=0.0, rate=_RATE):
  """Returns the parameters after the events of a run, in float64.

  Args:
    folder: Folder of the run.
    workers: Number of workers by which updates are divided.
    steps: Number of local steps of rate `_RATE`.
    momentum: Nesterov's momentum of updates, or 0.
    rate: Learning rate of updates.
  """
  share = 1.0 if steps == 1 else 1 - (1 - _RATE) ** steps
  params, trace, version = _FIRST.astype(np.float64), 0.0, 0
  pulled, sums, seen = {}, {}, []
  for line in (folder / 'events.jsonl').read_text().splitlines():
    row = json.loads(line)
    if 'decision' not in row:
      continue
    decision = row['decision']
    if row['event'] == 'push':
      before, start = pulled.pop(row['worker'])
      seen.append(version - before)
      pushed = (1 + seen[-1]) ** -0.7 * share * (start - _CENTRE)
      sums.setdefault(decision['into'], []).append(pushed)
    for update in decision.get('commit', ()):
      pushes = sums.pop(update)
      mean = np.mean(pushes, axis=0)
      trace = mean + momentum * trace
      params = params - rate * len(pushes) / workers * (mean + momentum * trace)
      version += 1
    for worker in decision.get('release', ()):
      pulled[worker] = version, params
  return params, seen


class WeightTest(parameterized.TestCase):
  def test_a_constant_is_1(self):
    self.assertEqual([staleness.constant()(s) for s in (0, 1, 99)], [1, 1, 1])

  def test_a_square_root_by_default(self):
    own = default.get_config().staleness.polynomial.to_dict()
    found = [staleness.polynomial(**own)(s) for s in range(50)]
    np.testing.assert_allclose(found, 1 / np.sqrt(1 + np.arange(50)), 1e-15)

  @parameterized.parameters(0.0, -0.5, 4.5, np.nan)
  def test_rejects(self, exponent):
    with self.assertRaisesRegex(ValueError, 'exponent: .* above 0, at most 4'):
      staleness.polynomial(exponent=exponent)


class VirtualTest(parameterized.TestCase):
  @parameterized.parameters(
    {'sync__name': 'asp'},
    {'sync__name': 'asp', 'sync__asp__grace_s': 0.03},
    {'sync__name': 'ssp', 'sync__ssp__bound': 1},
    {'sync__name': 'dssp', 'sync__dssp__grace_s': 0.02},
    {'sync__name': 'elastic'},
    {'sync__name': 'r2sp'},
    {'sync__name': 'quorum'},
    {'sync__name': 'asp', 'precision__loss_scaling': 'dynamic'},
    {'sync__name': 'asp', **_NESTEROV},
    {'sync__name': 'asp', 'sync__asp__grace_s': 0.03, **_NESTEROV},
  )
  def test_parameters_follow_from_the_events(self, **fields):
    run = small.build(_config(**_POLYNOMIAL, **fields), **_quadratic())
    summary = run()
    arguments = {'workers': 1}  # The sum: an update counts by its examples.
    if 'outer__name' in fields:
      arguments = {'workers': 3, 'steps': 2, 'momentum': 0.9, 'rate': 0.5}
    expected, seen = _expected(pathlib.Path(run.files.workdir), **arguments)
    self.assertGreater(max(seen), 0)
    self.assertEqual(summary['compilations'], 0)
    found = run.runtime.coordinator.store.learner.params
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)

  @parameterized.parameters(
    {'wire__name': 'sparse', 'wire__sparse__chunk': 16},
    {'wire__name': 'lowrank'},
  )
  def test_all_wires_take_weights(self, **fields):
    fields = {'sync__name': 'asp', 'epochs': 1.0, **fields}
    runs = [small.execute(**fields, **more) for more in ({}, _POLYNOMIAL)]
    plain, weighted = (
      np.asarray(
        jax.tree.leaves(run.runtime.coordinator.store.learner.params)[0]
      )
      for run, _ in runs
    )
    self.assertEqual(runs[1][1]['compilations'], 0)
    self.assertTrue(np.isfinite(weighted).all())
    self.assertTrue((plain != weighted).any())

  def test_a_resumed_run_has_the_same_weights_and_windows(self):
    fields = {**_POLYNOMIAL, 'sync__asp__grace_s': 0.03, 'epochs': 1.5}
    expected, steps = stopping.straight('asp', **fields)
    workdir = str(pathlib.Path(tempfile.mkdtemp(), 'run'))
    config = stopping.eventful('asp', **fields)
    run = train.build(config, workdir=workdir)
    with self.assertRaises(stopping.Killed):
      stopping.stop(run, saved_at=[steps // 2], killed_at=steps - 1)
    run = train.build(config, workdir=workdir)
    run()
    found = stopping.results(run)
    np.testing.assert_equal(found['params'], expected['params'])
    self.assertEqual(found['events'], expected['events'])

  @parameterized.parameters(
    (_POLYNOMIAL, "staleness.name: expected 'constant', as no push of Bsp is"),
    (
      {**_POLYNOMIAL, 'sync__name': 'asp', 'optimizer__name': 'adamw'},
      "staleness.name: expected 'constant', as adamw takes steps whatever",
    ),
    (
      {'staleness__polynomial__exponent': 1.0},
      'config.staleness.polynomial.exponent: 1.0 is ignored by',
    ),
    ({'staleness__name': 'linear'}, r'config.staleness.name: .*\'constant\''),
  )
  def test_settings_that_change_nothing_are_rejected(self, fields, message):
    with self.assertRaisesRegex(ValueError, message):
      small.build(small.config(**fields))

  def test_weights_need_a_model(self):
    with self.assertRaisesRegex(ValueError, 'config.staleness.name: .*model'):
      small.build(small.timing(**_POLYNOMIAL, sync__name='asp'))


_REAL = {
  'cluster__runtime': 'distributed',
  'cluster__workers': 3,
  'cluster__speed__injected': True,
  'cluster__speed__fixed_s': 0.02,
  'cluster__speed__per_example_s': 0.0,
  'cluster__speed__slowdown': (1.0, 1.0, 2.5),
  'checkpoint__every_examples': 96,
  'route__server__servers': 2,
  'sync__name': 'asp',
  'sync__asp__grace_s': 0.015,
}


class RealTest(absltest.TestCase):
  def test_parameters_follow_from_the_events(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    config = _config(**_REAL, **_POLYNOMIAL, **_NESTEROV)
    together.run(config, folder, **_quadratic())
    expected, seen = _expected(
      folder, workers=3, steps=2, momentum=0.9, rate=0.5
    )
    self.assertGreater(max(seen), 0)
    _, servers = processes.newest(folder)
    found = np.concatenate([state['params'] for state in servers])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)

  def test_runs_can_be_computed_again_and_replayed(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    fields = {'wire__name': 'topk', 'optimizer__name': 'adamw', **_NESTEROV}
    together.run(small.config(**_REAL, **_POLYNOMIAL, **fields), folder)
    summary = json.loads((folder / 'summary.json').read_text())
    self.assertEqual(summary['late_compilations'], 0)
    self.assertLess(summary['updates'], summary['iterations'])
    self.assertGreater(summary['staleness_max'], 0)
    for check in accounts.accounts(folder):  # Decisions are the same again.
      self.assertTrue(check.holds, check)
    self.assertEqual(recompute.difference(folder), 0.0)

    def other(manifest):
      manifest['config']['staleness']['polynomial']['exponent'] = 1.0

    changed = small.copy_with_change(folder, 'manifest.json', other)
    self.assertGreater(recompute.difference(changed), 0.0)


if __name__ == '__main__':
  absltest.main()
