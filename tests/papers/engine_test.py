"""Tests for papers: a fabricated table from its file to its rendering."""

import contextlib
import csv
import io
import json
import math
import pathlib
import tempfile
import xml.etree.ElementTree
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

import reproduce
from analysis import printing
from papers import command, judge, page, rendering, running, schema, store
from sweeps import plan
from tests.papers import fabricated

_ROOT = pathlib.Path(__file__).parents[2]


def _records(seeds=6):
  folder = pathlib.Path(tempfile.mkdtemp())
  return [
    {'seed': seed, 'status': 'finished', **record}
    for seed in range(seeds)
    for record in fabricated.records(seed=seed, scale='quick', folder=folder)
  ]


def _judge(seeds=6, toml=fabricated.TOML):
  """Returns the verdicts by table and row, of the first column."""
  entry = schema.parse('x', toml.encode())
  found = {}
  for table in entry.table:
    for one in judge.judge(schema.cells(table), _records(seeds)):
      found.setdefault((table.name, one.cell.row), one)
  return found


def _cell(**values):
  fields = dict.fromkeys(schema.Cell._fields)
  fields |= {'row': 'r', 'column': 'c', 'measure': 's', 'of': {'x': 1}}
  fields |= {'is_difference': False, 'certainty': 'table', 'needs': ''}
  fields |= {'spread': '', 'spread_over': '', 'mean_over': '', 'text': ''}
  return schema.Cell(**(fields | values))


class VerdictTest(parameterized.TestCase):
  @parameterized.parameters(
    ('matches', judge.MATCH, 0.5),
    ('same side', judge.SAME, 0.5),
    ('other side', judge.DIFFERS, 0.5),
    ('noise', judge.UNDECIDED, None),
    ('alike', judge.DIFFERS, 1.0),
  )
  def test_cells_of_a_comparison(self, row, verdict, median):
    one = _judge()['Table I', row]
    self.assertEqual(one.verdict, verdict, one.reason)
    self.assertEqual(one.seeds, 6)
    if median is not None:
      self.assertAlmostEqual(one.median, median)

  def test_a_cell_that_cannot_be_had_names_what_it_needs(self):
    entry = schema.parse('x', fabricated.TOML.encode())
    rows = judge.judge(schema.cells(entry.table[0]), _records())
    (one,) = (each for each in rows if each.cell.column == 'seconds')
    self.assertEqual(
      (one.verdict, one.reason), (judge.UNAVAILABLE, 'needs 512 GPUs')
    )

  def test_likeness_has_to_show(self):
    self.assertEqual(_judge()['Text', 'no loss'].verdict, judge.MATCH)
    self.assertEqual(_judge(1)['Text', 'no loss'].verdict, judge.UNDECIDED)

  def test_a_number_alone_is_judged_by_its_median(self):
    one = _judge()['Text', 'seconds']
    self.assertEqual((one.verdict, one.p), (judge.MATCH, None))
    self.assertAlmostEqual(one.median, 0.5125)

  def test_a_setting_that_never_acts_decides_nothing(self):
    one = _judge()['Text', 'never acts']
    self.assertEqual(one.verdict, judge.UNAVAILABLE)
    self.assertIn('scheme=base', one.reason)

  def test_a_single_seed_shows_no_difference(self):
    self.assertEqual(_judge(1)['Table I', 'matches'].verdict, judge.UNDECIDED)

  def test_p_values_are_corrected_within_the_table_alone(self):
    toml = fabricated.TOML
    one = _judge(toml=toml)['Table I', 'noise']
    more = toml.replace(
      "  { name = 'alike'",
      "  { name = 'noise too', of = { scheme = 'noise' }, "
      "published = [0.9, '-'] },\n  { name = 'alike'",
    )
    self.assertLess(one.p, _judge(toml=more)['Table I', 'noise'].p + 1e-12)
    other = toml.replace("name = 'Text'", "name = 'Other text'")
    self.assertEqual(one.p, _judge(toml=other)['Table I', 'noise'].p)

  def test_without_records_nothing_has_run(self):
    entry = schema.parse('x', fabricated.TOML.encode())
    rows = judge.judge(schema.cells(entry.table[0]), None)
    self.assertEqual(
      {one.verdict for one in rows}, {judge.NOT_RUN, judge.UNAVAILABLE}
    )

  def test_a_failed_seed_has_no_number(self):
    records = [r for r in _records() if r['seed'] != 5]
    records.append({'seed': 5, 'status': 'failed', 'error': 'x'})
    entry = schema.parse('x', fabricated.TOML.encode())
    one, *_ = judge.judge(schema.cells(entry.table[0]), records)
    self.assertEqual((one.seeds, one.verdict), (5, judge.MATCH))

  def test_times_that_were_never_reached_are_infinite(self):
    records = [
      {'seed': s, 'status': 'finished', 'x': x, 'time_to.0.9': t}
      for s in range(6)
      for x, t in ((1, 1.0 + s), (2, None if s else 9.0))
    ]
    cell = _cell(measure='time_to.0.9', other={'x': 2}, same=(0.0, 1.0))
    (one,) = judge.judge([cell], records)
    self.assertEqual((one.verdict, one.median), (judge.SAME, 0.0))
    self.assertAlmostEqual(one.p, 2 / 64)

  def test_spreads_and_means_over_a_field(self):
    records = [
      {'seed': 0, 'status': 'finished', 'x': 1, 'fold': fold, 's': s}
      for fold, s in enumerate((2.0, 3.0, 7.0))
    ]
    spread = _cell(spread='fold', match=(3.0, 4.0))
    mean = _cell(mean_over='fold', match=(4.0, 4.0 + 1e-9))
    one, two = judge.judge([spread, mean], records)
    self.assertEqual((one.median, two.median), (3.5, 4.0))

  def test_several_records_of_a_seed_are_refused(self):
    records = [{'seed': 0, 'status': 'finished', 'x': 1, 's': 1.0}] * 2
    with self.assertRaisesRegex(ValueError, 'one record of seed 0 .* got 2'):
      judge.judge([_cell(match=(0.0, 1.0))], records)


class StatisticsTest(absltest.TestCase):
  def test_equal_schemes_rarely_differ_and_others_mostly_do(self):
    rng = np.random.default_rng(0)
    found = {0.0: 0, 0.3: 0}
    for effect in found:
      for _ in range(300):
        base = rng.lognormal(0, 0.1, 6)
        ours = base * rng.lognormal(effect, 0.1, 6)
        found[effect] += judge.differ_p(ours, base, log=True) <= 0.05
    self.assertLess(found[0.0] / 300, 0.09)
    self.assertGreater(found[0.3] / 300, 0.95)

  def test_an_effect_at_the_limit_is_rarely_within_it(self):
    rng = np.random.default_rng(1)
    count = 0
    for _ in range(300):
      base = rng.normal(0, 1, 6)
      ours = base + 0.01 + rng.normal(0, 0.01, 6)
      count += judge.within_p(ours, base, (-0.01, 0.01), log=False) <= 0.05
    self.assertLess(count / 300, 0.09)

  def test_deterministic_numbers_are_known_exactly(self):
    one, two = [1.0] * 6, [0.5] * 6
    self.assertEqual(judge.differ_p(one, two, log=True), 0.0)
    self.assertEqual(judge.differ_p(one, one, log=True), 1.0)
    self.assertEqual(judge.within_p(one, one, (0.9, 1.1), log=True), 0.0)
    self.assertEqual(judge.within_p(one, two, (0.9, 1.1), log=True), 1.0)


class SchemaTest(parameterized.TestCase):
  @parameterized.parameters(
    ("measure = 's'", "mesure = 's'", 'unknown field .mesure.'),
    ('[0.5, 12.0]', '[0.5]', 'matches: expected 2 published numbers, got 1'),
    ("evidence = 'timed'", "evidence = 'felt'", "got 'felt'"),
    ("certainty = 'text'", "certainty = 'sure'", "got 'sure'"),
    ("same = 'side'", "same = 'up'", "got 'up'"),
    ('match = [0.4, 0.6]', 'match = []', 'expected a rule'),
    ('match = [0.4, 0.6]', 'match = [0.6, 0.4]', 'from low to high'),
    ("name = 'Text'", "name = 'Table I'", 'names that differ'),
    (
      "function = 'tests.papers.fabricated:records'",
      '',
      'either a grid or a function',
    ),
  )
  def test_wrong_files_are_refused_with_the_place(self, old, new, message):
    toml = fabricated.TOML.replace(old, new, 1)
    self.assertNotEqual(toml, fabricated.TOML)
    with self.assertRaisesRegex(ValueError, message):
      schema.parse('x', toml.encode())

  def test_a_share_does_not_reach_beyond_the_published_direction(self):
    toml = fabricated.TOML.replace(
      'published = [0.5, 12.0]', 'published = [0.95, 1]'
    )
    cell, *_ = schema.cells(schema.parse('x', toml.encode()).table[0])
    self.assertAlmostEqual(cell.match[0], 0.855)
    self.assertEqual((cell.match[1], cell.same), (1.0, (0.0, 1.0)))

  def test_a_change_of_a_rule_changes_the_digest_of_its_table_alone(self):
    before, after = (
      store.rules_of(schema.parse('x', toml.encode()))
      for toml in (fabricated.TOML, fabricated.TOML.replace('0.6]', '0.7]'))
    )
    self.assertEqual(before['Table I'], after['Table I'])
    self.assertNotEqual(before['Text'], after['Text'])


class RenderingTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.entry = schema.parse('x', fabricated.TOML.encode())
    self.table = self.entry.table[0]
    self.rows = judge.judge(schema.cells(self.table), _records())

  def test_cells_have_theirs_ours_and_the_verdict_in_the_papers_layout(self):
    lines = printing.markdown(
      rendering.grid(self.table, self.rows), is_padded=False
    ).splitlines()
    self.assertEqual(lines[0], '|  | A & B | seconds |')
    self.assertEqual(lines[2], '| matches | 0.5 / 0.5 ✓ | 12 / - – |')
    self.assertStartsWith(lines[5], '| noise | 0.9 / ')
    self.assertEndsWith(lines[5], '? |  |')

  def test_latex_escapes_names(self):
    found = rendering.latex(self.entry, self.table, self.rows)
    self.assertIn(r'A \& B', found)
    self.assertIn(r'0.5 / 0.5 $\checkmark$', found)
    self.assertEqual(found.count('\\begin{'), found.count('\\end{'))

  def test_csv_has_a_line_for_each_cell(self):
    file = io.StringIO(rendering.csv_text(self.table, self.rows))
    lines = [*csv.DictReader(file)]
    self.assertLen(lines, len(self.rows))
    self.assertEqual(lines[0]['published'], '0.5')
    self.assertEqual(lines[0]['verdict'], judge.MATCH)

  def test_the_largest_difference_is_that_of_the_farthest_cell(self):
    found = rendering.largest_difference(self.rows)
    self.assertEqual(found, 'other side, A & B: 1.5 / 0.5')

  def test_numbers_have_three_digits(self):
    numbers = (0.4999, 12345.0, 2.07e8, 0.0, math.inf, None)
    self.assertEqual(
      [rendering.number(each) for each in numbers],
      ['0.5', '12,345', '2.07e+08', '0', 'never', ''],
    )


class CommandTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(
      self.enter_context(tempfile.TemporaryDirectory())
    )
    files = self.folder / 'papers'
    files.mkdir()
    (files / 'x.toml').write_text(fabricated.TOML)
    self.enter_context(mock.patch.object(schema, 'FOLDER', files))
    self.out = self.folder / 'out'

  def _run(self, seeds=2):
    with contextlib.redirect_stdout(io.StringIO()) as out:
      section = command.reproduce(
        'x', scale='quick', seeds=seeds, out=str(self.out)
      )
    return section, out.getvalue()

  def test_a_run_is_stored_and_the_next_one_resumes(self):
    section, said = self._run()
    self.assertIn('seed 2 of 2', said)
    self.assertLen(section.results.records, 8)
    called = [*self.out.glob('runs/*/*/called')]
    for each in called:
      each.unlink()
    section, said = self._run(3)
    self.assertNotIn('seed 2 of 3', said)
    self.assertIn('seed 3 of 3', said)
    self.assertLen([*self.out.glob('runs/*/*/called')], 1)
    stored = json.loads((self.out / 'x.json').read_text())
    self.assertLen(stored['records'], 12)
    self.assertEqual(page.changed_rules(section), [])

  def test_it_ends_with_tables_and_a_sentence_for_an_appendix(self):
    section, _ = self._run(6)
    said = command.show(section, 'text')
    self.assertIn('A paper (2026), Table I: time over', said)
    self.assertIn('`python reproduce.py x --scale=quick --seeds=6`', said)
    self.assertIn('1 match, 1 same direction, 2 differs', said)
    self.assertEqual(command.exit_code(section), 0)

  def test_results_are_compared_cell_by_cell(self):
    self._run(6)
    other = self.folder / 'other'
    results = store.read(self.out, 'x')
    records = [
      {**r, 's': 0.8 * r['s']} if r['scheme'] == 'half' else r
      for r in results.records
    ]
    fields = schema.fields(schema.read('x'))
    store.write(other, 'x', results._replace(records=records), fields)
    said = command.compare(page.read(self.out, 'x'), str(other))
    self.assertIn('8 of 9 cells equal', said)
    self.assertIn('matches, A & B: 0.4 ', said)

  def test_changed_rules_are_told(self):
    self._run()
    toml = fabricated.TOML.replace('match = 0.1', 'match = 0.2')
    (schema.FOLDER / 'x.toml').write_text(toml)
    said = command.show(page.read(self.out, 'x'), 'text')
    self.assertIn('rules of this table have changed', said)

  def test_the_page_has_a_line_for_each_table_and_its_figure(self):
    self._run(6)
    path = page.write(self.out)
    text = path.read_text()
    self.assertIn('| Table I | 1 ✓ 1 ≈ 2 ✗ 1 ? 1 – | other side', text)
    self.assertIn('| [`x`](#x) |', text)
    self.assertIn('| matches | 0.5 / 0.5 ✓ |', text)
    drawn = self.out / 'figures' / 'x_1.svg'
    self.assertIn(f'(figures/{drawn.name})', text)
    xml.etree.ElementTree.parse(drawn)
    before = drawn.read_bytes()
    page.write(self.out)
    self.assertEqual(drawn.read_bytes(), before)

  def test_half_a_file_is_refused_by_name(self):
    self._run()
    (self.out / 'x.json').write_text('{"format": 2, "ab')
    with self.assertRaisesRegex(ValueError, 'x.json: expected complete'):
      store.read(self.out, 'x')

  def test_what_a_machine_lacks_is_named(self):
    entry = schema.read('x')
    entry.needs = ['torch', 'no_such_file']
    with mock.patch.dict('os.environ', SYNCOPATE_PEERS=''):
      self.assertEqual(command.missing_needs(entry), ['torch', 'no_such_file'])

  def test_a_function_that_fails_has_a_failed_record(self):
    toml = fabricated.TOML.replace('fabricated:records', 'fabricated:TOML')
    (schema.FOLDER / 'x.toml').write_text(toml)
    with contextlib.redirect_stderr(io.StringIO()):
      section, _ = self._run(1)
      self.assertEqual(command.exit_code(section), 1)

  def test_an_unknown_function_is_refused(self):
    toml = fabricated.TOML.replace('fabricated:records', 'fabricated:nothing')
    (schema.FOLDER / 'x.toml').write_text(toml)
    with self.assertRaisesRegex(ValueError, 'MODULE:NAME, got .*nothing'):
      self._run(1)


class VirtualRunTest(absltest.TestCase):
  def test_records_are_those_of_the_grid_with_what_cells_need(self):
    toml = """
paper = 'x'

[runs]
grid = 'sync.name = bsp, asp'

[runs.set]
'model.name' = 'none'
'model.none.num_train' = 256
'cluster.speed.slowdown' = [1.0, 2.0]
'cluster.workers' = 2
'epochs' = 1.0

[[table]]
name = 'T'
title = 't'
measure = 'iteration_s'
columns = [{ name = 'c' }]
rows = [
  { name = 'asp', of = { 'sync.name' = 'asp' }, \
over = { 'sync.name' = 'bsp' }, match = [0, 1], published = [''] },
  { name = 'waits', measure = 'waiting_share', \
of = { 'sync.name' = 'asp' }, match = [-1, 0.5], published = [''] },
]
"""
    entry = schema.parse('x', toml.encode())
    with tempfile.TemporaryDirectory() as folder:
      options = {'scale': 'quick', 'seeds': 1, 'out': pathlib.Path(folder)}
      with contextlib.redirect_stdout(io.StringIO()) as said:
        first = running.run('x', entry, **options)
        again = running.run('x', entry, **options)
    self.assertIn('2 of 2 runs are over already', said.getvalue())
    self.assertEqual(first, again)
    self.assertCountEqual([r['sync.name'] for r in first], ['bsp', 'asp'])
    for record in first:
      self.assertContainsSubset(
        ('seed', 'status', 'iteration_s', 'waiting_share'), record
      )
    one, _ = judge.judge(schema.cells(entry.table[0]), first)
    self.assertLess(one.median, 1)


class EntriesTest(parameterized.TestCase):
  @parameterized.parameters(*schema.names())
  def test_runs_are_valid_and_stored_results_are_of_these_rules(self, name):
    entry = schema.read(name)
    if entry.runs.function:
      running.find_function(entry.runs.function)
    else:
      shared = running.shared_config(entry.runs)
      for point in running.grid_points(entry.runs, 'full', [0])[::7]:
        fields = shared.overrides | dict(point)
        words = [f'--config.{k}={v}' for k, v in fields.items()]
        plan.parse_config([f'--config={_ROOT / shared.file}', *words])
    if entry.runs.add:
      running.find_function(entry.runs.add)
    results = store.read(_ROOT / 'results', name)
    self.assertEqual(results.rules, store.rules_of(entry))
    revision = results.about['git_revision']
    self.assertRegex(revision, '^[0-9a-f]{40}$')


class FlagsTest(absltest.TestCase):
  def test_the_default_folder_is_not_that_of_stored_results(self):
    self.assertNotIn(
      str(_ROOT / 'results'), str(pathlib.Path(reproduce.OUT).resolve())
    )


if __name__ == '__main__':
  absltest.main()
