"""Tests of tables of sweeps: intervals, cells, what is missing, refusals."""

import csv
import io
import math
import statistics

import numpy as np
from absl.testing import absltest, parameterized
from scipy import stats
from statsmodels.stats import weightstats

from analysis import intervals, pivot, pivot_texts, printing
from analysis.pivot import Layout

_TIME = 'time_to_interpolated.accuracy.0.9.time_s'
_RESOLUTION = 'time_to_interpolated.accuracy.0.9.resolution_s'


def _run(scheme, seed, time_s, *, workers=2, status='finished', **fields):
  return {
    'run': f'{scheme}-{workers}-{seed}',
    'status': status,
    'cluster.workers': workers,
    'seed': seed,
    'sync.name': scheme,
    'sync.ssp.bound': 3,
    'final_accuracy': None if time_s is None else 0.9 + time_s / 1000,
    'time_to.0.9': time_s,
    _TIME: time_s,
    _RESOLUTION: None if time_s is None else 2.0,
    'virtual_s': 50.0,
    'cores': 2,
    'error': None,
    **fields,
  }


_LAYOUT = Layout(['sync.name'], ['cluster.workers'], ['time_to.0.9'])
_NOISE = np.random.default_rng(3).normal(size=(2, 2, 5)).tolist()
_RUNS = [
  _run(scheme, seed, 20.0 + 3 * a + b + _NOISE[a][b][seed], workers=workers)
  for a, scheme in enumerate(('bsp', 'asp'))
  for b, workers in enumerate((2, 4))
  for seed in range(5)
]


def _numbers(scheme, workers, column=_TIME):
  return [
    run[column]
    for run in _RUNS
    if (run['sync.name'], run['cluster.workers']) == (scheme, workers)
  ]


def _text(runs, layout=_LAYOUT, form='text'):
  return pivot_texts.write(pivot.make(runs, layout), form)


def _lines(runs, layout=_LAYOUT):
  """Returns the rows of a table's text, split at two spaces."""
  body = _text(runs, layout).split('\n\n')[1]
  return [
    [cell.strip() for cell in line.split('  ') if cell.strip()]
    for line in body.splitlines()
  ]


class IntervalTest(parameterized.TestCase):
  @parameterized.parameters(2, 3, 9)
  def test_the_interval_of_a_mean_is_that_of_statsmodels(self, count):
    numbers = np.random.default_rng(count).lognormal(size=count)
    found = intervals.mean([*numbers])
    expected = weightstats.DescrStatsW(numbers).tconfint_mean(0.05)
    np.testing.assert_allclose(found[1:], expected)
    self.assertAlmostEqual(found.value, statistics.fmean(numbers))

  def test_one_number_has_no_interval_and_equal_ones_have_no_width(self):
    self.assertEqual(intervals.mean([2.0]), (2.0, None, None))
    self.assertEqual(intervals.mean([2.0] * 3), (2.0, 2.0, 2.0))
    self.assertEqual(intervals.median([2.0]), (2.0, None, None))

  def test_the_interval_covers_the_median(self):
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(300):
      _, low, high = intervals.median([*rng.normal(size=8)])
      covered += low <= 0 <= high
    self.assertGreater(covered / 300, 0.93)

  def test_the_median_of_few_numbers_has_their_range(self):
    self.assertEqual(intervals.median([3.0, 1.0, 2.0]), (2.0, 1.0, 3.0))
    self.assertEqual(
      intervals.median([math.inf, 1.0]), (math.inf, 1.0, math.inf)
    )


class CellTest(parameterized.TestCase):
  def test_a_cell_has_the_mean_over_its_seeds(self):
    table = pivot.make(_RUNS, _LAYOUT)
    for scheme in ('bsp', 'asp'):
      for workers in (2, 4):
        cell = table.cells[(scheme,), (str(workers),), 'time_to.0.9']
        expected = intervals.mean(_numbers(scheme, workers))
        self.assertEqual(cell.mean, expected)
    self.assertEqual(table.resolutions_s, (2.0, 2.0))

  def test_differences_are_those_of_pairs_with_the_same_seed(self):
    runs = [run for run in _RUNS if run['run'] != 'bsp-2-4'][::-1]
    table = pivot.make(runs, _LAYOUT._replace(baseline='bsp'))
    for workers in (2, 4):
      place = (str(workers),), 'time_to.0.9'
      base = table.baseline_of(*place)
      found, pairs = table.cells[('asp',), *place].minus(base)
      count = 4 if workers == 2 else 5
      self.assertEqual(pairs, count)
      test = stats.ttest_rel(
        _numbers('asp', workers)[:count], _numbers('bsp', workers)[:count]
      )
      expected = test.confidence_interval(0.95)
      np.testing.assert_allclose(found[1:], (expected.low, expected.high))

  def test_texts_have_as_many_digits_as_the_interval(self):
    runs = [_run('bsp', k, t) for k, t in enumerate((10.1234, 10.2, 10.4))]
    self.assertEqual(_lines(runs)[1], ['bsp', '10.24 ± 0.35'])
    runs = [_run('bsp', k, 1000 * t) for k, t in enumerate((1.1, 1.9, 1.3))]
    self.assertEqual(_lines(runs)[1], ['bsp', '1433 ± 1034'])
    self.assertEqual(_lines(runs[:1])[1], ['bsp', '1100'])

  def test_shares_are_in_percent(self):
    layout = Layout(['sync.name'], (), ['final_accuracy'])
    runs = [run for run in _RUNS if run['cluster.workers'] == 2]
    head, first, _ = _lines(runs, layout)
    self.assertEqual(head, ['sync', 'final accuracy (%)'])
    mean = 100 * statistics.fmean(_numbers('bsp', 2, 'final_accuracy'))
    self.assertEqual(first[1].split(' ')[0], f'{mean:.2f}')


class MissingTest(absltest.TestCase):
  def test_a_cell_without_runs_is_marked(self):
    runs = [run for run in _RUNS if not run['run'].startswith('asp-4')]
    self.assertEqual(_lines(runs)[2][2], '–')
    self.assertIn('\n–: no run.\n', _text(runs))
    self.assertNotIn('–:', _text(_RUNS))

  def test_a_level_that_some_never_reached_has_no_mean(self):
    runs = [*_RUNS[:-1], _run('asp', 4, None, workers=4)]
    self.assertEqual(_lines(runs)[2][2], '4 of 5')
    *_, last = csv.DictReader(io.StringIO(_text(runs, form='csv')))
    self.assertEqual((last['mean'], last['n'], last['runs']), ('', '4', '5'))
    self.assertEqual(last['never_reached'], '1')
    self.assertIn('only k of m runs reached the level', _text(runs))
    layout = _LAYOUT._replace(baseline='bsp')
    self.assertEqual(_lines(runs, layout)[2][-1], '–')

  def test_runs_that_did_not_finish_are_counted_and_named(self):
    status = {'asp-2-0': 'failed', 'asp-2-1': 'unfinished'}
    runs = [
      run | {'status': status[run['run']], _TIME: None}
      if run['run'] in status
      else run
      for run in _RUNS
    ]
    self.assertEndsWith(_lines(runs)[2][1], ' (3)')
    said = _text(runs)
    self.assertIn('asp, 2: 1 of 5 runs failed, 1 of 5 runs unfinished.', said)
    self.assertIn('n = 5, or the n in brackets', said)

  def test_a_time_before_a_run_diverged_counts_and_its_accuracy_does_not(self):
    runs = [_run('bsp', k, 10.0 + k) for k in range(3)]
    runs.append(_run('bsp', 3, 13.0, status='diverged'))
    layout = Layout(['sync.name'], (), ['time_to.0.9', 'final_accuracy'])
    table = pivot.make(runs, layout)
    counts = [len(cell.finite) for cell in table.cells.values()]
    self.assertEqual(counts, [4, 3])


class LayoutTest(parameterized.TestCase):
  def test_fields_that_a_run_does_not_use_are_in_no_label(self):
    runs = [
      *(_run('bsp', 0, 1.0), _run('ssp', 0, 1.0)),
      _run('ssp', 0, 1.0) | {'sync.ssp.bound': 9},
    ]
    table = pivot.make(
      runs, Layout(['sync.name', 'sync.ssp.bound'], (), ['time_to.0.9'])
    )
    labels = [*map(pivot.row_label, table.rows)]
    self.assertEqual(labels, ['bsp', 'ssp, 3', 'ssp, 9'])

  def test_chosen_values_and_other_repetitions_select_runs(self):
    layout = Layout(['sync.name'], (), ['time_to.0.9'])
    found = pivot.make(_RUNS, layout._replace(where={'cluster.workers': '4'}))
    cell = found.cells[('asp',), (), 'time_to.0.9']
    self.assertEqual(cell.finite, _numbers('asp', 4))
    over = ['seed', 'cluster.workers']
    found = pivot.make(_RUNS, layout._replace(over=over))
    self.assertLen(found.cells[('asp',), (), 'time_to.0.9'].finite, 10)

  @parameterized.parameters(
    ({'rows': ['sync.nam']}, r"--rows: .*\['cluster.workers', .*, got 'sync.n"),
    ({'columns': ['cores']}, "--columns: expected fields in which .*'cores'"),
    ({'where': {'x': '1'}}, "--where: .*'seed', 'sync.name'.*got 'x'"),
    (
      {'where': {'cluster.workers': '3'}},
      r"--where: expected cluster.workers as one of \['2', '4'\], got '3'",
    ),
    ({'values': ['time_to.0.8']}, "--value: .*perhaps 'time_to.0.9', got"),
    ({'values': ['seed']}, "--value: expected one of .*'virtual_s'"),
    ({'baseline': 'ssp'}, r"--baseline: .*\['bsp', 'asp'\], got 'ssp'"),
    ({'over': ['sead']}, "--over: .*'seed'.* got 'sead'"),
    (
      {'columns': []},
      r"one run of each seed .* got 2 that differ in \['cluster.workers'\]",
    ),
  )
  def test_a_refusal_names_what_there_is(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      pivot.make(_RUNS, _LAYOUT._replace(**changed))

  @parameterized.parameters(
    ('time_to.0.9', 'time to accuracy 0.9 (virtual s)'),
    ('time_to.perplexity.40.0', 'time to perplexity 40.0 (virtual s)'),
    ('breakdown.wait.p95_s', 'breakdown wait p95 (virtual s)'),
    ('wall_s', 'real time (s)'),
    ('updates', 'updates'),
  )
  def test_a_heading_has_words_and_unit(self, name, expected):
    self.assertEqual(pivot.value_label(name, 'virtual')[0], expected)


class FormTest(parameterized.TestCase):
  @parameterized.parameters('', 'bsp')
  def test_latex_has_the_columns_that_it_declares(self, baseline):
    runs = [_run('a_b & c', 0, 1.0)] if not baseline else _RUNS
    text = _text(runs, _LAYOUT._replace(baseline=baseline), 'latex')
    declared = text.split('\\begin{tabular}{')[1].split('}')[0]
    body = text.split('\\midrule\n')[1].split('\\bottomrule')[0]
    for line in body.splitlines():
      cells = line.removesuffix(' \\\\').replace('\\&', '').split('&')
      self.assertLen(cells, len(declared))
    self.assertEqual(text.count('\\begin{'), text.count('\\end{'))
    self.assertEqual(text.count('{'), text.count('}'))
    if not baseline:
      self.assertIn('a\\_b \\& c', body)

  def test_csv_has_all_numbers_of_each_cell(self):
    text = _text(_RUNS, _LAYOUT._replace(baseline='bsp'), 'csv')
    rows = [*csv.DictReader(io.StringIO(text))]
    self.assertLen(rows, 4)
    last = rows[-1]
    self.assertEqual((last['sync.name'], last['cluster.workers']), ('asp', '4'))
    mean = intervals.mean(_numbers('asp', 4))
    for name, expected in zip(('mean', 'low', 'high'), mean, strict=True):
      self.assertEqual(float(last[name]), expected)
    self.assertEqual((last['n'], last['runs'], last['pairs']), ('5',) * 3)

  def test_markdown_and_text_have_the_same_cells(self):
    rows = _lines(_RUNS)
    markdown = _text(_RUNS, form='markdown').split('\n\n')[1].splitlines()
    found = [line.strip('| ').split(' | ') for line in markdown]
    cells = [[cell.strip() for cell in row] for row in found]
    self.assertEqual([cells[0], *cells[2:]], rows)

  def test_special_characters_of_latex_are_escaped(self):
    found = printing.escape_latex('\\a{b}$#%&_~^<>|')
    unescaped = found
    for mark, name in (
      *(('~', 'asciitilde'), ('^', 'asciicircum'), ('<', 'less')),
      *(('>', 'greater'), ('|', 'bar'), ('\\', 'backslash')),
    ):
      self.assertEqual(found.count(f'\\text{name}{{}}'), 1)
      unescaped = unescaped.replace(f'\\text{name}{{}}', f'?{mark}')
    for mark in '{}$#%&_':
      unescaped = unescaped.replace(f'\\{mark}', mark)
    self.assertEqual(unescaped.replace('?', ''), '\\a{b}$#%&_~^<>|')


if __name__ == '__main__':
  absltest.main()
