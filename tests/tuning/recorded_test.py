"""Tests for tuning.recorded, and of the flags that ask for it."""

import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

import analysis
from tests.support import clusters
from tuning import problem, recorded, simulating
from tuning.combinations import BSP

_RATE = {'worker_up_Bps': [25e6], 'worker_down_Bps': [25e6]}
_HEAD = 'worker,iteration,compute_s'


def _folder():
  return pathlib.Path(tempfile.mkdtemp())


def _file(name, content):
  path = _folder() / name
  path.write_text(content if isinstance(content, str) else json.dumps(content))
  return str(path)


def _trace(*seconds):
  """Returns a trace of some workers with equal iterations."""
  rows = [f'{w},{n},{s}' for w, s in enumerate(seconds) for n in range(3)]
  return _file('times.csv', '\n'.join([_HEAD, *rows]) + '\n')


class RunTest(absltest.TestCase):
  def test_one_run_predicts_the_speed_of_another_scheme(self):
    cluster, workload = recorded.read_run(str(clusters.run('asp')), _folder())
    self.assertEqual((cluster.workers, workload.batch), (4, 16))
    self.assertEqual(workload.size_bytes, 5_000_004)
    self.assertTrue(cluster.has_server_links and cluster.has_dedicated_servers)
    summary = analysis.read(clusters.run('bsp')).summary
    measured = summary['examples'] / summary['time_s']
    pace = simulating.simulate_pace(cluster, workload, BSP)
    self.assertAlmostEqual(pace.examples_per_s / measured, 1.0, delta=0.05)

  def test_bytes_are_those_of_float32_whatever_was_sent(self):
    run = clusters.run('bsp', wire__dense__dtype='bfloat16')
    _, workload = recorded.read_run(str(run), _folder())
    self.assertEqual(workload.size_bytes, 5_000_004)

  def test_a_run_that_sums_among_workers_has_links_among_them_alone(self):
    network = {
      f'cluster__network__{host}_{way}_Bps': (125e6,)
      for host in ('worker', 'server')
      for way in ('up', 'down')
    }
    run = clusters.run(
      'bsp',
      route__name='forest',
      route__server__servers=0,
      cluster__network__server_latency_s=(1e-4,),
      cluster__links='star([0.02, 0.02, 0.02, 0.02])',
      **network,
    )
    cluster, workload = recorded.read_run(str(run), _folder())
    self.assertTrue(cluster.links)
    self.assertFalse(cluster.has_server_links)
    forest = simulating.simulate_pace(
      cluster, workload, BSP._replace(route='forest')
    )
    summary = analysis.read(run).summary
    measured = summary['examples'] / summary['time_s']
    self.assertAlmostEqual(forest.examples_per_s / measured, 1.0, delta=0.05)


class TraceTest(absltest.TestCase):
  def test_the_slowest_worker_sets_the_pace_of_bsp(self):
    fast = {'worker_up_Bps': [1e12], 'worker_down_Bps': [1e12]}
    file = _file('cluster.json', {'workers': 3, 'network': fast})
    trace = _trace(0.1, 0.2, 0.4)
    cluster, workload = problem.read_problem(
      _folder(), model='1MB', batch=8, file=file, trace=trace
    )
    pace = simulating.simulate_pace(cluster, workload, BSP)
    self.assertAlmostEqual(pace.examples_per_s, 3 * 8 / 0.4, delta=0.2)
    self.assertAlmostEqual(pace.compute_s, 0.7 / 3, delta=1e-3)


class RefusalTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('nothing', {'model': '1MB'}, '--cluster: expected a file, or --from_run'),
    (
      'no_links',
      {'model': '1MB', 'trace': 'x.csv'},
      '--cluster: expected a file, for its links, beside --from_trace',
    ),
    ('no_model', {'file': 'x'}, '--model: expected a name, or bytes, got None'),
    (
      'two_sources',
      {'run': 'x', 'file': 'y.json'},
      "--from_run: expected neither .* got 'y.json'",
    ),
    (
      'no_run',
      {'run': '/nowhere'},
      "--from_run: expected the folder of a run, .* got '/nowhere'",
    ),
    (
      'no_trace',
      {'model': '1MB', 'file': 'x', 'trace': '/nowhere.csv'},
      '--from_trace: path: expected a CSV file, got .*nowhere.csv',
    ),
  )
  def test_missing_flags_are_named(self, flags, message):
    with self.assertRaisesRegex(ValueError, message):
      problem.read_problem(_folder(), **flags)

  @parameterized.named_parameters(
    (
      'column',
      'worker,compute_s\n0,1\n',
      {'workers': 2},
      "--from_trace: order_column: expected one of .* got 'iteration'",
    ),
    (
      'number',
      f'{_HEAD}\n0,0,-1\n',
      {'workers': 2},
      '--from_trace: .*line 2, compute_s: expected a finite number > 0',
    ),
    (
      'workers',
      f'{_HEAD}\n0,0,1\n1,0,2\n',
      {'workers': 3, 'network': _RATE},
      'cluster.json: workers: expected 2, as .*times.csv has, got 3',
    ),
    (
      'speeds_twice',
      f'{_HEAD}\n0,0,1\n1,0,2\n',
      {'workers': 2, 'network': _RATE, 'speed': {'slowdown': [1.0]}},
      'cluster.json: speed: expected none, because the trace has the speeds',
    ),
  )
  def test_files_that_do_not_fit_are_named(self, trace, cluster, message):
    files = _file('cluster.json', cluster), _file('times.csv', trace)
    with self.assertRaisesRegex(ValueError, message):
      problem.read_problem(
        _folder(), model='1MB', file=files[0], trace=files[1]
      )


if __name__ == '__main__':
  absltest.main()
