"""Tests for tools.compare, on small runs and on planted summaries."""

import json
import pathlib
import tempfile

import jax
import numpy as np
from absl.testing import absltest, parameterized

import train
from configs import compare as compare_config
from configs import sections
from sweeps import plan
from tests.support import small
from tools import compare

_FILE = 'configs/default.py'
_BSP_AND_ASP = (compare.Variant('bsp', 'bsp'), compare.Variant('asp', 'asp'))
_SMALL = {
  'epochs': '2.0',
  'eval_every': '0.5',
  'cluster.workers': '3',
  'cluster.speed.slowdown': '(1.0, 1.3, 3.1)',
  'data.name': 'synthetic',
  'data.synthetic.num_train': '192',
  'data.synthetic.num_test': '64',
  'data.synthetic.pixels': '4',
  'data.synthetic.channels': '1',
  'model.name': 'mlp',
  'model.mlp.hidden': '(4,)',
}


def _summary(seed=0, ended='finished', reached=1.0):
  return {
    'ended': ended,
    'final_accuracy': 0.9 + seed / 100,
    'time_to': {'0.9': reached, '0.95': None},
    'virtual_s': 10.0 + seed,
    'time_s': 10.0 + seed,
    'waiting_share': 0.25,
    'staleness_mean': 1.5,
    'updates': 100 + seed,
  }


def _configs(overrides, variants=_BSP_AND_ASP, seeds=2):
  """Returns the runs that flags describe, and the config of each."""
  words = [f'--config.{field}={value}' for field, value in overrides.items()]
  config = plan.parse_config([f'--config={_FILE}', *words])
  runs = compare.plan_comparison(
    config, overrides, variants=variants, seeds=seeds
  )
  return runs, [
    plan.parse_config(
      [
        f'--config={_FILE}',
        *(f'--config.{f}={v}' for f, v in run.point.items()),
      ]
    )
    for run in runs
  ]


class ConfigTest(parameterized.TestCase):
  def test_the_comparison_has_four_unequal_workers(self):
    config = compare_config.get_config()

    sections.check_fields(config)
    self.assertEqual(config.cluster.speed.slowdown, (1.0, 1.5, 2.0, 3.0))
    self.assertEqual(config.cluster.speed.lognormal.sigma, 0.1)

  def test_all_schemes_and_four_of_bsp_are_ten_rows(self):
    rows = compare.find_variants(compare.SCHEMES)
    self.assertLen(rows, 10)
    self.assertLen({row.name for row in rows}, 10)

  @parameterized.parameters([[]], [['bsp', 'bps']])
  def test_unknown_schemes_are_refused(self, schemes):
    with self.assertRaisesRegex(ValueError, 'schemes: expected some of'):
      compare.find_variants(schemes)


class PlanTest(parameterized.TestCase):
  def test_variants_differ_in_scheme_reduction_rate_and_seed(self):
    shared = {**_SMALL, 'optimizer.learning_rate': '0.01', 'seed': '5'}
    runs, configs = _configs(shared, compare.find_variants(['bsp', 'asp']))

    rows = [
      (
        run.variant,
        config.sync.name,
        config.optimizer.reduction,
        config.optimizer.learning_rate,
        config.seed,
      )
      for run, config in zip(runs, configs, strict=True)
    ]
    self.assertEqual(
      rows[:5],
      [
        ('bsp', 'bsp', 'sum', 0.01, 5),
        ('bsp mean', 'bsp', 'mean', 0.01, 5),
        ('bsp mean, n x rate', 'bsp', 'mean', 0.01 * 3, 5),
        ('bsp, n x rate', 'bsp', 'sum', 0.01 * 3, 5),
        ('asp', 'asp', 'sum', 0.01, 5),
      ],
    )
    self.assertEqual({config.seed for config in configs[5:]}, {6})
    self.assertLen({run.name for run in runs}, 10)
    self.assertEqual(runs[0].name, 'bsp-seed5')
    for config in configs:
      config.sync.name = 'bsp'
      config.optimizer.reduction = 'sum'
      config.optimizer.learning_rate = 0.01
      config.seed = 5
      self.assertEqual(config.to_dict(), configs[0].to_dict())

  def test_settings_of_a_scheme_apply_only_to_runs_with_it(self):
    shared = {**_SMALL, 'sync.name': 'ssp', 'sync.ssp.bound': '5'}
    variants = compare.find_variants(['bsp', 'ssp'])
    _, configs = _configs(shared, variants, seeds=1)

    bounds = {config.sync.name: config.sync.ssp.bound for config in configs}
    self.assertEqual(bounds, {'bsp': 3, 'ssp': 5})
    for config in configs:
      sections.choose_section(config, 'sync')

  def test_n_times_the_rate_undoes_the_mean(self):
    changed = {'cluster.workers': '4', 'cluster.speed.slowdown': '(1.0,)'}
    variants = compare.find_variants(['bsp'])
    _, (plain, _, scaled, _) = _configs(_SMALL | changed, variants, seeds=1)
    params = []
    for config in (plain, scaled):
      config.optimizer.name = 'sgd'
      run = small.build(config)
      run()
      learner = run.runtime.coordinator.store.learner
      params.append(jax.tree.leaves(learner.params))
    for one, other in zip(*params, strict=True):
      np.testing.assert_array_equal(one, other)

  @parameterized.parameters(
    (
      {'sync__ssp__bound': 5},
      2,
      r'config.sync.ssp: .*bound.* no run uses ssp, got .*5',
    ),
    (
      {'sync__elastic__lookahead': 9},
      2,
      r'config.sync.elastic: .*lookahead.* no run uses elastic, got .*9',
    ),
    ({'optimizer__reduction': 'mean'}, 2, r"reduction: expected 'sum', .*mean"),
    ({}, 0, r'seeds: expected at least 1, got 0'),
  )
  def test_fields_without_effect_are_refused(self, changed, seeds, message):
    with self.assertRaisesRegex(ValueError, message):
      compare.plan_comparison(
        small.config(**changed), {}, variants=_BSP_AND_ASP, seeds=seeds
      )


class CompareTest(parameterized.TestCase):
  def test_a_comparison_leaves_a_table_and_pictures_and_resumes(self):
    out = pathlib.Path(tempfile.mkdtemp()) / 'out'
    first = self._compare(out, '--schemes=asp', '--seeds=2')
    self.assertEqual(first.returncode, 0, first.stderr)

    table = (out / 'table.md').read_text()
    self.assertIn(table, first.stdout)
    self.assertIn('mlp on synthetic, 2 epochs, 3 workers', table)
    self.assertRegex(table, r'\n\| asp +\| [\d.]+ ')
    pictures = {picture.stem for picture in out.glob('*.png')}
    accuracies = {'accuracy', 'accuracy-iterations', 'accuracy-examples'}
    others = {'staleness', 'waiting', 'breakdown', 'bandwidth', 'gaps'}
    workers = {'timeline-asp-seed-0'}
    self.assertEqual(pictures, accuracies | others | workers)
    self._check_that_a_run_alone_is_the_same(out / 'asp-seed1', seed=1)

    times = self._times(out)
    again = self._compare(out, '--schemes=asp', '--seeds=1')
    self.assertEqual(again.returncode, 0, again.stderr)
    self.assertIn('1 of 1 runs are over already', again.stdout)
    self.assertEqual(self._times(out), times)
    self.assertIn('over seeds 0;', (out / 'table.md').read_text())

    other = self._compare(
      out, '--schemes=asp', '--seeds=1', '--config.epochs=1.0'
    )
    self.assertEqual(other.returncode, 1)
    self.assertRegex(other.stderr, 'Refused: --out: .*run of another config')

  def test_a_diverged_run_is_a_cell_and_is_not_trained_again(self):
    out = pathlib.Path(tempfile.mkdtemp()) / 'out'
    words = (
      *('--schemes=asp', '--seeds=1', '--config.optimizer.learning_rate=1e30'),
    )
    for text in ('asp-seed0: diverged', '1 of 1 runs are over already'):
      found = self._compare(out, *words)
      self.assertEqual(found.returncode, 0, found.stderr)
      self.assertIn(text, found.stdout)
      self.assertRegex(
        (out / 'table.md').read_text(),
        r'\| asp \| -; 1 of 1 diverged \| -; 0 of 1 +\|',
      )

  def _compare(self, out, *words):
    flags = [f'--config.{field}={value}' for field, value in _SMALL.items()]
    flags = [f'--out={out}', f'--config={_FILE}', *flags]
    return small.python('-m', 'tools.compare', *flags, *words)

  def _times(self, out):
    return [path.stat().st_mtime_ns for path in out.glob('*/summary.json')]

  def _check_that_a_run_alone_is_the_same(self, folder, *, seed):
    _, configs = _configs(_SMALL, _BSP_AND_ASP[1:], seeds=seed + 1)
    alone = pathlib.Path(tempfile.mkdtemp()) / 'run'
    train.build(configs[seed], workdir=str(alone))()
    summaries = [
      json.loads((path / 'summary.json').read_text())
      for path in (folder, alone)
    ]
    for summary in summaries:
      del summary['wall_s']
    self.assertEqual(*summaries)


class TableTest(parameterized.TestCase):
  @parameterized.parameters(
    ([3.0, 1.0, 2.0],), ([1.0, 2.0, 3.0, 10.0],), ([1.0, 2.0],)
  )
  def test_median_and_range_are_those_of_numpy(self, values):
    median, low, high = np.median(values), np.min(values), np.max(values)
    expected = f'{median:.1f} ({low:.1f}–{high:.1f})'
    self.assertEqual(compare.cell(values, '.1f'), expected)

  @parameterized.parameters(
    ([5.0, None, 3.0], '5 (3–5)'),
    ([5.0, None, 3.0, 4.0], '4.5 (3–5)'),
    ([5.0, None, 3.0, None], '-'),
    ([5.0, None, None], '-'),
    ([None], '-'),
    ([], '-'),
    ([4.0], '4'),
  )
  def test_missing_times_are_infinite(self, values, expected):
    self.assertEqual(compare.cell(values, 'g'), expected)

  def test_cells_are_medians_and_ranges(self):
    cells = compare.row([_summary(seed) for seed in range(3)], ['accuracy'])
    self.assertEqual(
      cells,
      {
        'accuracy (%)': '91.0 (90.0–92.0)',
        'to 90 % (s)': '1.0',
        'to 95 % (s)': '-; 0 of 3',
        'in all (s)': '11.0 (10.0–12.0)',
        'waiting (%)': '25.0',
        'mean staleness': '1.50',
        'updates': '101 (100–102)',
      },
    )

  @parameterized.parameters(
    ([1.0, 3.0, None], '3.0 (1.0–3.0); 2 of 3'),
    ([1.0, None, None], '-; 1 of 3'),
  )
  def test_a_time_has_the_number_of_its_seeds(self, times, cell):
    cells = compare.row(
      [_summary(reached=time) for time in times], ['accuracy']
    )
    self.assertEqual(cells['to 90 % (s)'], cell)

  def test_diverged_runs_are_counted_and_omitted(self):
    diverged = _summary(ended='FloatingPointError: no', reached=None)
    cells = compare.row([_summary(0), diverged, _summary(2)], ['accuracy'])
    self.assertEqual(cells['accuracy (%)'], '91.0 (90.0–92.0); 1 of 3 diverged')
    self.assertEqual(cells['to 90 % (s)'], '1.0; 2 of 3')
    self.assertEqual(cells['updates'], '101 (100–102)')

    cells = compare.row([diverged, diverged], ['accuracy'])
    self.assertEqual(cells['accuracy (%)'], '-; 2 of 2 diverged')
    self.assertEqual(cells['in all (s)'], '-')

  def test_markdown_has_a_line_per_variant(self):
    text = compare.markdown(
      {'bsp': {'a': '1', 'b': '2'}, 'asp': {'a': '', 'b': '34'}}
    )
    self.assertEqual(
      text,
      '|     | a | b  |\n'
      '| --- | - | -- |\n'
      '| bsp | 1 | 2  |\n'
      '| asp |   | 34 |\n',
    )


class CommandTest(parameterized.TestCase):
  def test_a_refusal_is_one_line(self):
    argument, message = '--schemes=bps', r'Refused: schemes: expected some of'
    out = f'{tempfile.mkdtemp()}/out'
    done = small.python('-m', 'tools.compare', f'--out={out}', argument)
    self.assertEqual(done.returncode, 1)
    self.assertRegex(done.stderr, message)
    self.assertLen(done.stderr.splitlines(), 1)
    self.assertFalse(pathlib.Path(out).exists())


if __name__ == '__main__':
  absltest.main()
