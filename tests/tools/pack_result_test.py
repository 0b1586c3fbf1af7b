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
def _stored():
  run = small.build(small.timing())
  run()
  return run.files.workdir


def _copy():
  """A run's folder, as of code that is committed."""
  folder = pathlib.Path(tempfile.mkdtemp()) / 'run'
  shutil.copytree(_stored(), folder)
  _change(folder, 'manifest.json', git_revision='0123abc', git_changes='')
  return folder


def _change(folder, name, **fields):
  path = folder / name
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))


class PackResultTest(parameterized.TestCase):
  def test_a_result_has_what_the_run_says_and_the_checksums_of_its_files(self):
    folder = _copy()
    out = folder.with_name('result.json')
    pack_result.write(pack_result.packed(folder), out)

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
  def test_what_has_not_finished_or_was_changed_is_refused(
    self, name, fields, message
  ):
    folder = _copy()
    _change(folder, name, **fields)

    with self.assertRaisesRegex(ValueError, message):
      pack_result.packed(folder)

  def test_a_run_without_summary_is_refused(self):
    folder = _copy()
    (folder / 'summary.json').unlink()

    with self.assertRaisesRegex(ValueError, 'got one without summary.json'):
      pack_result.packed(folder)

  def test_an_accuracy_that_no_row_has_is_refused(self):
    folder = _copy()
    path = folder / 'metrics.jsonl'
    *rows, last = path.read_text().splitlines()
    last = json.dumps(json.loads(last) | {'accuracy': 0.5})
    path.write_text(''.join(f'{row}\n' for row in [*rows, last]))
    _change(folder, 'summary.json', final_accuracy=0.5)
    pack_result.packed(folder)

    _change(folder, 'summary.json', final_accuracy=0.9)
    with self.assertRaisesRegex(ValueError, 'expected 0.9, as in summary.json'):
      pack_result.packed(folder)

  def test_a_run_that_is_not_as_it_was_packed_before_is_refused(self):
    folder = _copy()
    out = folder.with_name('result.json')
    result = pack_result.packed(folder)
    pack_result.write(result, out)
    pack_result.write(result, out)
    _change(folder, 'manifest.json', command=['another'])

    with self.assertRaisesRegex(ValueError, 'others of manifest.json'):
      pack_result.write(pack_result.packed(folder), out)
    out.write_text('[]')
    with self.assertRaisesRegex(ValueError, 'a result or no file'):
      pack_result.write(result, out)


if __name__ == '__main__':
  absltest.main()
