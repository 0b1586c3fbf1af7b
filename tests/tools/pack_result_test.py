"""Tests for tools/pack_result."""

import functools
import hashlib
import json
import pathlib
import shutil
import tempfile

from absl.testing import absltest, parameterized

from tests.support import small
from tools.pack_result import __main__ as pack_result


@functools.cache
def _run_folder():
  run = small.build(small.timing())
  run()
  return run.files.workdir


def _copy():
  """Returns a copy of a run's folder, as from committed code."""
  folder = pathlib.Path(tempfile.mkdtemp()) / 'run'
  shutil.copytree(_run_folder(), folder)
  _change(folder, 'manifest.json', git_revision='0123abc', git_changes='')
  return folder


def _change(folder, name, **fields):
  path = folder / name
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))


class PackResultTest(parameterized.TestCase):
  def test_a_result_has_the_summary_and_checksums_of_files(self):
    folder = _copy()
    out = folder.with_name('result.json')
    pack_result.write(pack_result.pack(folder), out)

    result = json.loads(out.read_text())
    for part in ('manifest', 'summary'):
      whole = json.loads((folder / f'{part}.json').read_text())
      self.assertEqual(result[part], whole)
    self.assertEqual(result['hardware']['cores'], result['manifest']['cores'])
    expected = {
      path.name: hashlib.sha256(path.read_bytes()).hexdigest()
      for path in folder.iterdir()
      if path.is_file() and path.name[0] != '.'
    }
    self.assertIn('events.jsonl', expected)
    self.assertEqual(
      {name: each['sha256'] for name, each in result['files'].items()}, expected
    )

  @parameterized.parameters(
    ('summary.json', {'ended': 'interrupted'}, "'finished', got 'interrupted'"),
    ('summary.json', {'iterations': 7}, 'iterations: expected at most 7'),
    ('summary.json', {'iterations': 10**6}, 'pushes: expected 1000000'),
    ('manifest.json', {'git_changes': ' M train.py'}, 'git_changes.*train.py'),
    ('manifest.json', {'git_revision': None}, 'git_revision.*a commit'),
  )
  def test_unfinished_and_changed_runs_are_refused(self, name, fields, message):
    folder = _copy()
    _change(folder, name, **fields)

    with self.assertRaisesRegex(ValueError, message):
      pack_result.pack(folder)

  def test_a_run_without_summary_is_refused(self):
    folder = _copy()
    (folder / 'summary.json').unlink()

    with self.assertRaisesRegex(ValueError, 'got one without summary.json'):
      pack_result.pack(folder)

  def test_an_accuracy_that_no_row_has_is_refused(self):
    folder = _copy()
    path = folder / 'metrics.jsonl'
    *rows, last = path.read_text().splitlines()
    last = json.dumps(json.loads(last) | {'accuracy': 0.5})
    path.write_text(''.join(f'{row}\n' for row in [*rows, last]))
    _change(folder, 'summary.json', final_accuracy=0.5)
    pack_result.pack(folder)

    _change(folder, 'summary.json', final_accuracy=0.9)
    with self.assertRaisesRegex(ValueError, 'expected 0.9, as in summary.json'):
      pack_result.pack(folder)

  def test_a_run_that_changed_after_packing_is_refused(self):
    folder = _copy()
    out = folder.with_name('result.json')
    result = pack_result.pack(folder)
    pack_result.write(result, out)
    pack_result.write(result, out)
    _change(folder, 'manifest.json', command=['another'])

    with self.assertRaisesRegex(ValueError, 'others of manifest.json'):
      pack_result.write(pack_result.pack(folder), out)
    out.write_text('[]')
    with self.assertRaisesRegex(ValueError, 'a result or no file'):
      pack_result.write(result, out)


def _benchmark(**changed):
  """Returns a benchmark's folder with two rows, as from committed code."""
  folder = pathlib.Path(tempfile.mkdtemp()) / 'gpu'
  folder.mkdir()
  row = {
    'job': 'vgg16',
    'row': 'determinism',
    'quantity': 'ratio',
    'aim': [None, 1.3],
    'value': 1.1,
    'verdict': 'held',
    'detail': '',
  }
  failed = row | {'row': 'bare loop', 'value': None, 'verdict': 'missed'}
  rows = [row | changed.get('row', {}), failed]
  (folder / 'rows.jsonl').write_text(
    ''.join(f'{json.dumps(each)}\n' for each in rows)
  )
  manifest = {
    'benchmark': 'bench.gpu',
    'dry_run': False,
    'cores': 16,
    'git_revision': '0123abc',
    'git_changes': '',
  }
  verdicts = {'held': 1, 'missed': 1, 'not measured': 0}
  summary = {'ended': 'finished', 'verdicts': verdicts}
  for name, content in (('manifest', manifest), ('summary', summary)):
    text = json.dumps(content | changed.get(name, {}))
    (folder / f'{name}.json').write_text(text)
  (folder / 'scratch').mkdir()
  (folder / 'scratch/large').write_text('')
  return folder


class BenchmarkTest(parameterized.TestCase):
  def test_a_result_has_its_rows_and_no_scratch(self):
    folder = _benchmark()
    out = folder.with_name('result.json')
    pack_result.write(pack_result.pack(folder), out)

    result = json.loads(out.read_text())
    self.assertEqual([row['value'] for row in result['rows']], [1.1, None])
    self.assertEqual(result['hardware']['cores'], 16)
    self.assertEqual(
      {*result['files']}, {'manifest.json', 'rows.jsonl', 'summary.json'}
    )

  @parameterized.parameters(
    ('manifest', {'dry_run': True}, 'dry_run: expected false.*got True'),
    ('manifest', {'git_changes': ' M train.py'}, 'git_changes.*train.py'),
    ('manifest', {'git_revision': None}, 'git_revision.*a commit'),
    ('summary', {'ended': 'interrupted'}, "'finished', got 'interrupted'"),
    ('summary', {'verdicts': {'held': 2}}, "verdicts: expected {'held': 1"),
    ('row', {'value': 1.4}, "line 1: verdict: expected .*got 'held'"),
    ('row', {'value': None}, "line 1: verdict: expected .*got 'held'"),
  )
  def test_changed_and_empty_benchmarks_are_refused(
    self, name, fields, message
  ):
    with self.assertRaisesRegex(ValueError, message):
      pack_result.pack(_benchmark(**{name: fields}))

  def test_an_interrupted_benchmark_is_refused(self):
    folder = _benchmark()
    (folder / 'summary.json').unlink()
    with self.assertRaisesRegex(ValueError, 'got one without summary.json'):
      pack_result.pack(folder)


if __name__ == '__main__':
  absltest.main()
