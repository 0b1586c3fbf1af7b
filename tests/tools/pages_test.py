"""Tests for tools/pages: content of a page, and its behaviour in a browser."""

import csv
import functools
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np
from absl.testing import absltest, parameterized
from matplotlib import image

from tests.support import browser, requires, small, sums
from tools import diagnose
from tools.pages import page, series, sources
from tools.reading import records

_ROOT = pathlib.Path(__file__).parents[2]
_HOSTILE = '<img src=x onerror=boom()> & </script><b>'
_WIDTHS = (1280, 390)
_LEDGER = """# Published claims

| confirmed | refuted |
| --- | --- |
| 1 | 1 |

## Family

### First entry

| claim | paper | ours | verdict |
| --- | --- | --- | --- |
| a gain | 0.5 | 0.6 (0.5 to 0.7), n = 6 | **confirmed** |
| another |  | 3 | **refuted**: it is not |
"""


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
def _page():
  out = pathlib.Path(tempfile.mkdtemp())
  return page.write(sources.read([*_folders(), _accounting(), _sweep()]), out)


@functools.cache
def _accounting():
  folder = pathlib.Path(tempfile.mkdtemp())
  (folder / 'RESULTS.md').write_text(_LEDGER)
  return folder


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


def _data(text):
  """Returns the data of a page, parsed from JSON."""
  found = re.search(r'<script id="data"[^>]*>(.*?)</script>', text, re.DOTALL)
  return json.loads(found[1])


class SourcesTest(parameterized.TestCase):
  def test_a_sweep_has_its_table_and_the_runs_that_have_ended(self):
    content = sources.read([_sweep()])

    (table,) = content.tables
    self.assertEqual(table.rows[0], ('one', 'finished', 0, 'inf', 0.5, 10))
    self.assertEqual(table.rows[1], ('two', 'failed', 10, '3', None, None))
    self.assertEqual(table.runs, [0, None])
    self.assertNotIn('bytes', table.seen)
    self.assertEqual([name for name, _ in content.runs], ['one'])

  def test_stored_results_have_a_row_for_each_claim(self):
    (table,) = sources.read([_accounting()]).tables

    self.assertEqual(
      table.columns, ['entry', 'claim', 'paper', 'ours', 'verdict']
    )
    expected = [
      ('First entry', 'a gain', 0.5, '0.6 (0.5 to 0.7), n = 6', 'confirmed'),
      ('First entry', 'another', None, 3, 'refuted: it is not'),
    ]
    self.assertEqual(list(table.rows), expected)

  def test_counts_of_verdicts_are_those_of_the_claims(self):
    folder = _ROOT / 'results'
    lines = (folder / 'RESULTS.md').read_text().splitlines()
    names, counts = (
      [part.strip() for part in line.strip('|').split('|')][1:]
      for line in lines
      if line.startswith(('| evidence | confirmed', '| all |'))
    )

    (table,) = sources.read([folder]).tables
    found = [str(row[-1]).partition(':')[0] for row in table.rows]
    self.assertEqual(
      {name: found.count(name) for name in names},
      dict(zip(names, map(int, counts), strict=True)),
    )

  def test_names_of_runs_have_the_fields_in_which_they_differ(self):
    content = sources.read(_folders())

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
    ('claimless', r'claimless/RESULTS.md.*tables of claims, got none'),
  )
  def test_invalid_folders_are_refused_before_anything_is_written(
    self, name, message
  ):
    top = pathlib.Path(tempfile.mkdtemp())
    for each in ('empty', 'unfinished', 'rowless', 'claimless'):
      (top / each).mkdir()
    (top / 'rowless' / 'results.csv').write_text('run,status\n')
    (top / 'claimless' / 'RESULTS.md').write_text('# Published claims\n')
    manifest = (_folders()[0] / 'manifest.json').read_text()
    (top / 'unfinished' / 'manifest.json').write_text(manifest)

    with self.assertRaisesRegex(ValueError, message):
      sources.read([_folders()[0], top / name])

  def test_the_command_refuses_before_it_writes(self):
    top = pathlib.Path(tempfile.mkdtemp())
    (top / 'empty').mkdir()
    done = subprocess.run(
      [
        *(sys.executable, '-m', 'tools.report', '--html'),
        *(str(top / 'empty'), f'--out={top}/out'),
      ],
      cwd=_ROOT,
      capture_output=True,
      text=True,
    )

    self.assertEqual(done.returncode, 1)
    self.assertIn('Refused', done.stderr)
    self.assertIn('empty folder', done.stderr)
    self.assertFalse((top / 'out').exists())


class SeriesTest(parameterized.TestCase):
  def test_the_series_of_a_run_equal_its_files(self):
    batches, forest = map(records.load, _folders()[1:])
    shown = series.describe_run('batches', batches)

    rows = [row for row in batches.rows if row['accuracy'] is not None]
    times = [row['time'] for row in rows]
    drawn = shown['figures']['accuracy']
    np.testing.assert_allclose(drawn['time'], times, rtol=1e-5)
    percents = [100 * row['accuracy'] for row in rows]
    np.testing.assert_allclose(drawn['values'], percents, rtol=1e-5)
    self.assertEqual([*shown['figures']], ['accuracy'])
    self.assertEqual(shown['waiting'].keys(), batches.seconds.keys())
    self.assertAlmostEqual(sum(shown['staleness']['shares']), 1, places=4)
    events = [
      e for e in records.read_events(batches.path) if e['event'] == 'push'
    ]
    for line in shown['batches']:
      sizes = [e['examples'] for e in events if e['worker'] == line['worker']]
      self.assertEqual(line['examples'][0], sizes[0])
      self.assertEqual(line['examples'][-1], sizes[-1])
      self.assertLessEqual(len(line['time']), len(sizes))
    bars = shown['timeline']['phases'].values()
    spans = sum(len(each['start']) for each in bars)
    self.assertEqual(spans, len(batches.spans))

    said = subprocess.run(
      [sys.executable, '-m', 'tools.diagnose', batches.path],
      cwd=_ROOT,
      capture_output=True,
      text=True,
      check=True,
    )
    self.assertEqual(shown['diagnosis'], said.stdout.splitlines())

    links = series.describe_run('forest', forest)['links']
    self.assertLen(links['nodes'], 4)  # 3 workers and the switch between them.
    self.assertAlmostEqual(sum(t['share'] for t in links['trees']), 1, places=4)
    self.assertTrue(links['links'])
    self.assertIsNone(shown['links'])

  def test_a_run_that_cannot_be_diagnosed_says_so(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    alone = _ran(
      folder / 'alone', cluster__workers=1, cluster__speed__slowdown=(1.0,)
    )
    (found,) = series.describe_run('alone', records.load(alone))['diagnosis']
    self.assertRegex(found, 'No diagnosis: .*: expected at least 2 to compare')

  @parameterized.parameters((0, 5), (1, 5), (5, 5), (6, 5), (1000, 600))
  def test_thinned_points_keep_the_ends(self, count, most):
    kept = series.thin(count, most)

    self.assertLen(kept, min(count, most))
    if count:
      self.assertEqual((kept[0], kept[-1]), (0, count - 1))

  def test_bins_of_staleness_hold_all_pushes(self):
    run = records.load(_folders()[0])
    counts = {0: 10, 599: 20, 5000: 70}
    shown = series.describe_run('', run._replace(staleness=counts))['staleness']

    self.assertEqual(shown['width'], 9)
    self.assertEqual(shown['versions'], [0, 594, 4995])
    self.assertEqual(shown['shares'], [0.1, 0.2, 0.7])


class PageTest(absltest.TestCase):
  def test_names_and_configs_cannot_end_the_script_they_are_in(self):
    text = _page().read_text()

    self.assertNotIn('<img', text.split('id="data"')[1].split('</script>')[0])
    names = [run['name'] for run in _data(text)['runs']]
    self.assertIn(str(_folders()[0]), names)

  def test_twenty_runs_are_of_a_size_that_opens_at_once(self):
    one = len(page.render(sources.read(_folders()[:1])))
    three = len(page.render(sources.read(_folders())))

    self.assertLess(three, 6e6)
    self.assertLess((three - one) / 2, 0.4e6)  # Bytes of a run.


class BrowserTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    requires.browser()
    cls.browser = browser.Browser()
    cls.addClassCleanup(cls.browser.close)

  def _column(self, table, column):
    return self.browser.run(
      f'[...document.querySelectorAll("section.table")][{table}]'
      f'.querySelectorAll("tbody tr").values().map(row => '
      f'row.children[{column}].textContent).toArray()'
    )

  def _filter(self, table, text):
    self.browser.run(
      f'(() => {{ const field = document.querySelectorAll("input[type=search]")'
      f'[{table}]; field.value = {json.dumps(text)}; '
      'field.dispatchEvent(new Event("input")); })()'
    )

  def _sort(self, table, column):
    self.browser.run(
      f'document.querySelectorAll("section.table")[{table}]'
      f'.querySelectorAll("th button")[{column}].click()'
    )

  def test_rows_are_sorted_filtered_and_chosen_without_an_error(self):
    self.browser.show(1280, 900, dark=False)
    self.browser.open(_page())
    tables = sources.read([_sweep(), _accounting(), *_folders()]).tables

    self.assertEqual(self._column(1, 0), ['one', 'two'])
    self._sort(1, 2)
    self.assertEqual(self._column(1, 2), ['0', '10'])
    self._sort(1, 2)
    self.assertEqual(self._column(1, 2), ['10', '0'])
    self._sort(1, 4)  # Unknown values come last.
    self.assertEqual(self._column(1, 4), ['0.5', ''])
    self._sort(1, 4)
    self.assertEqual(self._column(1, 4), ['0.5', ''])
    for text, left in (
      ('FAIL', ['two']),
      ('seed<5', ['one']),
      ('seed>=0 status=finished', ['one']),
      ('final_accuracy<1', ['one']),
      ('status!=failed seed>3', []),
      ('', ['one', 'two']),
    ):
      self._filter(1, text)
      self.assertCountEqual(self._column(1, 0), left, text)
    self._filter(0, 'refuted')
    self.assertEqual(self._column(0, 1), ['another'])

    runs = [row[0] for row in tables[2].rows]
    for place, name in enumerate(runs):
      self.browser.run(
        'document.querySelectorAll("section.table")[2]'
        f'.querySelectorAll("td button")[{place}].click()'
      )
      title = self.browser.run('document.querySelector("#run h2").textContent')
      self.assertEqual(title, f'Run {name}')
      verdicts = self.browser.run(
        '[...document.querySelectorAll("#run li")].map((v) => v.textContent)'
      )
      folder = _folders()[place]
      found = diagnose.diagnose_run(folder)
      self.assertEqual(verdicts, diagnose.sentences(found))
      # All charts, not only those in sight.
      self.browser.run('redraw(true)')
      missing = self.browser.run(
        'document.querySelectorAll("#run .chart:not(.js-plotly-plot)").length'
      )
      self.assertEqual(missing, 0)
      titles = self.browser.run(
        '[...document.querySelectorAll(".modebar-btn")]'
        '.map((button) => button.dataset.title)'
      )
      self.assertNotIn('Share chart...', titles)  # It would need a network.
    options = '[...document.querySelectorAll("#run option")].map(o => o.value)'
    trees = self.browser.run(options)
    self.assertEqual(trees[:2], ['-1', '0'])
    for tree in trees:
      self.browser.run(
        '(() => { const pick = document.querySelector("#run select"); '
        f'pick.value = {tree}; pick.dispatchEvent(new Event("change")); }})()'
      )
    self.assertEqual(self.browser.problems, [])
    self.assertFalse(self.browser.run('!!document.querySelector("img, td b")'))

  def test_pictures_have_the_width_and_theme_of_the_flags(self):
    out = pathlib.Path(tempfile.mkdtemp())
    for width in _WIDTHS:
      for dark in (False, True):
        self.browser.show(width, 900, dark=dark)
        self.browser.open(_page())
        self.browser.until('document.querySelector(".js-plotly-plot")')
        file = out / f'{width}-{"dark" if dark else "light"}.png'
        file.write_bytes(self.browser.picture())
        pixels = image.imread(file)[..., :3]

        self.assertEqual(pixels.shape[:2], (900, width))
        self.assertEqual(np.median(pixels) < 0.5, dark)
        wide = self.browser.run('document.documentElement.scrollWidth')
        self.assertLessEqual(wide, width)
    self.assertEqual(self.browser.problems, [])


if __name__ == '__main__':
  absltest.main()
