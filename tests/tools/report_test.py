"""Tests for tools/report.py and records.py, on small and on planted runs."""

import functools
import json
import pathlib
import shutil
import tempfile

import numpy as np
from absl.testing import absltest, parameterized
from matplotlib import image

from analysis import records
from analysis.drawing import curves, measures, timeline
from outputs.files import RunFiles
from outputs.manifests import manifest
from tests.support import small
from tools import report

_RUNS = (('bsp', 0), ('bsp', 1), ('elastic', 0))
_ACCURACIES = {'accuracy', 'accuracy-iterations', 'accuracy-examples'}
_TOGETHER = _ACCURACIES | {'staleness', 'waiting', 'breakdown', 'gaps'}
_TOGETHER |= {'bandwidth'}
_ROWS = (
  {'kind': 'log', 'time': 1.0, 'iterations': 200, 'examples': 100},
  {'kind': 'log', 'time': 40.0, 'iterations': 8000, 'examples': 4000},
)


@functools.cache
def _run_folder(scheme, seed):
  """Returns the folder of a small run, which tests must not change."""
  config = small.config(sync__name=scheme, seed=seed, eval_every=0.25)
  run = small.build(config)
  run()
  return run.files.workdir


def _copy(scheme='elastic', seed=0, without=()):
  folder = pathlib.Path(tempfile.mkdtemp()) / 'copy'
  shutil.copytree(_run_folder(scheme, seed), folder)
  for name in without:
    (folder / name).unlink()
  return folder


def _jsonl(file):
  return [json.loads(line) for line in file.read_text().splitlines()]


def _cut(file, share):
  """Cuts a file in the middle of a line; returns the lines left whole."""
  text = file.read_text()
  end = text.index('"', int(share * len(text)))
  file.write_text(text[:end])
  return text[:end].splitlines()[:-1]


def _write_run(workers):
  """Writes a run's folder, in which workers wait and compute alternately."""
  files = RunFiles(f'{tempfile.mkdtemp()}/run')
  config = small.config(
    cluster__workers=workers, cluster__speed__slowdown=(1.0,)
  )
  files.claim(
    manifest(config.to_dict(), {}, measures={}, prefetched_iterations=2)
  )
  files.begin(num_workers=workers)
  for second in range(40):
    for worker in range(workers):
      middle = second + 0.1 + 0.8 * worker / workers
      files.rows.span(worker, 'compute', second, middle, 16)
      files.rows.span(worker, 'wait', middle, second + 1, 16)
  for row in _ROWS:
    blank = dict.fromkeys(('accuracy', 'loss', 'learning_rate'))
    files.rows.metric({**blank, 'waiting_share': None, **row})
  files.close(
    {
      'ended': 'finished',
      'staleness': {},
      'worker_seconds': {'compute': 20.0 * workers, 'wait': 20.0 * workers},
    }
  )
  return files.workdir


class LoadTest(parameterized.TestCase):
  @parameterized.parameters(*_RUNS)
  def test_a_record_has_the_content_of_the_files(self, scheme, seed):
    folder = _run_folder(scheme, seed)
    run = records.load(folder)

    summary = json.loads((folder / 'summary.json').read_text())
    self.assertEqual(run.ended, 'finished')
    self.assertEqual(run.config['sync']['name'], scheme)
    self.assertEqual(list(run.rows), _jsonl(folder / 'metrics.jsonl'))
    spent = {p: s for p, s in summary['worker_seconds'].items() if s}
    self.assertEqual(run.seconds, spent)
    counts = {str(stale): count for stale, count in run.staleness.items()}
    self.assertEqual(counts, summary['staleness'])

  @parameterized.parameters(*_RUNS)
  def test_the_spans_are_those_that_overlap_the_window(self, scheme, seed):
    folder = _run_folder(scheme, seed)
    run = records.load(folder)

    start, end = run.window
    expected = []
    for event in json.loads((folder / 'trace.json').read_text()):
      if event['ph'] == 'X':
        begun, lasts = event['ts'] / 1e6, event['dur'] / 1e6
        if begun + lasts > start and begun < end:
          expected.append((event['tid'], event['name'], begun, begun + lasts))
    self.assertNotEmpty(expected)
    self.assertCountEqual(run.spans, expected)

  def test_an_interrupted_run_is_read_up_to_where_its_files_are_cut(self):
    folder = _copy(without=['summary.json'])
    rows = _cut(folder / 'metrics.jsonl', 0.6)
    lines = _cut(folder / 'trace.json', 0.3)

    run = records.load(folder)

    self.assertIsNone(run.ended)
    self.assertEqual((run.staleness, run.seconds), ({}, {}))
    self.assertEqual(list(run.rows), [json.loads(row) for row in rows])
    events = json.loads(''.join(lines).removesuffix(',') + ']')
    start, end = run.window
    ends = [e['ts'] + e['dur'] for e in events if e['ph'] == 'X']
    ends = [each / 1e6 for each in ends if start < each / 1e6]
    self.assertLess(max(ends), end)
    self.assertLen(run.spans, len(ends))

  def test_a_run_that_has_only_begun_can_be_read(self):
    names = ['summary.json', 'trace.json', 'metrics.jsonl']
    run = records.load(_copy(without=names))

    self.assertEqual((run.rows, run.spans), ((), ()))

  def test_of_many_workers_some_are_shown(self):
    run = records.load(_write_run(workers=200))

    self.assertLen(set(run.workers), 64)
    self.assertEqual((run.workers[0], run.workers[-1]), (0, 199))
    self.assertEqual({span.worker for span in run.spans}, set(run.workers))


class RefusalTest(parameterized.TestCase):
  def test_a_folder_without_a_run_is_refused(self):
    with self.assertRaisesRegex(ValueError, r'expected a run .* no folder'):
      records.load('/no/such/folder')
    with self.assertRaisesRegex(ValueError, r'manifest.json, got a folder'):
      records.load(tempfile.mkdtemp())

  @parameterized.parameters(
    ('manifest.json', '{"config": {', r'manifest.json: expected a JSON'),
    ('manifest.json', '{}', r'manifest.json: .* config.seed, got {}'),
    ('metrics.jsonl', '{"kind"\n', r"line 1: .* got '{\"kind\"'"),
    ('metrics.jsonl', '[]\n', r'metrics.jsonl, line 1: expected a JSON object'),
    ('metrics.jsonl', '{"kind":"log"}\n', r'line 1: .* field time, got .*log'),
    ('trace.json', '[\n{"ph":"X","na', r'trace.json, line 2: expected a JSON'),
    (
      'trace.json',
      '[\n{"ph":"X","name":"wait","ts":0,"tid":0}\n]\n',
      r'trace.json, line 2: expected the field dur, got .*wait',
    ),
    ('summary.json', '{"ended": "finished"}', r'json: .* staleness, got'),
  )
  def test_a_broken_file_is_named(self, name, text, message):
    folder = _copy()
    (folder / name).write_text(text)
    with self.assertRaisesRegex(ValueError, message):
      records.load(folder)

  def test_a_broken_line_before_the_last_is_named_in_an_unfinished_run(self):
    folder = _copy(without=['summary.json'])
    file = folder / 'metrics.jsonl'
    first, *others = file.read_text().splitlines(keepends=True)
    file.write_text(''.join([first[:20] + '\n', *others]))
    with self.assertRaisesRegex(ValueError, r'metrics.jsonl, line 1: expected'):
      records.load(folder)


class CurveTest(parameterized.TestCase):
  def test_accuracy_is_that_of_the_evaluations(self):
    folder = _run_folder('bsp', 0)
    rows = _jsonl(folder / 'metrics.jsonl')
    rows = [row for row in rows if row['kind'] == 'evaluation']

    times, values = curves.measured(records.load(folder))

    self.assertGreater(len(rows), 4)
    np.testing.assert_array_equal(times, [row['time'] for row in rows])
    np.testing.assert_array_equal(values, [row['accuracy'] for row in rows])

  def test_the_median_is_of_the_lines_where_all_are(self):
    lines = [
      curves.Curve(np.array([0.0, 2.0, 4.0]), np.array([0.0, 2.0, 4.0])),
      curves.Curve(np.array([1.0, 3.0]), np.array([7.0, 9.0])),
      curves.Curve(np.array([0.0, 10.0]), np.array([5.0, 5.0])),
    ]
    times, values = curves.median(lines)
    np.testing.assert_array_equal(times, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(values, [5.0, 5.0, 5.0])

    times, values = curves.median(lines[:2])
    np.testing.assert_array_equal(values, [4.0, 5.0, 6.0])

  @parameterized.parameters(
    (100.0, 4000, 4, (49.2, 50.8)), (3.0, 8, 4, (0.0, 3.0)), (1.0, 0, 4, (0, 0))
  )
  def test_the_window_is_the_middle(self, end_s, iterations, workers, expected):
    rows = [{'time': 0.5, 'iterations': 1}]
    rows.append({'time': end_s, 'iterations': iterations})
    shown = records.find_window(rows, workers)
    np.testing.assert_allclose(shown, expected)

  def test_shares_are_of_all_seeds_together(self):
    folders = [_run_folder('bsp', 0), _run_folder('elastic', 0)]
    runs = [records.load(folder) for folder in folders]
    sums = [json.loads((f / 'summary.json').read_text()) for f in folders]

    pushes = sum(sum(each['staleness'].values()) for each in sums)
    fresh = sum(each['staleness']['0'] for each in sums)
    shares = report.shares(run.staleness for run in runs)
    self.assertAlmostEqual(shares[0], fresh / pushes)
    self.assertAlmostEqual(sum(shares.values()), 1)

    waited = sum(each['worker_seconds']['wait'] for each in sums)
    total = sum(sum(each['worker_seconds'].values()) for each in sums)
    shares = report.shares(run.seconds for run in runs)
    self.assertAlmostEqual(shares['wait'], waited / total)
    self.assertAlmostEqual(sum(shares.values()), 1)


class PictureTest(parameterized.TestCase):
  def _draw(self, folders):
    out = pathlib.Path(tempfile.mkdtemp()) / 'new' / 'pictures'
    runs = [records.load(folder) for folder in folders]
    drawn = report.draw(report.label_runs(runs), out)
    self.assertCountEqual(drawn, out.iterdir())
    for picture in drawn:
      self.assertEqual(picture.read_bytes()[:8], b'\x89PNG\r\n\x1a\n')
      pixels = image.imread(picture)
      self.assertTrue(np.isfinite(pixels).all())
      self.assertGreater(pixels[..., :3].std(), 0.03)
    return {picture.stem for picture in drawn}

  def test_every_picture_is_drawn(self):
    drawn = self._draw([_run_folder(*run) for run in _RUNS])
    timelines = ['bsp-seed-0', 'bsp-seed-1', 'elastic']
    self.assertEqual(
      drawn,
      _TOGETHER.union(f'timeline-{name}' for name in timelines),
    )

  def test_a_run_without_timeline_and_events_is_drawn(self):
    left_out = {'outputs__timeline': False, 'outputs__events': False}
    run = small.build(small.config(**left_out))
    run()
    with self.assertLogs(level='WARNING') as logs:
      drawn = self._draw([run.files.workdir])
    self.assertEqual(drawn, _TOGETHER - {'gaps'})
    self.assertIn('omitted from gaps.png', '\n'.join(logs.output))
    with self.assertRaisesRegex(ValueError, 'with config.outputs.events=False'):
      list(records.read_events(run.files.workdir))

  def test_several_numbers_of_workers_have_speed_ups(self):
    folders = []
    for workers in (2, 4):
      run = small.build(
        small.timing(
          cluster__workers=workers, cluster__speed__slowdown=(1.0,) * workers
        )
      )
      run()
      folders.append(run.files.workdir)
    runs = [records.load(folder) for folder in folders]
    (ratios,) = measures.speed_ups({'bsp': runs}).values()
    # Links are unlimited, workers equal: they share nothing.
    self.assertEqual(list(ratios), [2, 4])
    np.testing.assert_allclose(list(ratios.values()), [2.0, 4.0])
    self.assertIn('speed-up', self._draw(folders))

  def test_a_run_given_twice_has_two_timelines(self):
    drawn = self._draw([_run_folder('bsp', 0)] * 2)
    self.assertLen([name for name in drawn if name.startswith('timeline')], 2)

  def test_an_interrupted_run_is_drawn(self):
    folder = _copy(without=['summary.json'])
    for name in 'trace.json', 'metrics.jsonl':
      _cut(folder / name, 0.7)
    with self.assertLogs(level='WARNING') as logs:
      drawn = self._draw([folder])
    self.assertEqual(drawn, {*_ACCURACIES, 'gaps', 'timeline-elastic'})
    self.assertIn(f'{folder}: drawn up to its last row', logs.output[0])
    self.assertIn(f'{folder}: omitted from staleness.png', logs.output[1])
    self.assertIn(f'{folder}: omitted from waiting.png', logs.output[2])

  def test_an_interrupted_seed_is_left_out_of_sums_alone(self):
    with self.assertLogs(level='WARNING'):
      drawn = self._draw(
        [_run_folder('bsp', 0), _copy('bsp', 1, ['summary.json'])]
      )
    timelines = {'timeline-bsp-seed-0', 'timeline-bsp-seed-1'}
    self.assertEqual(drawn, {*_TOGETHER, *timelines})

  def test_one_curve_is_shown_whole_and_several_from_their_limit(self):
    times = np.arange(10.0)
    found = {
      str(last): [curves.Curve(times, np.minimum(times / 5, last))]
      for last in (0.9, 0.95)
    }
    for count, floor in ((1, 0.0), (2, 88.0)):
      shown = dict(list(found.items())[:count])
      (axes,) = curves.draw(shown, 'time').axes
      self.assertAlmostEqual(axes.get_ylim()[0], floor)

  def test_axes_say_whose_time_it_is(self):
    run = records.load(_run_folder('bsp', 0))
    (axes,) = timeline.draw('bsp', run).axes
    self.assertEqual(axes.get_xlabel(), 'virtual time (s)')
    cluster = {**run.config['cluster'], 'runtime': 'distributed'}
    real = run._replace(config={**run.config, 'cluster': cluster})
    self.assertEqual(records.time_label([real]), 'time (s)')
    self.assertEqual(records.time_label([run, real]), 'time (s)')

  def test_runs_that_measured_no_accuracy_are_named(self):
    folder = _write_run(workers=100)
    with self.assertLogs(level='WARNING') as logs:
      drawn = self._draw([folder])
    self.assertEqual(drawn, {'waiting', 'timeline-bsp'})
    self.assertIn(f'{folder}: omitted from accuracy.png', logs.output[0])
    self.assertIn(f'{folder}: omitted from staleness.png', logs.output[1])

  def test_seeds_that_measured_at_different_times_are_drawn(self):
    folders = [_copy('bsp', 0), _copy('bsp', 1)]
    for folder, kept in zip(folders, (slice(1), slice(-1, None)), strict=True):
      rows = _jsonl(folder / 'metrics.jsonl')
      rows = [row for row in rows if row['kind'] == 'evaluation'][kept]
      (folder / 'metrics.jsonl').write_text(json.dumps(rows[0]) + '\n')
    self.assertIn('accuracy', self._draw(folders))

  def test_a_run_that_did_nothing_is_left_out_by_name(self):
    names = ['summary.json', 'trace.json', 'metrics.jsonl', 'events.jsonl']
    folder = _copy(without=names)
    with self.assertLogs(level='WARNING') as logs:
      self.assertEmpty(self._draw([folder]))
    self.assertIn(
      f'{folder}: omitted from accuracy.png', '\n'.join(logs.output)
    )
    self.assertIn(f'{folder}: has no timeline', '\n'.join(logs.output))


class CommandTest(absltest.TestCase):
  def _run(self, *arguments):
    return small.python('-m', 'tools.report', *arguments)

  def test_a_refused_run_draws_nothing_of_the_others(self):
    out = pathlib.Path(tempfile.mkdtemp()) / 'out'
    done = self._run(str(_run_folder('bsp', 0)), '/no/such', f'--out={out}')
    self.assertEqual(done.returncode, 1)
    message = 'Refused: /no/such: expected a run with manifest.json, got no'
    self.assertEqual(done.stderr.strip(), f'{message} folder.')
    self.assertFalse(out.exists())

  def test_a_run_is_drawn(self):
    out = pathlib.Path(tempfile.mkdtemp())
    done = self._run(str(_run_folder('bsp', 0)), f'--out={out}')
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertTrue((out / 'timeline-bsp.png').exists())


if __name__ == '__main__':
  absltest.main()
