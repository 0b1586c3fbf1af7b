"""Tests of figures and pages of runs, from folders to files."""

import collections
import functools
import json
import pathlib
import shutil
import tempfile
from html import parser
from xml.etree import ElementTree

import numpy as np
from absl.testing import absltest, parameterized

import analysis
from analysis import diagnosing, report, runs
from outputs.files import RunFiles
from outputs.manifests import manifest
from tests.support import small, sums

_RUNS = (('bsp', 0), ('bsp', 1), ('elastic', 0))
_CURVES = {'accuracy', 'accuracy-iterations', 'accuracy-examples'}
_TOGETHER = _CURVES | {
  *('staleness', 'waiting', 'breakdown', 'gaps', 'bandwidth')
}
_HOSTILE = '<img src=x onerror=boom()> & </script><b>'


def _folder():
  return pathlib.Path(tempfile.mkdtemp())


@functools.cache
def _run_folder(scheme, seed):
  """Returns the folder of a small run, which tests must not change."""
  run, _ = small.execute(sync__name=scheme, seed=seed, eval_every=0.25)
  return pathlib.Path(run.files.workdir)


@functools.cache
def _timing_folder(**changed):
  """Returns the folder of a timing-only run, which tests must not change."""
  run = small.build(small.timing(epochs=8.0, **changed))
  run()
  return pathlib.Path(run.files.workdir)


def _forest_folder():
  return _timing_folder(route__name='forest', **sums.links(1e5))


@functools.cache
def _sweep():
  """Returns a sweep of two schemes, of which one run has not begun."""
  folder = _folder() / 'sweep'
  names = {}
  for scheme, seed in _RUNS:
    name = f'name={scheme},seed={seed}-0a1b2c3d'
    shutil.copytree(_run_folder(scheme, seed), folder / name)
    names[f'{scheme}{seed}'] = name
  names['missing'] = 'name=elastic,seed=1-4e5f6a7b'
  (folder / 'sweep.json').write_text(json.dumps({'format': 1, 'runs': names}))
  return folder


def _copy(scheme='elastic', seed=0, without=()):
  folder = _folder() / 'copy'
  shutil.copytree(_run_folder(scheme, seed), folder)
  for name in without:
    (folder / name).unlink()
  return folder


def _rows(folder):
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


def _draw(folders, **options):
  """Returns the names of the figures of some runs, without suffix."""
  out = _folder() / 'new' / 'figures'
  files = report.write_pictures(report.read(folders).groups, out, **options)
  names = [file.stem for file in files]
  assert sorted(files) == sorted(out.iterdir()), files
  return names


def _write_run(num_workers):
  """Writes a run's folder, in which workers wait and compute alternately."""
  files = RunFiles(f'{tempfile.mkdtemp()}/run')
  config = small.config(
    cluster__workers=num_workers, cluster__speed__slowdown=(1.0,)
  )
  files.claim(
    manifest(config.to_dict(), {}, measures={}, prefetched_iterations=2)
  )
  files.begin(num_workers=num_workers)
  for second in range(40):
    for worker in range(num_workers):
      files.rows.span(worker, 'compute', second, second + 0.5, 16)
      files.rows.span(worker, 'wait', second + 0.5, second + 1, 16)
  blank = dict.fromkeys(('accuracy', 'loss', 'learning_rate'))
  row = {'kind': 'log', 'time': 40.0, 'iterations': 40 * num_workers}
  files.rows.metric({**blank, 'examples': 4000, 'waiting_share': None, **row})
  files.close(
    {'ended': 'finished', 'staleness': {}, 'worker_seconds': {'wait': 20.0}}
  )
  return files.workdir


class DataTest(parameterized.TestCase):
  def test_accuracy_is_that_of_the_evaluations(self):
    folder = _run_folder('bsp', 0)
    rows = [row for row in _rows(folder) if row['kind'] == 'evaluation']
    found = report.measured(analysis.read(folder))
    self.assertGreater(len(rows), 4)
    np.testing.assert_array_equal(found.x, [row['time'] for row in rows])
    np.testing.assert_array_equal(found.y, [row['accuracy'] for row in rows])

  def test_a_timeline_has_the_spans_that_overlap_its_window(self):
    folder = _run_folder('elastic', 0)
    run = analysis.read(folder)
    start, end = 0.3, 0.6
    expected = []
    for event in json.loads((folder / 'trace.json').read_text()):
      if event['ph'] == 'X':
        begun, lasts = event['ts'] / 1e6, event['dur'] / 1e6
        if begun + lasts > start and begun < end:
          expected.append((event['tid'], event['name'], begun, begun + lasts))
    found = report.make_timeline(run, (start, end))
    spans = zip(*(each.tolist() for each in found[:4]), strict=True)
    self.assertNotEmpty(expected)
    self.assertCountEqual(spans, expected)
    self.assertLess(len(expected), len(run.spans))

  def test_the_window_is_the_middle_of_the_run(self):
    run = analysis.read(_run_folder('bsp', 0))
    end_s, iterations = run.rows[-1]['time'], run.rows[-1]['iterations']
    start, end = report.find_window(run)
    self.assertAlmostEqual(start + end, end_s)
    self.assertAlmostEqual(end - start, min(16 * 3 * end_s / iterations, end_s))

  def test_of_many_workers_some_are_in_the_timeline(self):
    run = analysis.read(_write_run(num_workers=200))
    found = report.make_timeline(run, report.find_window(run))
    self.assertLen(set(found.workers), 64)
    self.assertEqual((found.workers[0], found.workers[-1]), (0, 199))
    self.assertEqual(set(found.worker.tolist()), set(found.workers))

  def test_batches_are_those_of_the_pushes(self):
    run, _ = small.execute(
      sync__name='bsp',
      batching__name='lb_bsp',
      batching__lb_bsp__predictor__name='ema',
      batching__lb_bsp__threshold=0.0,
    )
    found = report.find_batches(analysis.read(run.files.workdir))
    for worker in range(3):
      expected = [
        row['examples']
        for row in small.rows(run, 'events.jsonl')
        if row['event'] == 'push' and row['worker'] == worker
      ]
      np.testing.assert_array_equal(found[worker][1], expected)
    fixed = analysis.read(_run_folder('bsp', 0))
    self.assertEqual(report.find_batches(fixed), {})

  def test_several_numbers_of_workers_have_speed_ups(self):
    folders = [
      _timing_folder(
        cluster__workers=count, cluster__speed__slowdown=(1.0,) * count
      )
      for count in (2, 4)
    ]
    found = [analysis.read(folder) for folder in folders]
    (ratios,) = report.speed_ups({'bsp': found}).values()
    # Links are unlimited, workers equal: they share nothing.
    self.assertEqual(ratios.keys(), {2, 4})
    np.testing.assert_allclose([ratios[2], ratios[4]], [[2.0], [4.0]])
    self.assertIn('speed-up', _draw(folders))

  def test_axes_say_whose_time_it_is(self):
    run = analysis.read(_run_folder('bsp', 0))
    virtual = [
      picture.figure.axes[-1].get_xlabel()
      for picture in report.draw_run('a', 'a', run)
    ]
    self.assertEqual(virtual, ['virtual time (s)'])
    run.manifest['config']['cluster']['runtime'] = 'distributed'
    real = [
      picture.figure.axes[-1].get_xlabel()
      for picture in report.draw_run('a', 'a', run)
    ]
    self.assertEqual(real, ['time (s)'])
    both = [run, analysis.read(_run_folder('bsp', 0))]
    self.assertEqual(runs.time_label(both), 'time (s)')


class FiguresTest(parameterized.TestCase):
  def test_seeds_of_a_sweep_are_one_line_with_the_name_of_its_scheme(self):
    content = report.read([_sweep()])
    self.assertEqual(content.missing, 1)
    counts = {label: len(group) for label, group in content.groups.items()}
    self.assertEqual(counts, {'bsp': 2, 'elastic': 1})
    pictures = {each.name: each for each in report.draw_groups(content.groups)}
    self.assertEqual(pictures.keys(), _TOGETHER)
    (axes,) = pictures['accuracy'].figure.axes
    self.assertEqual(
      [line.get_label() for line in axes.lines], ['bsp', 'elastic']
    )
    self.assertLen(axes.collections, 1)  # The band of the two seeds.
    self.assertEqual(axes.get_xlabel(), 'virtual time (s)')
    seeds = [_run_folder('bsp', seed) for seed in (0, 1)]
    ends = [_rows(folder)[-1]['accuracy'] for folder in seeds]
    self.assertAlmostEqual(axes.lines[0].get_ydata()[-1], 50 * sum(ends))

  def test_waiting_is_the_share_of_all_seeds_together(self):
    groups = report.read([_sweep()]).groups
    pictures = {each.name: each for each in report.draw_groups(groups)}
    summaries = [run.summary['worker_seconds'] for run in groups['bsp']]
    waited = sum(each['wait'] for each in summaries)
    share = waited / sum(sum(each.values()) for each in summaries)
    texts = [
      each.get_text() for each in pictures['waiting'].figure.axes[0].texts
    ]
    self.assertIn(f'{share:.1%} waiting', texts)

  def test_a_run_has_figures_of_its_own(self):
    drawn = _draw([_run_folder(*run) for run in _RUNS])
    own = {'timeline-bsp-seed-0', 'timeline-bsp-seed-1', 'timeline-elastic'}
    self.assertCountEqual(drawn, _TOGETHER | own)
    drawn = _draw([_run_folder(*run) for run in _RUNS], of_each=1)
    self.assertIn('timeline-bsp-seed-0', drawn)
    self.assertNotIn('timeline-bsp-seed-1', drawn)

  def test_an_allreduce_has_links_and_a_forest(self):
    drawn = _draw([_forest_folder()])
    self.assertContainsSubset({'links-bsp', 'forest-bsp'}, drawn)

  def test_a_run_given_twice_has_two_timelines(self):
    drawn = _draw([_run_folder('bsp', 0)] * 2)
    self.assertLen([name for name in drawn if name.startswith('timeline')], 2)

  def test_a_run_without_timeline_and_events_is_drawn(self):
    run, _ = small.execute(
      outputs__timeline=False, outputs__events=False, epochs=0.5
    )
    with self.assertLogs(level='WARNING') as logs:
      drawn = _draw([run.files.workdir])
    self.assertCountEqual(drawn, _TOGETHER - {'gaps'})
    self.assertIn('omitted from gaps', '\n'.join(logs.output))

  def test_an_interrupted_run_is_drawn_up_to_where_its_files_are_cut(self):
    folder = _copy(without=['summary.json'])
    for name in 'trace.json', 'metrics.jsonl':
      text = (folder / name).read_text()
      (folder / name).write_text(text[: int(0.7 * len(text))])
    with self.assertLogs(level='WARNING') as logs:
      drawn = _draw([folder])
    self.assertCountEqual(drawn, {*_CURVES, 'gaps', 'timeline-elastic'})
    self.assertIn(f'{folder}: drawn up to its last row', logs.output[0])
    self.assertIn(f'{folder}: omitted from staleness', logs.output[1])

  def test_an_interrupted_seed_is_left_out_of_sums_alone(self):
    with self.assertLogs(level='WARNING'):
      drawn = _draw([_run_folder('bsp', 0), _copy('bsp', 1, ['summary.json'])])
    timelines = {'timeline-bsp-seed-0', 'timeline-bsp-seed-1'}
    self.assertCountEqual(drawn, {*_TOGETHER, *timelines})

  def test_a_run_that_did_nothing_is_left_out_by_name(self):
    names = ['summary.json', 'trace.json', 'metrics.jsonl', 'events.jsonl']
    folder = _copy(without=names)
    with self.assertLogs(level='WARNING') as logs:
      self.assertEmpty(_draw([folder]))
    output = '\n'.join(logs.output)
    self.assertIn(f'{folder}: omitted from accuracy', output)
    self.assertIn(f'{folder}: has no timeline', output)


class PageTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    hostile = _folder() / _HOSTILE.replace('/', ':')
    shutil.copytree(_timing_folder(sync__name='asp'), hostile)
    cls.folders = [hostile, _forest_folder(), _sweep()]
    cls.content = report.read(cls.folders)
    cls.path = cls.write()
    cls.text = cls.path.read_text()
    cls.parsed = _Parser()
    cls.parsed.feed(cls.text)

  @classmethod
  def write(cls):
    return report.write_page(cls.content, _folder() / 'new')

  def test_every_heading_has_a_sentence_below(self):
    blocks = [
      name for name in self.parsed.order if name in ['h1', 'h2', 'h3', 'p']
    ]
    self.assertEqual(blocks[0], 'h1')
    for place, name in enumerate(blocks):
      if name in ('h2', 'h3'):
        self.assertEqual(blocks[place + 1], 'p')
    headings = {*self.parsed.texts['h2'], *self.parsed.texts['h3']}
    self.assertContainsSubset({'Table', 'Accuracy', 'Staleness'}, headings)
    for kind in ('Links of ', 'Forest of ', 'Timeline of ', 'Diagnosis of '):
      self.assertTrue([each for each in headings if each.startswith(kind)])

  def test_no_heading_or_label_has_a_hash(self):
    for hash_ in ('0a1b2c3d', '4e5f6a7b'):
      self.assertNotIn(hash_, self.text)

  def test_the_diagnosis_of_a_run_is_on_the_page(self):
    for verdict in diagnosing.diagnose_run(analysis.read(_forest_folder())):
      self.assertIn(verdict.sentence, self.parsed.texts['p'])

  def test_the_table_has_the_values_of_the_runs(self):
    cells = self.parsed.texts['td']
    for group in self.content.groups.values():
      for run in group:
        self.assertIn(f'{run.summary["time_s"]:.6g}', cells)
    names = self.parsed.texts['th']
    self.assertContainsSubset({'sync', 'route', 'seed', 'ended'}, names)
    self.assertNotIn('workers', names)

  def test_each_figure_is_a_picture_of_its_own_with_its_labels(self):
    starts = self.text.split('<svg')[1:]
    self.assertGreater(len(starts), 10)
    for each in starts:
      text = '<svg' + each[: each.index('</svg>')] + '</svg>'
      root = ElementTree.fromstring(text)
      self.assertEqual(root.tag, '{http://www.w3.org/2000/svg}svg')
    words = self.parsed.texts['text']
    self.assertContainsSubset(
      {'virtual time (s)', 'mean and range of the seeds'}, words
    )

  def test_the_page_loads_nothing_and_runs_no_script(self):
    self.assertFalse(
      {'script', 'img', 'link', 'iframe', 'image'} & self.parsed.counts.keys()
    )
    for name, value in self.parsed.attributes:
      self.assertFalse(name.startswith('on'), name)
      if name in ('src', 'href', 'xlink:href'):
        self.assertStartsWith(value, '#')
      if not name.startswith('xmlns'):
        self.assertNotIn('//', value or '')
    self.assertIn("default-src 'none'", self.text)

  def test_the_same_runs_give_the_same_page(self):
    self.assertEqual(self.write().read_text(), self.text)


class CommandTest(absltest.TestCase):
  def _run(self, *arguments):
    return small.python('-m', 'tools.report', *arguments)

  def test_a_sweep_becomes_pdf_figures(self):
    out = _folder()
    done = self._run(str(_sweep()), '--format=pdf', f'--out={out}')
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertContainsSubset(
      {f'{name}.pdf' for name in _TOGETHER},
      {path.name for path in out.iterdir()},
    )
    for path in out.iterdir():
      self.assertEqual(path.read_bytes()[:5], b'%PDF-')

  def test_a_folder_without_a_run_writes_nothing_of_the_others(self):
    out = _folder() / 'out'
    done = self._run(str(_run_folder('bsp', 0)), '/no/such', f'--out={out}')
    self.assertEqual(done.returncode, 1)
    message = 'Refused: /no/such: expected a run with manifest.json, got no'
    self.assertEqual(done.stderr.strip(), f'{message} folder.')
    self.assertFalse(out.exists())


class _Parser(parser.HTMLParser):
  """Elements of a page: their order, numbers, texts and attributes."""

  def __init__(self):
    super().__init__()
    self.counts, self.attributes = collections.Counter(), []
    self.texts, self.order = collections.defaultdict(list), []
    self._open = []

  def handle_starttag(self, tag, attrs):
    self.counts[tag] += 1
    self.order.append(tag)
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
