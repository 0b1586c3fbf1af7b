"""Tests for the chain of a tuning."""

import functools
import json
import math
import pathlib
import tempfile
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized
from sklearn import isotonic

from analysis import recorded_configs
from configs import default
from diagnosis.costs import Estimate
from sweeps import plan
from tests.support import clusters, small
from tuning import (
  calibration,
  candidates,
  chain,
  deciding,
  describing,
  examples,
  measuring,
  recorded,
  simulating,
)
from tuning.candidates import Candidate
from tuning.combinations import BSP, Combination
from tuning.deciding import Prediction, Trial
from tuning.measuring import Launcher, LossPoint, Measurement, RunError

_STALE = examples.ExamplesRatio(1.04, 0.7, 1.41, 18, 6.9)
_RATIOS = {
  **{examples.Learning(sync): _STALE for sync in ('ssp', 'asp', 'elastic')},
  **{
    examples.Learning(local_steps=steps): _STALE for steps in candidates.STEPS
  },
}
_LAUNCHER = Launcher(4)


def _config(**changed):
  config = default.get_config()
  fields = {name.replace('__', '.'): value for name, value in changed.items()}
  config.update_from_flattened_dict(fields)
  return config


def _propose(config, *allow):
  return candidates.propose(config, workers=4, allow=allow, ratios=_RATIOS)


def _candidate(name='other', *changes, ratio=(1.0, 1.0, 1.0)):
  ratio = examples.ExamplesRatio(*ratio, 6, 0.0)
  return Candidate(name, _config(), changes, ratio)


def _measured(value, half=0.0, losses=(), folder=''):
  pace = Estimate(value, value - half, value + half)
  return Measurement(folder, pace, 100, losses)


def _trial(value, half=0.0, name='other', losses=(), changes=()):
  prediction = Prediction(
    _candidate(name, *changes), value, Estimate(value, value, value)
  )
  return Trial(prediction, _measured(value, half, losses))


def _folder():
  return pathlib.Path(tempfile.mkdtemp())


class ProposeTest(parameterized.TestCase):
  @parameterized.parameters(
    ('bsp', {'bsp'}),
    ('ssp', {'bsp', 'ssp', 'dssp', 'r2sp'}),
    ('asp', {'bsp', 'ssp', 'dssp', 'r2sp', 'asp', 'elastic'}),
  )
  def test_no_candidate_is_staler_than_the_config(self, scheme, schemes):
    config = _config(sync__name=scheme)
    found, _ = _propose(config)
    self.assertEqual({each.config.sync.name for each in found}, schemes)
    self.assertEqual({each.changes for each in found}, {()})
    self.assertNotIn(config, [each.config for each in found])

  def test_fields_of_parts_that_are_not_used_return_to_their_defaults(self):
    config = _config(sync__name='ssp', sync__ssp__bound=7)
    found, rejected = _propose(config)
    bounds = {
      (each.config.sync.name == 'ssp', each.config.sync.ssp.bound)
      for each in found
    }
    self.assertEqual(bounds, {(True, 7), (False, 3)})
    reasons = {each.name: each.reason for each in rejected}
    self.assertRegex(
      reasons['ssp, fixed, float32, forest'],
      "config.route.name: expected 'server', as Ssp does not release",
    )

  def test_local_steps_and_staleness_change_only_if_allowed(self):
    found, _ = _propose(_config(), *candidates.ALLOWED)
    by_change = {}
    for each in found:
      by_change.setdefault(each.changes, []).append(each)
    steps = {each.config.batching.local_steps for each in found}
    self.assertEqual(steps, {1, *candidates.STEPS})
    self.assertEqual(set(by_change), {(), ('staleness',), ('local_steps',)})
    for each in by_change['local_steps',]:
      self.assertEqual(each.ratio.predicted, _STALE.median)
    for each in by_change[()]:
      self.assertEqual(each.ratio[:3], (1.0, 1.0, 1.0))

  def test_other_wires_and_local_steps_stay(self):
    for changed in (
      {'wire__name': 'topk'},
      {'wire__dense__dtype': 'float16'},
      {'batching__local_steps': 4},
    ):
      config = _config(**changed)
      found, _ = _propose(config)
      self.assertNotEmpty(found)
      for each in found:
        self.assertEqual(
          each.config.batching.local_steps, config.batching.local_steps
        )
        if 'batching__local_steps' not in changed:
          self.assertEqual(each.config.wire, config.wire)

  def test_a_candidate_that_checks_reject_has_its_reason(self):
    _, rejected = _propose(_config(wire__name='topk'))
    reasons = {each.name: each.reason for each in rejected}
    self.assertRegex(
      reasons['bsp, fixed, topk, server, pipelined'],
      'route.server.pipelined: expected False, as topk',
    )

  def test_an_unknown_change_is_refused(self):
    with self.assertRaisesRegex(ValueError, "--allow: expected .*'speed'"):
      _propose(_config(), 'speed')

  def test_the_cluster_is_measured_by_bsp_on_the_same_route(self):
    config = _config(
      sync__name='ssp', sync__ssp__bound=7, batching__local_steps=4
    )
    found = candidates.measuring_config(config)
    self.assertEqual(dict(recorded_configs.changed_fields(found)), {})
    config = _config(route__name='ring', route__bucket_bytes=2.0**18)
    found = candidates.measuring_config(config)
    self.assertEqual(found, config)


class MeasureTest(absltest.TestCase):
  def test_a_short_run_is_refused(self):
    folder = clusters.run('bsp', epochs=4 * 8 * 16 / 10_000)
    with self.assertRaisesRegex(ValueError, 'iterations: expected at least 10'):
      measuring.measure(folder, 4 * 16)


class DecideTest(parameterized.TestCase):
  def test_a_winner_is_faster_beyond_both_intervals(self):
    found = deciding.decide([_measured(1.0, 0.1)], [_trial(0.8, 0.05)])
    self.assertEqual(found.winner.measured.iteration_s.value, 0.8)
    expected = 0.8, 0.75 / 1.1, 0.85 / 0.9
    np.testing.assert_allclose(found.gain, expected)

  @parameterized.parameters(
    (0.9, 0.05, 'within the noise'), (1.1, 0.01, 'no candidate was faster')
  )
  def test_otherwise_the_present_config_stays(self, value, half, reason):
    found = deciding.decide([_measured(1.0, 0.1)], [_trial(value, half)])
    self.assertIsNone(found.winner)
    self.assertRegex(found.reason, reason)

  def test_the_fastest_of_several_wins(self):
    trials = [_trial(0.8), _trial(0.6, name='best'), _trial(0.7)]
    found = deciding.decide([_measured(1.0)], trials)
    self.assertEqual(found.winner.prediction.candidate.name, 'best')

  def test_a_winner_beats_the_present_config_before_and_after(self):
    trials = [_trial(0.8, 0.01)]
    before, after = _measured(1.0, 0.01), _measured(0.8, 0.01)
    self.assertIsNotNone(deciding.decide([before], trials).winner)
    self.assertIsNone(deciding.decide([before, after], trials).winner)

  def test_nothing_to_try_and_only_failures_keep_the_config(self):
    failed = _trial(0.5)._replace(measured=None, failure='exit code 1')
    for trials, reason in (([], 'predicted'), ([failed], 'failed')):
      found = deciding.decide([_measured(1.0)], trials)
      self.assertIsNone(found.winner)
      self.assertIn(reason, found.reason)

  def test_candidates_that_are_predicted_to_gain_run_until_three_have(self):
    predictions = [
      Prediction(_candidate(f'{n}'), value, Estimate(value, value, value))
      for n, value in enumerate((0.5, 0.6, 0.7, 0.8, 0.9, 1.0))
    ]
    ran = []

    def measure(candidate):
      ran.append(candidate.name)
      if candidate.name == '1':
        raise RunError('exit code 1')
      return _measured(0.5)

    trials = deciding.try_best(predictions, measure)
    self.assertEqual(ran, ['0', '1', '2', '3'])
    self.assertEqual(
      [each.failure for each in trials], ['', 'exit code 1', '', '']
    )
    ran.clear()
    deciding.try_best(predictions[-2:], measure)
    self.assertEqual(ran, ['4'])

  def test_predictions_multiply_examples_and_seconds(self):
    few = _candidate('few', ratio=(1.2, 0.8, 1.6))
    many = _candidate('many')
    seconds = {id(few.config): 0.5, id(many.config): 0.9}
    found, rejected = deciding.predict(
      [many, few], 1.0, lambda config: seconds[id(config)]
    )
    self.assertEqual([each.candidate for each in found], [few, many])
    # Fewer examples than those of the present config count as equally many.
    np.testing.assert_allclose(found[0].time, (0.6, 0.5, 0.8))
    self.assertEqual([each.is_uncertain for each in found], [True, False])
    self.assertEmpty(rejected)


class LossTest(absltest.TestCase):
  def test_the_curve_is_the_isotonic_regression(self):
    values = list(np.random.default_rng(1).normal(size=40))
    oracle = isotonic.IsotonicRegression(increasing=False)
    expected = oracle.fit_transform(range(40), values)
    np.testing.assert_allclose(deciding._falling(values), expected)

  def test_an_exact_curve_reaches_its_target_in_time(self):
    losses = [LossPoint(float(t), 2.0 - t / 100) for t in range(1, 101)]
    found = deciding.time_to_loss(losses, Estimate(1.5, 1.5, 1.5))
    # Parts are of five seconds; that from 51 to 55 is the first below 1.5.
    self.assertEqual(found, (55.0, 55.0, 55.0))
    found = deciding.time_to_loss(losses, Estimate(0.5, 0.4, 0.6))
    self.assertEqual(found.value, math.inf)

  def test_fast_iterations_that_learn_nothing_do_not_win(self):
    rng = np.random.default_rng(2)

    def curve(rate):
      return [
        LossPoint(float(t), math.exp(-t * rate) + rng.normal(0, 1e-3))
        for t in range(1, 101)
      ]

    present = _measured(1.0, losses=curve(0.02))
    for rate, wins in ((0.08, True), (0.021, False), (0.001, False)):
      trial = _trial(0.2, losses=curve(rate), changes=('staleness',))
      found = deciding.decide([present], [trial])
      self.assertEqual(found.winner is not None, wins, rate)
      if wins:
        self.assertAlmostEqual(found.gain.value, 0.25, delta=0.06)


class ChainTest(absltest.TestCase):
  """Tests of the whole chain, whose runs are injected."""

  def _tune(self, speed, **changed):
    """Returns the outcome if runs take the seconds of `speed`."""
    ran = []

    def run(launcher, config, folder, seconds):
      del launcher
      ran.append((folder.name, candidates.name(config), seconds))
      return speed(config)._replace(folder=str(clusters.run('bsp')))

    def simulate(config, *_):
      balanced = config.batching.name == 'lb_bsp'
      half = config.wire.dense.dtype == 'bfloat16'
      among = config.route.name != 'server'
      return 0.6 - 0.3 * balanced - 0.1 * among - 0.05 * half

    config = _config(batching__worker_batch=16, **changed)
    launcher = Launcher(4, servers=1, dedicated=True)
    measured = clusters.calibration('bsp')
    with (
      mock.patch.object(calibration, 'measure', lambda path: measured),
      mock.patch.object(chain, 'simulate_s', simulate),
    ):
      outcome = chain.tune(
        config,
        launcher,
        folder=_folder() / 'runs',
        run_s=60.0,
        ratios=_RATIOS,
        run=run,
      )
    return outcome, ran

  def test_the_measured_best_is_written_as_a_config_that_main_loads(self):
    def speed(config):
      balanced = config.batching.name == 'lb_bsp'
      half = config.wire.dense.dtype == 'bfloat16'
      return _measured(0.5 - 0.2 * balanced - 0.1 * half, 0.01)

    outcome, ran = self._tune(speed)
    self.assertEqual(
      ran[:2],
      [
        ('bsp', 'bsp, fixed, float32, server', 60.0),
        ('links', 'bsp, fixed, float32, forest', 30.0),
      ],
    )
    self.assertEqual(
      ran[-1][:2], ('present_again', 'bsp, fixed, float32, server')
    )
    self.assertLen(ran, 3 + deciding.MOST)
    winner = outcome.decision.winner.prediction.candidate
    self.assertEqual(winner.name, 'bsp, lb_bsp, bfloat16, forest')
    out = _folder() / 'best.py'
    said = describing.write(outcome, out, 'configs/mine.py')
    self.assertIn(
      'bsp, lb_bsp, bfloat16, forest takes 0.40 (0.37 to 0.43)', said
    )
    self.assertIn(f'--workers=4 -- --config={out}', said)
    loaded = plan.parse_config([f'--config={out}'])
    self.assertEqual(loaded.to_dict(), winner.config.to_dict())
    text = out.read_text()
    self.assertIn('Measured: 0.40 (0.37 to 0.43) of its time; 0.2000', text)
    self.assertIn('Predicted: 0.25 (0.25 to 0.25) of its time; 0.1500', text)
    content = json.loads(out.with_suffix('.json').read_text())
    self.assertEqual(content['winner'], winner.name)
    rows = {row['name']: row for row in content['candidates']}
    row = rows[winner.name]
    self.assertAlmostEqual(row['error'], row['predicted_s'] / 0.2 - 1)
    unmeasured = [row for row in rows.values() if row['measured'] is None]
    self.assertNotEmpty(unmeasured)
    for row in rows.values():
      self.assertGreater(row['predicted_s'], 0)

  def test_a_config_that_is_the_best_is_kept_and_predictions_are_stored(self):
    outcome, _ = self._tune(lambda config: _measured(0.5, 0.01))
    out = _folder() / 'best.py'
    said = describing.write(outcome, out, 'configs/mine.py')
    self.assertStartsWith(said, 'Keep what you have: ')
    self.assertFalse(out.exists())
    content = json.loads(out.with_suffix('.json').read_text())
    self.assertIsNone(content['winner'])
    self.assertNotEmpty(content['candidates'])

  def test_failures_and_rejections_are_shown(self):
    def speed(config):
      if config.batching.name == 'lb_bsp':
        raise RunError('exit code 3')
      return _measured(0.5, 0.01)

    outcome, _ = self._tune(speed, wire__name='topk')
    said = describing.describe(outcome)
    self.assertIn('Failed: bsp, lb_bsp, topk, server: exit code 3', said)
    self.assertRegex(said, 'Skipped: .*pipelined: .*as topk')

  def test_other_configs_run_beside_bsp_which_is_short(self):
    _, ran = self._tune(lambda config: _measured(0.5), sync__name='asp')
    self.assertEqual(ran[0], ('bsp', 'bsp, fixed, float32, server', 30.0))
    self.assertEqual(ran[2], ('present', 'asp, fixed, float32, server', 60.0))

  def test_routes_among_workers_are_predicted_from_a_run_of_one(self):
    folders = []

    def read_run(folder, times):
      del times
      folders.append(folder)
      return folder, None

    seen = {}

    def simulate(config, launcher, folder, _):
      del launcher
      seen.setdefault(folder, set()).add(config.route.name)
      return 1.0

    def run(fails, launcher, config, folder, seconds):
      del launcher, seconds
      if folder.name == fails:
        raise RunError('exit code 3')
      name = f'{folder.name} {config.route.name}'
      return _measured(0.5)._replace(folder=name)

    for fails, among in (('', 'links forest'), ('links', 'bsp server')):
      seen.clear()
      runs = functools.partial(run, fails)
      with (
        mock.patch.object(recorded, 'read_run', read_run),
        mock.patch.object(chain, 'simulate_s', simulate),
      ):
        chain.tune(
          _config(),
          _LAUNCHER,
          folder=_folder() / 'a',
          run_s=1.0,
          ratios={},
          run=runs,
        )
      expected = {'bsp server': {'server'}}
      expected[among] = expected.get(among, set()) | {
        'ring',
        'forest',
        'double_tree',
      }
      self.assertEqual(seen, expected)

  def test_a_simulated_config_has_the_pace_of_its_combination(self):
    cluster, workload = recorded.read_run(str(clusters.run('bsp')), _folder())
    for combination in (Combination('asp'), BSP._replace(route='ring')):
      config = _config()
      config.update_from_flattened_dict(simulating.fields(cluster, combination))
      self.assertEqual(
        simulating.simulate_config(cluster, workload, config),
        simulating.simulate_pace(cluster, workload, combination),
      )


class CommandTest(parameterized.TestCase):
  def _call(self, *words):
    argv = ['-m', 'tools.tune', '--config=configs/demo.py']
    return small.python(*argv, *words)

  def test_one_worker_has_nothing_to_tune(self):
    done = self._call('--workers=1', '--out=best.py')
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertStartsWith(done.stdout, 'Nothing to tune: a single worker')

  @parameterized.parameters(
    (('--workers=2', '--out=best'), '--out: expected the path of a .py file'),
    (('--workers=2', '--out=configs/demo.py'), '--out: expected a file that'),
    (
      ('--workers=2', '--out=best.py', '--config.sync.ssp.bound=5'),
      'config.sync.ssp.bound: 5 is ignored',
    ),
  )
  def test_refusals_name_the_flag(self, words, message):
    done = self._call(*words)
    self.assertEqual(done.returncode, 1)
    self.assertIn(f'Refused: {message}', done.stderr)


class RunTest(absltest.TestCase):
  """Tests with real processes."""

  def test_a_run_of_local_processes_is_measured_and_stopped(self):
    config = small.config(
      cluster__speed__slowdown=(1.0,),
      cluster__speed__fixed_s=0.02,
      cluster__speed__injected=True,
      epochs=1e6,
    )
    folder = _folder() / 'run'
    found = measuring.run(Launcher(2), config, folder, seconds=1.0)
    # An iteration computes for .04 s at least: .02 s and 8 times .0025 s.
    self.assertGreater(found.iteration_s.value, 0.04)
    self.assertLess(found.iteration_s.low, found.iteration_s.value)
    self.assertGreaterEqual(found.iterations, measuring.LEAST // 2)
    self.assertNotEmpty(found.losses)

  def test_a_run_that_fails_has_the_end_of_its_log(self):
    program = _folder() / 'fails'
    program.write_text('#!/bin/sh\necho no memory\nexit 3\n')
    program.chmod(0o755)
    launcher = Launcher(2, command=str(program))
    with self.assertRaisesRegex(
      RunError, 'exit code 3; .*log ends:\nno memory'
    ):
      measuring.run(launcher, _config(), _folder() / 'run', 1.0)


if __name__ == '__main__':
  absltest.main()
