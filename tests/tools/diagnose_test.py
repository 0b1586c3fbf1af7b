"""Tests for tools.diagnose, and for warnings in runs."""

import csv
import json
import os
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

import analysis
from analysis import diagnosing, runs
from tests.support import small

_JITTER = {
  'cluster__speed__name': 'lognormal',
  'cluster__speed__lognormal__sigma': 0.1,
}


def _run(**changed) -> pathlib.Path:
  """Folder of a virtual run of 60 iterations of 4 workers."""
  changed = {
    'cluster__workers': 4,
    'cluster__speed__slowdown': (1.0,),
    'batching__worker_batch': 2,
    'epochs': 60 * 8 / 192,
    **_JITTER,
    **changed,
  }
  run = small.build(small.timing(**changed))
  run()
  return pathlib.Path(run.files.workdir)


def _texts(verdicts):
  return [verdict.text for verdict in verdicts]


_COLUMNS = ('worker', 'iteration', 'compute_s', 'sync_s')


def _write_csv(path, rows, columns=_COLUMNS):
  with path.open('w', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(columns)
    writer.writerows(rows)
  return path


class RunTest(parameterized.TestCase):
  @parameterized.parameters('bsp', 'asp', 'ssp', 'elastic', 'r2sp', 'quorum')
  def test_the_slow_worker_of_each_scheme_is_found(self, scheme):
    changed = {'sync__quorum__minimum': 2} if scheme == 'quorum' else {}
    folder = _run(
      sync__name=scheme, cluster__speed__slowdown=(1, 1, 3, 1), **changed
    )
    (found,) = diagnosing.diagnose_run(analysis.read(folder))
    self.assertEqual((found.kind, found.name), ('worker', '2'))
    self.assertBetween(found.ratio.value, 2.8, 3.2)
    self.assertIn('since the start', found.text)
    self.assertBetween(found.share.value, 0.3, 0.98)

  def test_the_cost_is_that_of_a_run_without_the_slow_worker(self):
    slow = _run(cluster__speed__slowdown=(1, 1, 3, 1))
    fast = _run()
    seconds = [analysis.read(each).summary['time_s'] for each in (slow, fast)]
    (found,) = diagnosing.diagnose_run(analysis.read(slow))
    self.assertAlmostEqual(
      found.share.value, seconds[1] / seconds[0], delta=0.04
    )

  def test_a_sentence_says_what_is_compared_and_what_it_costs(self):
    (found,) = diagnosing.diagnose_run(
      analysis.read(
        _run(cluster__speed__slowdown=(1, 1, 2, 1), cluster__speed__fixed_s=0.0)
      )
    )
    self.assertRegex(
      found.sentence,
      r'^Worker 2 takes 2\.\d times as long to compute an iteration as the '
      r'median of the others \(95 %: 2\.\d to 2\.\d\) since the start; at '
      r'their speed the run would take 5\d % \(\d\d to \d\d %\) of its time\.$',
    )

  def test_equal_workers_are_not_blamed(self):
    (found,) = diagnosing.diagnose_run(analysis.read(_run()))
    self.assertEqual(found.kind, 'none')
    self.assertStartsWith(found.text, 'no single worker: the slowest 25%')

  def test_few_iterations_are_insufficient_evidence(self):
    found = diagnosing.diagnose_run(analysis.read(_run(epochs=12 * 8 / 192)))
    self.assertEqual(_texts(found), ['insufficient evidence: 12 iterations'])

  def test_a_slow_link_carries_less_than_the_others(self):
    rates = [5e4, 5e4, 5e4, 1e4]
    folder = _run(
      cluster__network__worker_up_Bps=rates,
      cluster__network__worker_down_Bps=rates,
    )
    found = diagnosing.diagnose_run(analysis.read(folder))
    self.assertEqual([each.kind for each in found], ['link'])
    self.assertStartsWith(
      found[0].text, 'link of worker 3 carries 0.08 of 0.4 Mbit/s'
    )

  def test_a_larger_batch_explains_a_slow_worker(self):
    folder = _run(cluster__speed__fixed_s=0.0)
    path = folder / 'events.jsonl'
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
      if row['event'] == 'push' and row['worker'] == 1:
        row['examples'], row['compute_s'] = 6, 3 * row['compute_s']
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    (found,) = diagnosing.diagnose_run(analysis.read(folder))
    self.assertIn(
      "its batch is 3 times the others', which explains", found.text
    )

  def test_a_broken_run_is_diagnosed_up_to_its_last_whole_line(self):
    folder = _run(cluster__speed__slowdown=(1, 1, 3, 1))
    (folder / 'summary.json').unlink()
    for name in ('events.jsonl', 'trace.json'):
      size = (folder / name).stat().st_size
      os.truncate(folder / name, size * 2 // 3)
    (found,) = diagnosing.diagnose_run(analysis.read(folder))
    self.assertEqual((found.kind, found.name), ('worker', '2'))

  def test_wrong_folders_are_refused_with_the_reason(self):
    with self.assertRaisesRegex(ValueError, 'a run with manifest.json'):
      diagnosing.diagnose_run(analysis.read(pathlib.Path(tempfile.mkdtemp())))
    folder = _run(epochs=12 * 8 / 192)
    path = folder / 'events.jsonl'
    lines = path.read_text().splitlines()
    path.write_text('\n'.join([lines[0], *lines[:0:-1]]) + '\n')
    with self.assertRaisesRegex(ValueError, 'time: expected times that never'):
      diagnosing.diagnose_run(analysis.read(folder))
    row = json.loads(lines[1]) | {'compute_s': -1.0}
    path.write_text('\n'.join([lines[0], json.dumps(row)]) + '\n')
    with self.assertRaisesRegex(ValueError, 'compute_s: expected finite'):
      diagnosing.diagnose_run(analysis.read(folder))
    path.unlink()
    with self.assertRaisesRegex(ValueError, 'expected a run with events.jsonl'):
      diagnosing.diagnose_run(analysis.read(folder))
    with self.assertRaisesRegex(ValueError, 'workers: expected at least 2'):
      diagnosing.diagnose_run(analysis.read(_run(cluster__workers=1)))

  def test_warnings_agree_with_the_diagnosis(self):
    folder = _run(
      epochs=150 * 8 / 192,
      cluster__speed__name='regime',
      cluster__speed__regime__stay=0.97,
      cluster__speed__regime__sigma=0.05,
    )
    warnings = [
      (row['worker'], row['did'])
      for row in analysis.read(folder).read_event_rows()
      if row['event'] == runs.STRAGGLER
    ]
    self.assertIn('ends', [did for _, did in warnings])
    found = {
      each.name
      for each in diagnosing.diagnose_run(analysis.read(folder))
      if each.name
    }
    self.assertEqual({str(worker) for worker, _ in warnings}, found)

  def test_a_run_without_events_is_refused(self):
    folder = _run(cluster__speed__slowdown=(1, 1, 3, 1), outputs__events=False)
    with self.assertRaisesRegex(ValueError, 'outputs.events=False'):
      diagnosing.diagnose_run(analysis.read(folder))


class FileTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    self.draws = np.random.default_rng(0)

  def _rows(self, waits: bool):
    """Rows of 60 iterations; b is slow, and c has a slow link."""
    compute_s = self.draws.normal(1, 0.05, (60, 5)) * [1, 2.5, 1, 1, 1]
    sync_s = np.full((60, 5), 0.5)
    if waits:
      total_s = (compute_s + sync_s).max(axis=1, keepdims=True)
      sync_s = total_s - compute_s
    else:
      sync_s[:, 2] *= 4
    return [
      ('abcde'[k], t, compute_s[t, k], sync_s[t, k])
      for t in range(60)
      for k in range(5)
    ]

  def test_waits_for_a_slow_worker_are_not_slow_links(self):
    file = _write_csv(self.folder / 'a.csv', self._rows(waits=True))
    (found,) = diagnosing.diagnose_csv(file)
    self.assertEqual((found.kind, found.name), ('worker', 'b'))
    self.assertAlmostEqual(found.share.value, 1.6 / 3, delta=0.03)

  def test_a_slow_link_is_found_beside_a_slow_worker(self):
    file = _write_csv(self.folder / 'a.csv', self._rows(waits=False))
    found = diagnosing.diagnose_csv(file)
    self.assertCountEqual(
      [(each.kind, each.name) for each in found],
      [('worker', 'b'), ('link', 'c')],
    )

  def test_hosts_and_factors_that_go_with_it_are_named(self):
    columns = (*_COLUMNS, 'host', 'cpu')
    rows = [
      (*row, 'h1' if row[0] in 'ab' else 'h2', 1.0)
      for row in self._rows(waits=True)
    ]
    load = self.draws.uniform(0.4, 1, 61)
    rows = [
      (*row[:2], 2.5 / load[row[1]], *row[3:5], load[row[1] + 1])
      if row[0] == 'b'
      else row
      for row in rows
    ]
    (found,) = diagnosing.diagnose_csv(
      _write_csv(self.folder / 'a.csv', rows, columns)
    )
    self.assertIn('it is on host h1, with worker a', found.text)
    self.assertIn('its times correlate with cpu by -0.9', found.text)

  @parameterized.parameters(
    ([], 'at least one row'),
    ([('a', 0, 1, 1), ('b', 0, 'nan', 1)], 'line 3: compute_s: expected'),
    ([('a', 0, 1, 1), ('b', 0, 1, -1)], 'line 3: sync_s: expected'),
    ([('a', 0, 1, 1), ('b', 0, 1, '')], 'line 3: sync_s: expected'),
    ([('a', 3, 1, 1), ('a', 2, 1, 1)], 'iteration: expected numbers that go'),
    ([('a', 0, 1, 1)], 'workers: expected at least 2'),
  )
  def test_wrong_rows_are_refused(self, rows, message):
    file = _write_csv(self.folder / 'a.csv', rows)
    with self.assertRaisesRegex(ValueError, message):
      diagnosing.diagnose_csv(file)

  def test_missing_columns_are_named(self):
    file = _write_csv(self.folder / 'a.csv', [], ('worker', 'time'))
    with self.assertRaisesRegex(ValueError, 'the columns worker, iter'):
      diagnosing.diagnose_csv(file)


if __name__ == '__main__':
  absltest.main()
