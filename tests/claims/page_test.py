"""Tests for claims.page, store, ranking and running, and stored results."""

import io
import json
import math
import pathlib
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from absl.testing import absltest

import reproduce
from claims import (
  catalog,
  commands,
  judging,
  page,
  published,
  ranking,
  running,
  store,
)
from claims.published import Claim, Entry, Measure
from sweeps import child

_RESULTS = catalog.ROOT / 'results'
_ABOUT = {
  'command': 'python reproduce.py planted',
  'date': '1 January 2026',
  'cores': 2,
  'wall_s': 3.0,
  'git_revision': None,
}


def _entry(least: float = 1.0, **fields) -> Entry:
  claim = Claim(
    'x is 2',
    'a paper',
    'found',
    2.0,
    Measure('x', {}),
    (least, 4.0),
  )
  return Entry(
    *('R2SP', 'Planted', 'a', 'b', 'c'),
    claims=(claim, Claim('y', 'a paper', 'found', unavailable='needs GPUs')),
    measurement='zipline',
    **fields,
  )


def _results(records, entry):
  return store.Results('quick', _ABOUT, catalog.rules(entry), records)


class StoredTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())

  def test_the_page_is_rendered_from_stored_results(self):
    text = (_RESULTS / page.NAME).read_text()
    self.assertEqual(text, page.render(_RESULTS))
    self.assertNotIn('its rules have changed', text)

  def test_every_claim_has_a_row(self):
    text = (_RESULTS / page.NAME).read_text()
    for entry in catalog.find_all().values():
      for claim in entry.claims:
        self.assertIn(f'| {claim.text} | {claim.source} ({claim.mark}) ', text)

  def test_results_are_read_as_written(self):
    entry = _entry()
    records = [{'seed': 0, 'status': 'finished', 'x': 3.0}]
    store.write(self.folder, 'planted', _results(records, entry))
    results = store.read(self.folder, 'planted')
    self.assertEqual(results.records, records)
    self.assertIsNone(store.read(self.folder, 'another'))

  def _judge_planted(self, entry):
    with mock.patch.object(catalog, 'find_all', lambda: {'planted': entry}):
      text = page.render(self.folder)
      return text, page.judge_all(self.folder)['planted'].judgements

  def test_the_page_shows_rules_that_changed_after_the_runs(self):
    records = [{'seed': 0, 'status': 'finished', 'x': 3.0}]
    store.write(self.folder, 'planted', _results(records, _entry()))
    text, rows = self._judge_planted(_entry(least=2.0))
    first, second = rows.values()
    self.assertEqual(first.verdict, judging.NOT_RUN)
    self.assertEqual(first.reason, 'its rule has changed since the runs')
    self.assertEqual(second.verdict, judging.UNAVAILABLE)
    self.assertIn('**not run**: its rule has changed since the runs', text)

  def test_the_page_shows_rules_that_were_written_after_the_runs(self):
    records = [{'seed': 0, 'status': 'finished', 'x': 3.0, 'y': 5.0}]
    store.write(self.folder, 'planted', _results(records, _entry()))
    late = Claim(
      *('y is 5', 'a paper', 'found'),
      measure=Measure('y', {}),
      confirmed=(5.0, 6.0),
    )
    entry = _entry()
    entry = entry._replace(claims=(*entry.claims, late))
    text, rows = self._judge_planted(entry)
    self.assertEqual(rows['x is 2'].reason, '')
    self.assertEqual(rows['y is 5'].verdict, judging.CONFIRMED)
    self.assertEqual(rows['y is 5'].reason, 'rule written after the runs')
    self.assertIn('The rules of 1 claims were written after the runs', text)

  def test_later_claims_that_need_other_runs_have_not_run(self):
    records = [{'seed': 0, 'status': 'finished', 'x': 3.0}]
    store.write(self.folder, 'planted', _results(records, _entry()))
    entry = _entry()
    late = entry.claims[0]._replace(text='y is 2', measure=Measure('y', {}))
    _, rows = self._judge_planted(entry._replace(claims=(*entry.claims, late)))
    self.assertEqual(
      rows['y is 2'],
      judging.Judgement(
        judging.NOT_RUN, reason='the runs do not have what it needs'
      ),
    )

  def test_the_page_shows_claims_that_were_dropped(self):
    records = [{'seed': 0, 'status': 'finished', 'x': 3.0}]
    entry = _entry()
    store.write(self.folder, 'planted', _results(records, entry))
    text, _ = self._judge_planted(entry._replace(claims=entry.claims[1:]))
    self.assertIn('Dropped since the runs: x is 2', text)

  def test_verdicts_are_counted_by_evidence(self):
    records = [{'seed': 0, 'status': 'finished', 'x': 3.0}]
    store.write(self.folder, 'planted', _results(records, _entry()))
    text, _ = self._judge_planted(_entry())
    rows = [line.split(' | ') for line in text.splitlines()]
    counts = {row[0].strip('| '): row[1:] for row in rows if len(row) == 9}
    place = judging.VERDICTS.index(judging.CONFIRMED)
    self.assertEqual(counts['simulated'][place], '1')
    self.assertEqual(counts['trained'][place], '0')
    self.assertEqual(counts['all'][place], '1')

  def test_fields_that_need_training_are_trained(self):
    entry = _entry()
    for field, expected in (
      ('final_accuracy', 'trained'),
      ('time_to.0.9', 'trained'),
      ('time_s', 'simulated'),
      ('bytes', 'arithmetic'),
      ('bytes_per_s', 'simulated'),
    ):
      claim = entry.claims[0]._replace(measure=Measure(field, {}))
      self.assertEqual(published.find_evidence(entry, claim), expected)

  def test_the_page_lists_failed_runs(self):
    entry = _entry()
    records = [
      {'seed': 0, 'status': 'finished', 'x': 3.0},
      {'seed': 1, 'status': 'failed', 'run': 'a-seed1', 'error': 'no room'},
    ]
    store.write(self.folder, 'planted', _results(records, entry))
    with mock.patch.object(catalog, 'find_all', lambda: {'planted': entry}):
      text = page.render(self.folder)
    self.assertIn('2 records, 1 of them not finished', text)
    self.assertIn('- a-seed1: failed. no room', text)
    self.assertIn('needs GPUs', text)

  def test_ranks_follow_medians_and_unreached_levels_are_last(self):
    fields = {
      'grids': {'quick': 'sync.name=bsp,asp,ssp'},
      'ranked': ('time_to.0.9',),
    }
    times = {'bsp': [5.0, 6.0], 'asp': [None, None], 'ssp': [1.0, None]}
    records = [
      {'sync.name': name, 'seed': seed, 'status': 'finished', 'time_to.0.9': t}
      for name, each in times.items()
      for seed, t in enumerate(each)
    ]
    entry = _entry(**fields)
    rows = ranking.table(entry, _results(records, entry)).splitlines()
    self.assertEqual(rows[2], '| 1 | bsp | 5.5 (5 to 6) |')
    self.assertEqual([row.split()[3] for row in rows[3:]], ['asp', 'ssp'])

  def test_measurements_are_ranked_by_the_listed_fields(self):
    records = [
      {'where': 'a', 'seed': 0, 'status': 'finished', 'x': 2.0},
      {'where': 'b', 'seed': 0, 'status': 'failed', 'error': 'broken'},
      {'where': 'c', 'seed': 0, 'status': 'finished', 'x': 1.0},
      {'part': 'all', 'seed': 0, 'status': 'finished', 'most': 2.0},
    ]
    entry = _entry(ranked=('x',), listed=('where',))
    rows = ranking.table(entry, _results(records, entry)).splitlines()
    self.assertEqual(rows[0], '|  | where | x |')
    self.assertEqual(
      rows[2:], ['| 1 | c | 1 |', '| 2 | a | 2 |', '| 3 | b | - |']
    )

  def test_a_missing_folder_is_rejected(self):
    with self.assertRaisesRegex(ValueError, '--out: expected a folder'):
      commands.write_page(str(self.folder / 'none'))


class RecordsTest(absltest.TestCase):
  def _run(self, folder, name, summary, config):
    path = folder / name
    path.mkdir()
    if summary is not None:
      (path / 'summary.json').write_text(json.dumps(summary))
      (path / 'manifest.json').write_text(json.dumps({'config': config}))
    else:
      (path / 'log.txt').write_text('one\nno memory\n')

  def test_every_run_of_a_sweep_has_a_record(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    names = {'1': 'whole', '2': 'diverged', '3': 'error', '4': 'killed'}
    (folder / 'sweep.json').write_text(json.dumps({'runs': names}))
    config = {'seed': 7, 'cluster': {'workers': 4}}
    summary = {
      'ended': 'finished',
      'time_s': 10.0,
      'iterations': 80,
      'examples': 640,
      'bytes': 50,
      'time_to': {'0.9': 2.0},
      'to_bits_per_byte': {'3.5': {'time_s': 3.0}, '2.5': {'time_s': None}},
    }
    errors = ('finished', 'FloatingPointError: NaN', 'ValueError: odd', None)
    for name, ended in zip(names.values(), errors, strict=True):
      run_summary = ended and summary | {'ended': ended}
      self._run(folder, name, run_summary, config)
    levels = ('iterations_to.0.9', 'examples_to.0.9', 'time_to.0.9')
    in_bits = [f'time_to_bits_per_byte.{level}' for level in ('3.5', '2.5')]
    entry = _entry(ranked=(*levels, *in_bits))
    records = running.read_records(entry, ['seed'], folder)
    statuses = [record['status'] for record in records]
    self.assertEqual(statuses, ['finished', 'diverged', 'failed', 'failed'])
    self.assertEqual(records[2]['error'], 'ValueError: odd')
    self.assertEqual(records[3]['error'], 'one / no memory')
    first = records[0]
    self.assertEqual((first['seed'], first['iteration_s']), (7, 0.5))
    self.assertEqual(first['examples_per_s'], 64.0)
    self.assertEqual([first[name] for name in levels], [4.0, 128.0, 2.0])
    times = [judging.read_number(name, first) for name in in_bits]
    self.assertEqual(times, [3.0, math.inf])


class InterruptedWriteTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())

  def test_truncated_results_are_rejected_with_their_path(self):
    entry = _entry()
    path = store.write(self.folder, 'x', _results([], entry))
    whole = path.read_text()
    for size in (0, 40):
      path.write_text(whole[:size])
      with self.assertRaisesRegex(ValueError, f'{path}: expected stored'):
        store.read(self.folder, 'x')

  def test_a_run_with_truncated_files_has_failed_and_is_named(self):
    names = {'1': 'summary', '2': 'manifest'}
    (self.folder / 'sweep.json').write_text(json.dumps({'runs': names}))
    for name in names.values():
      path = self.folder / name
      path.mkdir()
      manifest = {'config': {'seed': 7}}
      (path / 'manifest.json').write_text(json.dumps(manifest))
      (path / 'summary.json').write_text(json.dumps({'ended': 'finished'}))
      (path / f'{name}.json').write_text('{"ended"')
    with self.assertLogs('absl', 'WARNING') as logs:
      found = running.read_records(_entry(), ['seed'], self.folder)
    self.assertEqual([each['status'] for each in found], 2 * ['failed'])
    text = '\n'.join(logs.output)
    self.assertIn(f'{self.folder}/summary/summary.json', text)
    self.assertIn(f'{self.folder}/manifest/manifest.json', text)
    self.assertIn('manifest.json cannot be read', found[1]['error'])

  def test_truncated_measurements_are_repeated(self):
    entry = _entry()
    run = mock.Mock(return_value=mock.Mock(returncode=0, stdout='[{"x": 2}]'))
    with mock.patch.object(child.subprocess, 'run', run):
      for content in (None, '', '[{"x"', '[{"x": 3}]'):
        for path in self.folder.glob('x-quick-own/*.json'):
          path.write_text(content)
        (record,) = running.run_entry(
          'x', entry, scale='quick', seeds=1, out=self.folder
        )
    self.assertEqual(run.call_count, 3)
    self.assertEqual(record, {'seed': 0, 'status': 'finished', 'x': 3})


class CommandTest(absltest.TestCase):
  def _run_command(self, *words):
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
      code = reproduce.main([*words])
    return code, out.getvalue(), error.getvalue()

  def test_the_list_has_entries_with_their_verdicts(self):
    code, output, _ = self._run_command('--list', f'--out={_RESULTS}')
    self.assertEqual(code, 0)
    for name in catalog.names():
      self.assertIn(name, output)

  def test_wrong_flags_are_refused_before_anything_runs(self):
    out = f'--out={tempfile.mkdtemp()}'
    for words, message in (
      (('elastic',), "NAME: expected one of .*, got 'elastic'"),
      (('elastic_cost', '--seeds=17'), '--seeds: expected 1 to 16, got 17'),
      (('elastic_cost', '--seeds=-1'), '--seeds: expected 1 to 16, got -1'),
    ):
      code, _, error = self._run_command(*words, out)
      self.assertEqual(code, 1)
      self.assertRegex(error, f'Refused: {message}')

  def test_all_entries_run_even_if_one_fails(self):
    codes = iter([0, 1, 0])
    run = mock.Mock(
      side_effect=lambda *_, **__: mock.Mock(returncode=next(codes))
    )
    entries = dict.fromkeys(('one', 'two', 'three'))
    with (
      mock.patch.object(catalog, 'find_all', lambda: entries),
      mock.patch.object(child.subprocess, 'run', run),
    ):
      code, output, _ = self._run_command('--all', '--seeds=2', '--out=o')
    self.assertEqual(code, 1)
    self.assertIn('Entries with unfinished runs: two\n', output)
    words = [call.args[0][4:] for call in run.call_args_list]
    more = ['--scale=quick', '--seeds=2', '--out=o']
    self.assertEqual(words, [[name, *more] for name in entries])

  def test_a_failed_measurement_is_stored_and_reported(self):
    out = tempfile.mkdtemp()
    entry = _entry()._replace(measurement='none_such', seeds={'quick': 1})
    with (
      mock.patch.object(catalog, 'find', lambda name: entry),
      mock.patch.object(catalog, 'find_all', lambda: {'planted': entry}),
    ):
      code, output, error = self._run_command('planted', f'--out={out}')
    self.assertEqual(code, 1, output)
    self.assertIn('No module named', error)
    self.assertIn(
      '1 of them not finished', (pathlib.Path(out) / page.NAME).read_text()
    )


if __name__ == '__main__':
  absltest.main()
