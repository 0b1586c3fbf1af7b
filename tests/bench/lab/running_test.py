"""Tests for bench.lab.running: results, failures, and a small real lab."""

import json
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

from bench import hosts
from bench.hosts import Case
from bench.lab import conditions, running
from bench.lab.conditions import SUM, TORCH, Condition, Lab, Times
from launch.processes import ProcessError
from tests.support import requires

_LAB = Lab('lab', Case([100, 100], [100] * 2, {}))
_FIELDS = {'route.name': 'ring', 'model.none.size_bytes': 4000}


class FailuresTest(absltest.TestCase):
  def test_new_processes_measure_the_conditions_after_a_failed_one(self):
    wanted = [Condition(name, 2, 0, False, _FIELDS, 16) for name in 'abcd']
    sessions = []

    def run_on_hosts(folder, links, commands, limit_s):
      rows = json.loads((folder / 'task.json').read_text())['conditions']
      sessions.append([row['name'] for row in rows])
      for row in rows:
        if row['name'] == 'b':
          raise ProcessError('b is broken')
        path = folder / row['name']
        path.mkdir()
        ended = 'interrupted' if row['name'] == 'd' else 'finished'
        (path / 'summary.json').write_text(json.dumps({'ended': ended}))

    with (
      mock.patch.object(running, 'run_on_hosts', run_on_hosts),
      mock.patch.object(conditions, 'read_times', lambda *_: Times(0.3)),
    ):
      out = pathlib.Path(tempfile.mkdtemp())
      results = running.measure(out, _LAB, wanted)
    self.assertEqual(sessions, [['a', 'b', 'c', 'd'], ['c', 'd']])
    self.assertEqual(results['b'], {'error': 'b is broken'})
    self.assertEqual(results['d'], {'error': 'there is no result'})
    self.assertEqual([results[name]['mean_s'] for name in 'ac'], [0.3, 0.3])

  def test_a_failed_condition_is_an_error_where_all_are_needed(self):
    with self.assertRaisesRegex(RuntimeError, 'ring: broken'):
      running.require_finished('ring', {'error': 'broken'})


class TorchResultsTest(absltest.TestCase):
  def test_results_combine_the_times_of_all_ranks(self):
    costs = {'cpu_s': 0.5, 'sent_bytes': 1e9}
    step = {'steps_s': [3.0, 1.0, 2.0], 'parameters': 7, **costs}
    ranks = [
      [{'rounds': rounds, **costs}, step | {'compute_s': compute_s}]
      for rounds, compute_s in (
        ([(0.0, 3.0), (4.0, 5.0), (9.0, 9.5)], 1.0),
        ([(1.0, 2.0), (5.0, 9.0), (9.0, 9.5)], 0.5),
      )
    ]
    tasks = []

    def run_on_hosts(folder, links, commands, limit_s):
      self.assertEqual([words[0] for words in commands], ['torch', 'torch'])
      tasks.append(json.loads((folder / 'task.json').read_text()))
      for rank, results in enumerate(ranks):
        (folder / f'{rank}.json').write_text(json.dumps(results))

    wanted = [
      Condition(name, 2, 0, False, {'kind': name}, system=TORCH)
      for name in ('sum', 'step')
    ]
    with mock.patch.object(running, 'run_on_hosts', run_on_hosts):
      out = pathlib.Path(tempfile.mkdtemp())
      results = running.measure(out, _LAB, wanted, python='torch')
    self.assertEqual(results['sum'], {'median_s': 3.0, 'cpu_s_per_GB': 0.5})
    self.assertEqual(
      results['step'],
      {
        'median_s': 2.0,
        'compute_s': 1.0,
        'parameters': 7,
        'cpu_s_per_GB': 0.5,
      },
    )
    self.assertEqual(tasks[0]['ranks'], 2)
    self.assertEqual(tasks[0]['jobs'], [{'kind': 'sum'}, {'kind': 'step'}])


class LabTest(absltest.TestCase):
  def test_processes_of_a_lab_measure_sums_and_runs(self):
    requires.lab()
    lab = Lab('equal2', hosts.cases()['equal2'])
    arguments = {'scheme': 'ring', 'size_bytes': 400_000, 'rounds': 2}
    fields = {
      'sync.name': 'bsp',
      'route.name': 'ring',
      'model.none.size_bytes': 400_000,
      'cluster.speed.name': 'constant',
      'cluster.speed.fixed_s': 0.01,
    }
    wanted = [
      Condition('sum', 2, 0, False, arguments, system=SUM),
      Condition('run', 2, 0, False, fields, 6),
    ]
    results = running.measure(pathlib.Path(tempfile.mkdtemp()), lab, wanted)
    # Each host sends the bytes once, of which the kernel lets some pass early.
    least_s = 0.8 * 400_000 * 8 / 200e6
    self.assertBetween(results['sum']['median_s'], least_s, 10 * least_s)
    self.assertEqual(results['sum']['trees'], 2)
    self.assertGreater(results['run']['median_s'], least_s + 0.01)
    self.assertGreaterEqual(results['run']['compute_s'], 0.01)


if __name__ == '__main__':
  absltest.main()
