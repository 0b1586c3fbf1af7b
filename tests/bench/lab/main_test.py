"""Tests for the command bench.lab: stored rows and refused flags."""

import pathlib
import re
import stat
import subprocess
import sys
import tempfile

from absl.testing import absltest

from bench.lab import __main__ as command

_ROOT = pathlib.Path(__file__).parents[3]


def _row(scheme, median_s, size='5'):
  key = {'case': 'equal4', 'mbit': 200, 'size': size, 'scheme': scheme}
  return {**key, 'median_s': median_s}


class StoreTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self._path = pathlib.Path(tempfile.mkdtemp(), 'new', 'lab-routes.json')

  def test_rows_are_read_as_written(self):
    rows = [_row('ring', 0.3), _row('forest', 0.2)]
    self.assertEqual(command.read(self._path), [])
    command.write(self._path, rows)
    self.assertEqual(command.read(self._path), rows)

  def test_new_rows_replace_those_of_the_same_links_and_size(self):
    stored = [_row('ring', 0.3), _row('forest', 0.2), _row('ring', 0.6, '25')]
    merged = command.merge(stored, [_row('ring', 0.4), _row('native', 0.5)])
    found = [(row['scheme'], row['size'], row['median_s']) for row in merged]
    self.assertEqual(
      found,
      [
        ('ring', '5', 0.4),
        ('forest', '5', 0.2),
        ('ring', '25', 0.6),
        ('native', '5', 0.5),
      ],
    )

  def test_another_format_is_refused(self):
    self._path.parent.mkdir()
    self._path.write_text('{"format": 2}')
    with self.assertRaisesRegex(ValueError, 'lab-routes.json: expected format'):
      command.read(self._path)


class PageTest(absltest.TestCase):
  def test_tables_of_the_docs_are_those_of_stored_rows(self):
    page = (_ROOT / 'docs/benchmarks.md').read_text()
    for name in re.findall(r'<!-- lab-(\w+) -->', page):
      rows = command.read(_ROOT / f'results/lab-{name}.json')
      self.assertNotEmpty(rows, name)
      # If not: python -m bench.lab --table=NAME --page=docs/benchmarks.md
      self.assertEqual(command.fill_page(page, name, rows), page)

  def test_a_page_without_a_place_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'lab-routes --> and then'):
      command.fill_page('<!-- lab-routes -->\n', 'routes', [])


class FlagsTest(absltest.TestCase):
  def test_an_interpreter_without_torch_is_refused(self):
    python = pathlib.Path(tempfile.mkdtemp(), 'python')
    python.write_text('#!/bin/sh\necho No module named torch >&2; exit 1\n')
    python.chmod(stat.S_IRWXU)
    for path, reason in (
      (python, 'No module named torch'),
      ('/no/x', 'No such'),
    ):
      expected = f'--peers: expected an interpreter.*{path}.*{reason}'
      with self.assertRaisesRegex(ValueError, expected):
        command.read_torch_version(str(path))

  def test_an_unknown_row_is_refused_with_those_of_the_table(self):
    words = ['--table=local_steps', '--schemes=tree-8']
    done = subprocess.run(
      [sys.executable, '-m', 'bench.lab', *words],
      cwd=_ROOT,
      capture_output=True,
      text=True,
      check=False,
    )
    self.assertEqual(done.returncode, 1)
    self.assertRegex(done.stderr, r"--schemes: expected some of .*'ring-8'")
    self.assertIn('tree-8', done.stderr)


if __name__ == '__main__':
  absltest.main()
