"""Tests of the reader of run folders."""

import json
import os
import pathlib
import shutil
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

import analysis
import train
from analysis import runs
from configs import timing
from outputs import console


def _folder(**fields):
  """Folder of a virtual run of two workers."""
  sizes = timing.fields(workers=2, iterations=20, size_bytes=10**6)
  equal = {'cluster.speed.slowdown': (1.0,), 'outputs.board': False}
  folder = pathlib.Path(tempfile.mkdtemp(), 'run')
  config = timing.config(sizes, equal, fields)
  with console.hidden():
    train.build(config, workdir=str(folder))()
  return folder


def _lines(folder, name):
  return (folder / name).read_text().splitlines(keepends=True)


def _write_start(folder, whole, count, cut=''):
  """Writes the first lines of a run's files, as of a running process."""
  for name in ('manifest.json', 'metrics.jsonl', 'events.jsonl', 'trace.json'):
    lines = _lines(whole, name)
    lines = lines if name == 'manifest.json' else [*lines[:count], cut]
    (folder / name).write_text(''.join(lines))


class FollowerTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(tempfile.mkdtemp(), 'events.jsonl')
    self.follower = runs.Follower(self.path)

  def test_rows_come_once_and_whole(self):
    self.assertEqual(self.follower.read(runs.decode_object), ([], False))
    with self.path.open('w') as file:
      file.write('{"a": 1}\n{"a"')
      file.flush()
      self.assertEqual(
        self.follower.read(runs.decode_object), ([{'a': 1}], True)
      )
      self.assertEqual(self.follower.read(runs.decode_object), ([], False))
      file.write(': 2}\n')
      file.flush()
      self.assertEqual(
        self.follower.read(runs.decode_object), ([{'a': 2}], False)
      )

  def test_a_file_that_was_replaced_is_read_again(self):
    self.path.write_text('{"a": 1}\n{"a": 2}\n')
    self.follower.read(runs.decode_object)
    other = self.path.with_name('new')
    other.write_text('{"a": 1}\n{"a": 3}\n{"a": 4}\n')
    other.replace(self.path)
    rows, is_new = self.follower.read(runs.decode_object)
    self.assertEqual([row['a'] for row in rows], [1, 3, 4])
    self.assertTrue(is_new)

  def test_a_file_that_became_shorter_is_read_again(self):
    self.path.write_text('{"a": 1}\n{"a": 2}\n')
    self.follower.read(runs.decode_object)
    os.truncate(self.path, 9)
    self.assertEqual(self.follower.read(runs.decode_object), ([{'a': 1}], True))

  def test_a_broken_line_is_named(self):
    self.path.write_text('{"a": 1}\nnothing\n')
    with self.assertRaisesRegex(ValueError, r'events.jsonl, line 2: .*nothing'):
      self.follower.read(runs.decode_object)
    self.path.write_text('[1]\n')
    with self.assertRaisesRegex(ValueError, 'expected a JSON object'):
      self.follower.read(runs.decode_object)


class ReadTest(parameterized.TestCase):
  whole: pathlib.Path

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.whole = _folder(**{'sync.name': 'ssp'})

  def _copy(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    shutil.copytree(self.whole, folder)
    return folder

  def test_columns_have_the_values_of_the_rows(self):
    run = analysis.read(self.whole)
    rows = [json.loads(line) for line in _lines(self.whole, 'events.jsonl')]
    for name in ('event', 'time'):
      self.assertEqual(run.events[name].tolist(), [row[name] for row in rows])
    pushes = run.events.select(run.events['event'] == 'push')
    pushed = [row for row in rows if row['event'] == 'push']
    for name in ('worker', 'compute_s', 'examples'):
      self.assertEqual(pushes[name].tolist(), [row[name] for row in pushed])
    for table, column, field in (
      (run.commits, 'update', 'commit'),
      (run.releases, 'worker', 'release'),
    ):
      pairs = zip(table['event'].tolist(), table[column].tolist(), strict=True)
      self.assertEqual(
        [*pairs],
        [
          (place, value)
          for place, row in enumerate(rows)
          for value in row['decision'].get(field, ())
        ],
      )

  def test_metrics_have_nan_where_a_row_has_no_number(self):
    run = analysis.read(self.whole)
    self.assertLen(run.metrics, len(run.rows))
    for name in ('time', 'iterations', 'wall_s'):
      expected = [row[name] for row in run.rows]
      self.assertEqual(run.metrics[name].tolist(), expected)
    self.assertTrue(np.isnan(run.metrics['accuracy']).all())
    self.assertNotIn('no_such_field', run.metrics)

  def test_spans_are_those_of_the_timeline(self):
    spans = analysis.read(self.whole).spans
    rows = json.loads((self.whole / 'trace.json').read_text())
    expected = [row for row in rows if row['ph'] == 'X']
    self.assertEqual(spans['phase'].tolist(), [row['name'] for row in expected])
    self.assertEqual(spans['worker'].tolist(), [row['tid'] for row in expected])
    starts = [row['ts'] / 1e6 for row in expected]
    self.assertEqual(spans['start'].tolist(), starts)

  def test_a_running_run_is_followed_without_its_cut_last_line(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    _write_start(folder, self.whole, 9, '{"event": "pu')
    run = analysis.read(folder)
    self.assertIsNone(run.summary)
    self.assertLen(run.events, 9)
    _write_start(folder, self.whole, 25)
    self.assertLen(run.events, 9)
    run.refresh()
    self.assertLen(run.events, 25)
    shutil.copy(self.whole / 'summary.json', folder)
    _write_start(folder, self.whole, None)
    run.refresh()
    whole = analysis.read(self.whole)
    for got, expected in (
      (run.events, whole.events),
      (run.commits, whole.commits),
      (run.releases, whole.releases),
      (run.spans, whole.spans),
      (run.metrics, whole.metrics),
    ):
      for name in expected.columns:
        np.testing.assert_array_equal(got[name], expected[name])
    self.assertEqual(run.ended, 'finished')

  def test_a_run_that_goes_back_to_a_checkpoint_is_read_anew(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    _write_start(folder, self.whole, 25)
    run = analysis.read(folder)
    self.assertLen(run.events, 25)
    _write_start(folder, self.whole, 6)
    run.refresh()
    self.assertLen(run.events, 6)
    self.assertLessEqual(run.commits['event'].max(), 5)

  def test_rows_that_no_scheme_gets_are_apart(self):
    folder = self._copy()
    row = {'event': 'links', 'time': 1.0, 'did': 'measure', 'why': 'test'}
    lines = _lines(folder, 'events.jsonl')
    text = ''.join([*lines[:4], json.dumps(row) + '\n', *lines[4:]])
    (folder / 'events.jsonl').write_text(text)
    run = analysis.read(folder)
    self.assertEqual(run.link_rows, [row])
    events = analysis.read(self.whole).events
    np.testing.assert_array_equal(run.events['time'], events['time'])

  @parameterized.parameters(
    ('events.jsonl', '{"event"\n', r'line 1: expected a JSON object, got'),
    ('events.jsonl', '[]\n', r'line 1: expected a JSON object, got'),
    ('events.jsonl', '{"event": "push"}\n', 'line 1: .*field decision'),
    (
      'events.jsonl',
      '{"event": "push", "time": 1.0, "worker": 0, "decision": {}}\n',
      'line 1: .*field compute_s',
    ),
    ('events.jsonl', '{"event": "links", "time": 1.0}\n', 'field did'),
    ('metrics.jsonl', '{"kind": "log"}\n', 'line 1: .*field time'),
    ('trace.json', '[\n{"ph": "X", "name": "wait"}\n]', 'line 2: .*field ts'),
  )
  def test_a_broken_line_is_named(self, name, text, message):
    folder = self._copy()
    (folder / name).write_text(text)
    run = analysis.read(folder)
    read = {
      'events.jsonl': lambda: run.events,
      'metrics.jsonl': lambda: run.metrics,
      'trace.json': lambda: run.spans,
    }
    with self.assertRaisesRegex(ValueError, f'{name}, {message}|{message}'):
      read[name]()

  def test_files_of_an_ended_run_end_with_a_whole_line(self):
    folder = self._copy()
    text = (folder / 'events.jsonl').read_text()
    (folder / 'events.jsonl').write_text(text[:-20])
    with self.assertRaisesRegex(ValueError, 'events.jsonl, line .*expected'):
      _ = analysis.read(folder).events

  def test_no_run_and_a_run_without_events_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'no/such: .*manifest.json.*folder'):
      analysis.read('/no/such')
    run = analysis.read(_folder(**{'outputs.events': False}))
    self.assertFalse(run.has_events)
    with self.assertRaisesRegex(ValueError, 'config.outputs.events=False'):
      _ = run.events

  def test_a_run_without_a_timeline_has_no_spans(self):
    run = analysis.read(_folder(**{'outputs.timeline': False}))
    self.assertEmpty(run.spans['phase'])


if __name__ == '__main__':
  absltest.main()
