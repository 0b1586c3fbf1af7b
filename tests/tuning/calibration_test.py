"""Tests for calibrations: known clusters are predicted from one run."""

import json
import pathlib
import re
import runpy
import tempfile

import numpy as np
import pytest
from absl.testing import absltest, parameterized

import analysis
from analysis import recorded_configs
from cluster.speed import speed
from configs import default
from tests.support import clusters, small
from tuning import calibration
from tuning.calibrating import timeline


def _rewrite(folder, name, change):
  """Returns a copy of a run with another content of a JSON file."""
  copy = clusters.with_timeline(folder, lambda row: None)
  content = json.loads((copy / name).read_text())
  change(content)
  (copy / name).write_text(json.dumps(content))
  return copy


class ComputeTest(absltest.TestCase):
  def test_every_worker_repeats_its_recorded_times(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    measured = clusters.calibration('asp')

    calibration.write(measured, folder / 'cluster.py')

    section = measured.config.cluster.speed
    columns = section.trace.to_dict() | {'path': str(folder / 'cluster.csv')}
    model = speed.trace(num_workers=4, seed=0, **columns)
    speeds = speed.Speed(
      fixed_s=section.fixed_s,
      per_example_s=section.per_example_s,
      slowdown=section.slowdown * 4,
      model=model,
    )
    true = speed.Speed(
      fixed_s=0.1,
      per_example_s=0.0025,
      slowdown=(1.0, 1.5, 2.0, 3.0),
      model=speed.lognormal(num_workers=4, seed=0, sigma=0.1),
    )
    for worker, times in enumerate(measured.compute_s):
      self.assertGreater(len(times), 40)
      for iteration in range(len(times)):
        np.testing.assert_allclose(
          speeds.seconds(worker, iteration, 16),
          true.seconds(worker, iteration, 16),
          rtol=1e-6,
        )

  def test_warm_up_is_left_out(self):
    slow = set(range(4))

    def change(row):
      if row['name'] == 'compute' and row['tid'] in slow:
        slow.remove(row['tid'])
        row['dur'] *= 10

    measured = calibration.measure(
      clusters.with_timeline(clusters.run('asp'), change)
    )

    for times, all_times in zip(
      measured.compute_s, clusters.calibration('asp').compute_s, strict=True
    ):
      self.assertSequenceEqual(times, all_times[1:])


class PredictTest(parameterized.TestCase):
  @parameterized.parameters(
    (1, 'bsp'), (1, 'ssp'), (1, 'elastic'), (1, 'r2sp'), (1, 'asp'), (2, 'bsp')
  )
  def test_one_run_predicts_every_scheme(self, servers, scheme):
    self._check_predicted(servers, scheme)

  @parameterized.parameters('ssp', 'elastic', 'r2sp', 'asp')
  @pytest.mark.soak
  def test_one_run_of_two_servers_predicts_the_others(self, scheme):
    self._check_predicted(2, scheme)

  def _check_predicted(self, servers, scheme):
    folder = clusters.run(scheme, servers)
    true = timeline.pace(analysis.read(folder))

    found = calibration.predict(clusters.calibration('asp', servers), folder)

    np.testing.assert_allclose(
      found['iteration_s'], true.iteration_s, rtol=0.05
    )
    self.assertLess(abs(found['waiting_share'] - true.waiting_share), 0.02)
    self.assertBetween(found['examples'], clusters.ITERATIONS * 16, 243 * 16)

  def test_servers_in_workers_are_found_there(self):
    unused = default.get_config().cluster.network
    equal = {
      f'cluster__network__server_{name}': unused[f'server_{name}']
      for name in ('up_Bps', 'down_Bps', 'latency_s')
    } | {
      'cluster__network__servers_in_workers': True,
      'cluster__network__worker_up_Bps': (25e6,),
      'cluster__network__worker_down_Bps': (25e6,),
      'cluster__speed__slowdown': (1.0,),
    }
    measured = calibration.measure(clusters.run('bsp', 4, **equal))
    network = measured.config.cluster.network
    self.assertTrue(network.servers_in_workers)
    for rate_Bps in network.worker_up_Bps + network.worker_down_Bps:
      self.assertLessEqual(rate_Bps, 1.05 * 25e6)
    for scheme in ('bsp', 'asp'):
      (found,) = calibration.check(measured, [clusters.run(scheme, 4, **equal)])
      ratio = found.predicted.iteration_s / found.measured.iteration_s
      self.assertBetween(ratio, 0.95, 1.05)

  def test_a_real_run_with_dedicated_servers_predicts_itself(self):
    def dedicate(manifest):
      manifest['config']['route']['server']['dedicated'] = True
      manifest['config']['cluster']['runtime'] = 'distributed'

    real = small.copy_with_change(
      clusters.run('r2sp'), 'manifest.json', dedicate
    )
    measured = calibration.measure(real)
    (check,) = calibration.check(measured, [real])
    ratio = check.predicted.iteration_s / check.measured.iteration_s
    self.assertAlmostEqual(ratio, 1, delta=0.02)

  @parameterized.parameters('asp', 'bsp')
  def test_the_work_of_servers_is_told_from_latency(self, scheme):
    work = {'share_bytes': 5_000_004, 'slot_bytes': 10_000_008}
    work |= {'sum_s': 0.01, 'update_s': 0.03}
    rates = {
      'cluster__server__sum_Bps': work['share_bytes'] / work['sum_s'],
      # Without a model there are no slots.
      'cluster__server__update_Bps': work['share_bytes'] / work['update_s'],
    }
    measured = _rewrite(
      clusters.run('asp', **rates),
      'summary.json',
      lambda summary: summary.update(server_work=work),
    )

    measured = calibration.measure(measured)

    section = measured.config.cluster
    self.assertAlmostEqual(section.server.sum_Bps / 500.0004e6, 1)
    self.assertAlmostEqual(section.server.update_Bps / 500.0004e6, 1)
    (latency_s,) = section.network.worker_latency_s
    self.assertBetween(latency_s, 1e-3, 4e-3)  # 2 ms.
    self.assertRegex(calibration.describe(measured), r' 10 ms .* 30 ms')
    true = timeline.pace(analysis.read(clusters.run(scheme, **rates)))
    found = calibration.predict(measured, clusters.run(scheme, **rates))
    np.testing.assert_allclose(
      found['iteration_s'], true.iteration_s, rtol=0.02
    )

  def test_a_noisy_run_predicts_as_well(self):
    measured = calibration.measure(
      clusters.with_noise(clusters.run('r2sp'), 0.02)
    )
    schemes = ('bsp', 'ssp', 'elastic', 'r2sp', 'asp')

    checks = calibration.check(
      measured, [clusters.run(name) for name in schemes]
    )

    self.assertEqual([each.scheme for each in checks], list(schemes))
    for each in checks:
      ratio = each.predicted.iteration_s / each.measured.iteration_s
      self.assertBetween(ratio, 0.95, 1.05, each)

  def test_a_config_is_predicted_as_well_as_a_run_of_it(self):
    measured = clusters.calibration('asp')
    config = clusters.config('ssp', sync__ssp__bound=1)

    found = calibration.predict(measured, config)

    run = calibration.predict(measured, clusters.run('ssp', sync__ssp__bound=1))
    self.assertEqual(found['iteration_s'], run['iteration_s'])
    self.assertEqual(config, clusters.config('ssp', sync__ssp__bound=1))

  def test_written_config_runs_in_main(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    measured = clusters.calibration('asp')
    calibration.write(measured, folder / 'cluster.py')

    done = small.python(
      'main.py',
      f'--config={folder}/cluster.py',
      f'--workdir={folder}/run',
      '--config.sync.name=ssp',
    )

    self.assertEqual(done.returncode, 0, done.stderr)
    found = calibration.predict(measured, clusters.run('ssp'))
    pace = timeline.pace(analysis.read(folder / 'run'))
    self.assertEqual(pace.iteration_s, found['iteration_s'])
    self.assertEqual(pace.waiting_share, found['waiting_share'])

  def test_a_run_with_a_model_takes_the_time_of_its_bytes(self):
    slow = {
      f'cluster__network__{host}_{link}_Bps': (rate,)
      for host, rate in (('worker', 2e4), ('server', 3e4))
      for link in ('up', 'down')
    }
    run = small.build(small.config(sync__name='asp', epochs=4.0, **slow))
    run()
    out = pathlib.Path(tempfile.mkdtemp(), 'cluster.py')

    measured = calibration.measure(run.files.workdir)
    calibration.write(measured, out)

    self.assertEqual(measured.size_bytes, small.size_bytes(run))
    self.assertEqual(measured.num_train, 192)
    again = small.build(runpy.run_path(str(out))['get_config']())
    again()
    pace = timeline.pace(analysis.read(again.files.workdir))
    true = timeline.pace(analysis.read(run.files.workdir))
    found = calibration.predict(measured, run.files.workdir)
    self.assertAlmostEqual(found['iteration_s'], pace.iteration_s)
    np.testing.assert_allclose(pace.iteration_s, true.iteration_s, rtol=0.02)


class TimelineTest(absltest.TestCase):
  def test_spans_ended_by_a_death_are_ignored(self):
    folder = clusters.run(
      'bsp', cluster__script=((5.5, 'leave', 3), (9.0, 'join', 3))
    )
    recorded = timeline.read(folder)
    spans = [span for each in recorded.workers for span in each]
    dead = [s for s in spans if abs(s.end - 5.5) < 1e-6 and s.worker == 3]

    whole = np.concatenate(
      [timeline.transfers(recorded, phase).start for phase in ('pull', 'push')]
    )

    self.assertLen(dead, 1)
    self.assertNotIn(dead[0].start, whole)
    self.assertNotIn(
      dead[0].end - dead[0].start, timeline.compute_times(recorded)[3]
    )
    self.assertEqual(timeline.size_bytes(recorded), 5_000_004)


class ConfigTest(absltest.TestCase):
  def test_fields_of_real_clusters_are_omitted(self):
    def change(manifest):
      config = manifest['config']
      config['cluster'] |= {
        'runtime': 'distributed',
        'timeout_s': 60.0,
        'script': [[1.0, 'leave', 2]],
        'faults': {'name': 'kill', 'kill': {'at_s': 3.0}},
      }
      config['cluster']['speed']['injected'] = True

    folder = _rewrite(clusters.run('asp'), 'manifest.json', change)

    config = recorded_configs.restore_config(folder)

    self.assertEqual(config.cluster.runtime, 'virtual')
    self.assertEqual(config.cluster.script, ())
    self.assertEqual(config.cluster.workers, 4)
    self.assertEqual(config.checkpoint.every_s, float('inf'))
    self.assertEqual(config.time_to, (0.9, 0.95))
    found = calibration.predict(clusters.calibration('asp'), folder)
    true = calibration.predict(clusters.calibration('asp'), clusters.run('asp'))
    self.assertEqual(found['iteration_s'], true['iteration_s'])

  def test_other_unknown_fields_are_refused(self):
    def change(manifest):
      manifest['config']['wire']['bits'] = 8

    folder = _rewrite(clusters.run('asp'), 'manifest.json', change)

    with self.assertRaisesRegex(ValueError, "config.wire.bits: .* got 'bits'"):
      calibration.measure(folder)


class RefusalTest(parameterized.TestCase):
  def test_a_folder_without_a_run_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'expected a run with manifest'):
      calibration.measure(tempfile.mkdtemp())

  def test_a_running_run_is_refused(self):
    folder = clusters.with_timeline(clusters.run('asp'), lambda row: None)
    (folder / 'summary.json').unlink()

    with self.assertRaisesRegex(ValueError, 'expected a run that has ended'):
      calibration.measure(folder)

  def test_a_short_run_is_refused(self):
    folder = clusters.run('asp', epochs=20 * 16 / 10_000)

    with self.assertRaisesRegex(ValueError, 'worker 0: expected at least 8'):
      calibration.measure(folder)

  def test_a_broken_timeline_is_refused(self):
    folder = clusters.with_timeline(
      clusters.run('asp'), lambda row: row.pop('dur')
    )

    with self.assertRaisesRegex(ValueError, 'line .*expected the field dur'):
      timeline.read(folder)

  def test_other_workloads_are_refused(self):
    folder = clusters.run('asp', batching__worker_batch=32)

    with self.assertRaisesRegex(ValueError, f'{folder}: config.batching: exp'):
      calibration.check(clusters.calibration('asp'), [folder])

  def test_a_config_is_a_python_file(self):
    with self.assertRaisesRegex(ValueError, "out: .* .py file, got 'a.json'"):
      calibration.write(clusters.calibration('asp'), 'a.json')


class CommandTest(absltest.TestCase):
  def test_checks_print_a_table(self):
    out = pathlib.Path(tempfile.mkdtemp(), 'cluster.py')
    others = [str(clusters.run(name)) for name in ('bsp', 'r2sp')]

    done = small.python(
      *(
        '-m',
        'tools.tune',
        f'--from_run={clusters.run("asp")}',
        f'--out={out}',
        f'--check={",".join(others)}',
      ),
    )

    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertRegex(done.stdout, r'worker 1 +60 +25 +0\.2\d+')
    self.assertRegex(done.stdout, r'server +70 +80 ')
    rows = re.findall(r'(bsp|r2sp) +\S+ +\S+ +(0\.9\d+|1\.0\d+) ', done.stdout)
    self.assertEqual([name for name, _ in rows], ['bsp', 'r2sp'])
    self.assertRegex(done.stdout, r'Medians: \|ratio - 1\| [0-4]\.\d%')
    self.assertTrue(out.exists() and out.with_suffix('.csv').exists())

  def test_the_command_refuses_a_folder_without_a_run(self):
    done = small.python('-m', 'tools.tune', '--from_run=/none', '--out=a.py')

    self.assertEqual(done.returncode, 1)
    self.assertIn('Refused: /none: expected a run', done.stderr)

  def test_a_flag_of_another_command_is_refused(self):
    done = small.python(
      *('-m', 'tools.tune', '--from_run=/none', '--out=a.py', '--workers=2')
    )
    self.assertEqual(done.returncode, 1)
    self.assertIn('Refused: --workers: expected no value', done.stderr)


if __name__ == '__main__':
  absltest.main()
