"""Tests for tools/compare.py, on small runs and on made-up summaries."""

import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

import train
from configs import compare as compare_config
from configs import default, sections
from outputs.files import RunFiles
from tests.support import small
from tools import compare

_ROOT = pathlib.Path(__file__).parents[2]
_BSP_AND_ASP = (compare.Variant('bsp', 'bsp'), compare.Variant('asp', 'asp'))


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


def _plan(config, variants=_BSP_AND_ASP, seeds=2, out=None):
  out = out or tempfile.mkdtemp()
  return compare.plan(config, out=out, variants=variants, seeds=seeds)


class ConfigTest(parameterized.TestCase):
  def test_the_comparison_is_of_four_unequal_workers(self):
    config = compare_config.get_config()

    sections.check_fields(config, default.get_config())
    self.assertEqual(config.cluster.speed.slowdown, (1.0, 1.5, 2.0, 3.0))
    self.assertEqual(config.cluster.speed.lognormal.sigma, 0.1)

  def test_all_schemes_and_four_of_bsp_are_nine_rows(self):
    rows = compare.variants(compare.SCHEMES)
    self.assertLen(rows, 9)
    self.assertLen({row.name for row in rows}, 9)

  @parameterized.parameters([[]], [['bsp', 'bps']])
  def test_unknown_schemes_are_refused(self, schemes):
    with self.assertRaisesRegex(compare.Refused, 'schemes: expected some of'):
      compare.variants(schemes)


class PlanTest(parameterized.TestCase):
  def test_variants_differ_in_scheme_reduction_rate_and_seed(self):
    shared = small.config(optimizer__learning_rate=0.01, seed=5)
    runs = _plan(shared, compare.variants(['bsp', 'asp']))

    told = [
      (
        run.variant,
        run.config.sync.name,
        run.config.optimizer.reduction,
        round(run.config.optimizer.learning_rate, 9),
        run.config.seed,
      )
      for run in runs
    ]
    self.assertEqual(
      told[:5],
      [
        ('bsp', 'bsp', 'sum', 0.01, 5),
        ('bsp mean', 'bsp', 'mean', 0.01, 5),
        ('bsp mean, n x rate', 'bsp', 'mean', 0.03, 5),
        ('bsp, n x rate', 'bsp', 'sum', 0.03, 5),
        ('asp', 'asp', 'sum', 0.01, 5),
      ],
    )
    self.assertEqual({run.config.seed for run in runs[5:]}, {6})
    self.assertLen({run.folder for run in runs}, 10)
    self.assertEqual(runs[0].folder.name, 'bsp-seed5')
    self.assertEqual(shared, small.config(seed=5))

  def test_settings_of_a_scheme_are_for_its_own_runs(self):
    shared = small.config(sync__name='ssp', sync__ssp__bound=5)
    runs = _plan(shared, compare.variants(['bsp', 'ssp']), seeds=1)

    bounds = {run.config.sync.name: run.config.sync.ssp.bound for run in runs}
    self.assertEqual(bounds, {'bsp': 3, 'ssp': 5})
    for run in runs:
      sections.choose_section(run.config, default.get_config(), 'sync')

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
  def test_what_would_be_ignored_is_refused(self, changed, seeds, message):
    with self.assertRaisesRegex(compare.Refused, message):
      _plan(small.config(**changed), seeds=seeds)


class CompareTest(parameterized.TestCase):
  def test_a_comparison_leaves_a_table_and_pictures_and_goes_on(self):
    out = pathlib.Path(tempfile.mkdtemp())
    runs = _plan(small.config(eval_every=0.5), out=out)
    compare.compare(runs, out)

    table = (out / 'table.md').read_text()
    self.assertIn('mlp on synthetic, 2 epochs, 3 workers', table)
    self.assertRegex(table, r'\n\| bsp +\| [\d.]+ ')
    self.assertRegex(table, r'\n\| asp +\| [\d.]+ ')
    pictures = {picture.stem for picture in out.glob('*.png')}
    timelines = {'timeline-bsp-seed-0', 'timeline-asp-seed-0'}
    accuracies = {'accuracy', 'accuracy-iterations', 'accuracy-examples'}
    others = {'staleness', 'waiting', 'breakdown', 'bandwidth', 'gaps'}
    self.assertEqual(pictures, accuracies | others | timelines)

    with mock.patch.object(RunFiles, 'begin', side_effect=AssertionError):
      compare.compare(_plan(small.config(eval_every=0.5), out=out), out)
    self.assertEqual((out / 'table.md').read_text(), table)

  def test_n_times_the_rate_undoes_the_mean(self):
    changed = {'cluster__workers': 4, 'cluster__speed__slowdown': (1.0,)}
    _, _, scaled, _ = _plan(
      small.config(**changed), compare.variants(['bsp']), seeds=1
    )
    run = train.build(scaled.config, workdir=str(scaled.folder))
    run()
    plain = small.build(small.config(**changed))
    plain()

    for one, other in zip(
      jax.tree.leaves(run.runtime.coordinator.store.learner.params),
      jax.tree.leaves(plain.runtime.coordinator.store.learner.params),
      strict=True,
    ):
      np.testing.assert_array_equal(one, other)

  def test_a_run_that_diverges_is_a_cell_and_is_not_run_again(self):
    out = pathlib.Path(tempfile.mkdtemp())
    config = small.config(optimizer__learning_rate=1e30)
    runs = _plan(config, _BSP_AND_ASP[:1], seeds=1, out=out)
    with self.assertLogs(level='WARNING') as logs:
      compare.compare(runs, out)

    self.assertIn('bsp-seed0 diverged: ', '\n'.join(logs.output))
    self.assertRegex(
      (out / 'table.md').read_text(),
      r'\| bsp \| -; 1 of 1 diverged \| -; 0 of 1 +\|',
    )
    with mock.patch.object(RunFiles, 'begin', side_effect=AssertionError):
      compare.trained(runs[0])

  def test_a_run_of_another_config_is_refused_also_if_it_diverged(self):
    out = pathlib.Path(tempfile.mkdtemp())
    config = small.config(optimizer__learning_rate=1e30)
    (before,) = _plan(config, _BSP_AND_ASP[:1], seeds=1, out=out)
    compare.trained(before)

    (run,) = _plan(small.config(), _BSP_AND_ASP[:1], seeds=1, out=out)
    with self.assertRaisesRegex(
      compare.Refused, r'bsp-seed0: workdir: .* config.optimizer.learning_rate'
    ):
      compare.trained(run)

  def test_a_broken_summary_is_named(self):
    (run,) = _plan(small.config(), _BSP_AND_ASP[:1], seeds=1)
    train.build(run.config, workdir=str(run.folder)).files.release()
    (run.folder / 'summary.json').write_text('{"ended"')
    with self.assertRaisesRegex(compare.Refused, 'summary.json: expected a'):
      compare.trained(run)

  def test_other_errors_end_the_comparison(self):
    (run,) = _plan(
      small.config(cluster__script=((0.0, 'leave', 0),) * 2),
      _BSP_AND_ASP[:1],
      seeds=1,
    )
    with self.assertRaisesRegex(compare.Refused, 'seed0: config.cluster.scr'):
      compare.trained(run)


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
  def test_what_was_not_reached_is_infinite(self, values, expected):
    self.assertEqual(compare.cell(values, 'g'), expected)

  def test_cells_are_medians_and_ranges(self):
    cells = compare.row([_summary(seed) for seed in range(3)])
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
  def test_a_time_says_how_many_seeds_it_is_of(self, times, cell):
    cells = compare.row([_summary(reached=time) for time in times])
    self.assertEqual(cells['to 90 % (s)'], cell)

  def test_runs_that_diverged_are_counted_and_left_out(self):
    lost = _summary(ended='FloatingPointError: no', reached=None)
    cells = compare.row([_summary(0), lost, _summary(2)])
    self.assertEqual(cells['accuracy (%)'], '91.0 (90.0–92.0); 1 of 3 diverged')
    self.assertEqual(cells['to 90 % (s)'], '1.0; 2 of 3')
    self.assertEqual(cells['updates'], '101 (100–102)')

    cells = compare.row([lost, lost])
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
    self._check_refused('--schemes=bps', r'Refused: schemes: expected some of')

  @pytest.mark.soak
  def test_so_is_that_of_an_unknown_field(self):
    message = r"Refused: unknown field in \['--config.epoch=2'\]"
    self._check_refused('--config.epoch=2', message)

  def _check_refused(self, argument, message):
    out = f'{tempfile.mkdtemp()}/out'
    done = subprocess.run(
      [sys.executable, '-m', 'tools.compare', f'--out={out}', argument],
      cwd=_ROOT,
      capture_output=True,
      text=True,
      check=False,
    )
    self.assertEqual(done.returncode, 1)
    self.assertRegex(done.stderr, message)
    self.assertLen(done.stderr.splitlines(), 1)
    self.assertFalse(pathlib.Path(out).exists())


if __name__ == '__main__':
  absltest.main()
