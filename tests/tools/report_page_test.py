"""Tests of the page of tools.report: its tables, figures and sentences."""

import collections
import csv
import functools
import json
import pathlib
import shutil
import tempfile
from html import parser

from absl.testing import absltest, parameterized

import analysis
from analysis import diagnosing, tables
from tests.support import small, sums
from tools import report

_HOSTILE = '<img src=x onerror=boom()> & </script><b>'


def _ran(folder, **changed):
  """Executes a timing-only run; returns its folder with planted accuracies."""
  run = small.build(small.timing(epochs=8.0, **changed))
  run()
  shutil.copytree(run.files.workdir, folder)
  path = folder / 'metrics.jsonl'
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  for place, row in enumerate(rows):
    if row['kind'] == 'evaluation' or place in (0, len(rows) - 1):
      row['accuracy'] = 1 - 0.5 ** (place + 1)
  path.write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  return folder


@functools.cache
def _folders():
  """Runs of several kinds, one with a name that has to be escaped."""
  top = pathlib.Path(tempfile.mkdtemp())
  (top / 'bad').mkdir()
  hostile = top / 'bad' / _HOSTILE.replace('/', ':')
  return (
    _ran(hostile, sync__name='asp'),
    _ran(top / 'batches', batching__name='lb_bsp'),
    _ran(top / 'forest', route__name='forest', **sums.links(1e5)),
  )


@functools.cache
def _sweep():
  """Two runs of a sweep, of which one has not ended."""
  folder = pathlib.Path(tempfile.mkdtemp())
  shutil.copytree(_folders()[1], folder / 'one')
  (folder / 'two').mkdir()
  with (folder / 'results.csv').open('w', newline='') as file:
    csv.writer(file, lineterminator='\n').writerows(
      [
        ('run', 'status', 'seed', 'sync.ssp.bound', 'final_accuracy', 'bytes'),
        ('one', 'finished', '0', 'inf', '0.5', '10'),
        ('two', 'failed', '10', '3', '', ''),
      ]
    )
  return folder


class TablesTest(parameterized.TestCase):
  def test_a_sweep_has_its_table_and_the_runs_that_have_ended(self):
    content = tables.read([_sweep()])

    (table,) = content.tables
    self.assertEqual(table.rows[0], ('one', 'finished', 0, 'inf', 0.5))
    self.assertEqual(table.rows[1], ('two', 'failed', 10, '3', None))
    self.assertNotIn('bytes', table.columns)
    self.assertEqual([name for name, _ in content.runs], ['one'])

  def test_names_of_runs_have_the_fields_in_which_they_differ(self):
    content = tables.read(_folders())

    (table,) = content.tables
    for row, (name, run) in zip(table.rows, content.runs, strict=True):
      told = dict(zip(table.columns, row, strict=True))
      self.assertEqual(told['run'], name)
      self.assertEqual(told['time_s'], run.summary['time_s'])
      for room in ('sync', 'batching', 'route'):
        self.assertEqual(told[f'{room}.name'], run.config[room]['name'])
      self.assertNotIn('optimizer.learning_rate', told)

  @parameterized.parameters(
    ('empty', r'empty.*an empty folder'),
    ('unfinished', r'unfinished.*with summary.json, got one without'),
    ('missing', r'missing.*got no folder'),
    ('rowless', r'rowless/results.csv.*got 0 rows'),
  )
  def test_invalid_folders_are_refused_before_anything_is_written(
    self, name, message
  ):
    top = pathlib.Path(tempfile.mkdtemp())
    for each in ('empty', 'unfinished', 'rowless'):
      (top / each).mkdir()
    (top / 'rowless' / 'results.csv').write_text('run,status\n')
    manifest = (_folders()[0] / 'manifest.json').read_text()
    (top / 'unfinished' / 'manifest.json').write_text(manifest)

    with self.assertRaisesRegex(ValueError, message):
      tables.read([_folders()[0], top / name])

  def test_the_command_refuses_before_it_writes(self):
    top = pathlib.Path(tempfile.mkdtemp())
    (top / 'empty').mkdir()
    words = (str(top / 'empty'), f'--out={top}/out')
    done = small.python('-m', 'tools.report', '--html', *words)

    self.assertEqual(done.returncode, 1)
    self.assertIn('Refused', done.stderr)
    self.assertIn('empty folder', done.stderr)
    self.assertFalse((top / 'out').exists())


class PageTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    out = pathlib.Path(tempfile.mkdtemp())
    cls.path = report.write_page([*_folders(), _sweep()], out / 'new')
    cls.text = cls.path.read_text()
    cls.parsed = _Parser()
    cls.parsed.feed(cls.text)

  def test_figures_and_diagnosis_of_the_runs_are_on_the_page(self):
    headings = set(self.parsed.texts['h2'])
    figures = {'Accuracy', 'Accuracy-iterations', 'Staleness', 'Waiting'}
    self.assertContainsSubset(figures | {'Bandwidth', 'Runs'}, headings)
    for kind in ('Links-', 'Batches-', 'Timeline-', f'Sweep {_sweep()}'):
      found = [each for each in headings if each.startswith(kind)]
      self.assertNotEmpty(found, kind)
    drawn = [h for h in headings if not h.startswith(('Diag', 'Runs', 'Sweep'))]
    self.assertEqual(self.parsed.counts['svg'], len(drawn))
    for folder in _folders():
      for each in diagnosing.diagnose_run(analysis.read(folder)):
        self.assertIn(each.sentence, self.parsed.texts['p'])

  def test_tables_have_the_values_of_the_runs(self):
    cells = self.parsed.texts['td']
    for folder in _folders():
      self.assertIn(str(folder), cells)
      summary = analysis.read(folder).summary
      self.assertIn(f'{summary["time_s"]:.6g}', cells)

  def test_the_page_loads_nothing_and_runs_no_script(self):
    self.assertFalse(
      {'script', 'img', 'link', 'iframe'} & self.parsed.counts.keys()
    )
    for name, value in self.parsed.attributes:
      self.assertFalse(name.startswith('on'), name)
      if name in ('src', 'href', 'xlink:href'):
        self.assertStartsWith(value, '#')
    self.assertIn("default-src 'none'", self.text)

  def test_the_same_runs_give_the_same_page(self):
    again = report.write_page([*_folders(), _sweep()], tempfile.mkdtemp())
    self.assertEqual(again.read_text(), self.text)

  def test_a_sweep_without_ended_runs_has_its_table_alone(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / 'results.csv').write_text('run,status\na,failed\n')
    text = report.write_page([folder], folder / 'out').read_text()
    self.assertIn('<td>failed</td>', text)
    self.assertNotIn('<svg', text)


class _Parser(parser.HTMLParser):
  """Elements of a page: their numbers, texts and attributes."""

  def __init__(self):
    super().__init__()
    self.counts, self.attributes = collections.Counter(), []
    self.texts, self._open = collections.defaultdict(list), []

  def handle_starttag(self, tag, attrs):
    self.counts[tag] += 1
    self.attributes += attrs
    self._open.append(tag)
    self.texts[tag].append('')

  def handle_endtag(self, tag):
    while self._open and self._open.pop() != tag:
      pass

  def handle_data(self, data):
    if self._open:
      self.texts[self._open[-1]][-1] += data


if __name__ == '__main__':
  absltest.main()
