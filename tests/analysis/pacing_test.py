"""Tests of the pace of runs, and of what their workers wait for."""

import collections
import json
import pathlib
import tempfile

import numpy as np
import scipy.stats
from absl.testing import absltest, parameterized

import analysis
import train
from analysis import pacing
from configs import timing
from outputs import console, formats

_RUNS = {
  'bsp': {'sync.name': 'bsp'},
  'asp': {
    'sync.name': 'asp',
    'cluster.script': ((1.0, 'leave', 2), (3.0, 'join', 2)),
  },
  'elastic': {'sync.name': 'elastic'},
  'ring': {'route.name': 'ring'},
}


def _run(fields):
  """Returns a virtual run of three unequal workers."""
  sizes = timing.fields(workers=3, iterations=30, size_bytes=4 * 10**6)
  unequal = {
    'cluster.speed.slowdown': (1.0, 1.5, 3.0),
    'outputs.board': False,
  }
  folder = pathlib.Path(tempfile.mkdtemp(), 'run')
  with console.hidden():
    train.build(timing.config(sizes, unequal, fields), workdir=str(folder))()
  return analysis.read(folder)


class RecordedValuesTest(parameterized.TestCase):
  """Values of 28 November 2026, by nine readers that had rules of their own."""

  runs: dict[str, analysis.Run]

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.runs = {name: _run(fields) for name, fields in _RUNS.items()}

  @parameterized.parameters(
    ('bsp', (0.3121366065261547, 0.3040237787064352, 0.3202494343458742)),
    ('asp', (0.2044413502353037, 0.18693018776603534, 0.22195251270457203)),
    (
      'elastic',
      (0.19159885600702536, 0.17883081813924426, 0.20436689387480647),
    ),
    ('ring', (0.20369665535013787, 0.19567079868238063, 0.2117225120178951)),
  )
  def test_seconds_by_examples_are_those_that_tuning_measured(self, name, old):
    found = analysis.pace(self.runs[name], examples=48)
    self.assertEqual(found.mean_s, old)
    self.assertEqual(found.iterations, 23)

  @parameterized.parameters(
    ('bsp', 0.3105679003535701),
    ('asp', 0.20487380508641112),
    ('elastic', 0.1947945296174731),
    ('ring', 0.20355106835356973),
  )
  def test_the_pace_of_a_whole_run_is_that_of_published_tables(self, name, old):
    summary = self.runs[name].summary
    found = pacing.whole_pace_s(summary['time_s'], summary['iterations'], 3)
    self.assertEqual(found, old)

  @parameterized.parameters(
    ('bsp', 8.969533525682872),
    ('asp', 5.947625588536433),
    ('elastic', 5.645247324468293),
    ('ring', 5.866045397682861),
  )
  def test_gaps_are_those_of_figures(self, name, total):
    found = pacing.gaps(self.runs[name])
    self.assertLen(found, 89)
    self.assertEqual(sum(found.tolist()), total)

  @parameterized.parameters(
    ('bsp', 1), ('asp', 29), ('elastic', 10), ('ring', 1)
  )
  def test_the_largest_lead_is_that_of_published_tables(self, name, most):
    self.assertEqual(pacing.leads(self.runs[name]).max(), most)

  @parameterized.parameters(*_RUNS)
  def test_staleness_is_that_of_the_summary(self, name):
    run = self.runs[name]
    counts = collections.Counter(pacing.staleness(run).tolist())
    expected = {int(k): n for k, n in run.summary['staleness'].items()}
    self.assertEqual(counts, expected)

  @parameterized.parameters(*_RUNS)
  def test_waiting_in_the_whole_run_is_that_of_the_summary(self, name):
    run = self.runs[name]
    found = pacing.waiting_share(run, 0.0, run.summary['time_s'])
    self.assertAlmostEqual(found, run.summary['waiting_share'], places=6)


def _write(times, workers=2):
  """Returns a run whose workers push in turn, 8 examples each."""
  folder = pathlib.Path(tempfile.mkdtemp())
  config = {
    'seed': 0,
    'sync': {'name': 'asp'},
    'cluster': {'workers': workers},
    'outputs': {'events': True, 'timeline': False},
  }
  manifest = {'format': formats.RUN_FOLDER, 'config': config}
  (folder / 'manifest.json').write_text(json.dumps(manifest))
  released = {'release': [*range(workers)]}
  rows = [{'event': 'start', 'time': 0.0, 'decision': released}]
  rows += [
    {
      'event': 'push',
      'time': time,
      'worker': place % workers,
      'compute_s': 1.0,
      'examples': 8,
      'decision': {},
    }
    for place, time in enumerate(times)
  ]
  (folder / 'events.jsonl').write_text(
    ''.join(f'{json.dumps(row)}\n' for row in rows)
  )
  return analysis.read(folder)


class PaceTest(parameterized.TestCase):
  @parameterized.parameters(None, 16)
  def test_the_mean_is_that_of_equal_blocks_with_students_interval(self, size):
    # 2 workers, 8 examples each: 125 iterations, of which 100 are measured.
    rng = np.random.default_rng(0)
    seconds = rng.lognormal(0.0, 0.2, 125)
    times = np.repeat(np.cumsum(seconds), 2).tolist()
    found = analysis.pace(_write(times), examples=size)
    # The first push that counts is the first of iteration 25, counted from 0.
    ends = np.cumsum(seconds)[25:]
    self.assertEqual(found.iterations, 99)
    edges = np.linspace(0, 99, 11).round().astype(int)
    parts = np.diff(ends[edges]) / np.diff(edges)
    half = scipy.stats.t.ppf(0.975, 9) * scipy.stats.sem(parts)
    mean_s = found.mean_s
    self.assertAlmostEqual(mean_s.value, (ends[-1] - ends[0]) / 99)
    self.assertAlmostEqual((mean_s.high - mean_s.low) / 2, half, places=3)
    self.assertAlmostEqual(found.median_s, np.median(seconds[26:]))

  def test_asynchronous_workers_count_by_their_examples(self):
    # A worker pushes every second, the other one every four seconds.
    times = [*range(1, 201), *range(4, 201, 4)]
    found = analysis.pace(_write([*map(float, sorted(times))]), examples=16)
    self.assertAlmostEqual(found.mean_s.value, 2 / 1.25, delta=0.01)
    self.assertAlmostEqual(found.examples_per_s, 8 * 1.25, delta=0.1)

  def test_iterations_of_equal_workers_take_what_each_computes(self):
    fields = timing.fields(
      workers=3, iterations=40, size_bytes=4, compute_s=0.5
    )
    run = _run(fields | {'sync.name': 'bsp'})
    found = analysis.pace(run)
    barriers = run.metrics['time'][run.metrics['kind'] == 'barrier']
    (seconds,) = {*np.diff(barriers).round(9)}
    self.assertAlmostEqual(found.median_s, seconds, places=9)
    self.assertAlmostEqual(found.mean_s.value, seconds, places=9)
    self.assertAlmostEqual(found.examples_per_s * seconds, 48, places=6)

  def test_pushes_are_left_out_at_the_start_and_of_no_whole_iteration(self):
    run = _run({'sync.name': 'bsp'})
    found = analysis.pace(run)
    self.assertEqual(found.iterations, (90 - 1 - 18) // 3)
    every = analysis.pace(run, skipped=0.0)
    self.assertEqual(every.iterations, (90 - 1) // 3)

  def test_an_absence_does_not_make_iterations_of_the_others_longer(self):
    alone = {
      'sync.name': 'asp',
      **timing.fields(workers=3, iterations=60, size_bytes=4, compute_s=0.5),
    }
    leaves = {'cluster.script': ((5.0, 'leave', 2), (15.0, 'join', 2))}
    complete, partial = (
      analysis.pace(_run(alone | more), skipped=0.0) for more in ({}, leaves)
    )
    self.assertAlmostEqual(
      partial.mean_s.value / complete.mean_s.value, 1.0, delta=0.02
    )

  def test_a_run_that_is_too_short_is_refused_with_its_folder(self):
    fields = timing.fields(workers=3, iterations=1, size_bytes=4)
    run = _run(fields)
    with self.assertRaisesRegex(ValueError, f'{run.path}: iterations.* 0'):
      analysis.pace(run)


if __name__ == '__main__':
  absltest.main()
