"""Tests for the terminal page of a run."""

import io
import json
import os
import pathlib
import platform
import tempfile

import rich.console
from absl.testing import absltest, parameterized

from analysis.watching.memory import find_memory
from analysis.watching.page import Page
from analysis.watching.progress import LEFT, Progress
from tests.support import small


def _folder():
  return pathlib.Path(tempfile.mkdtemp())


def _show(folder):
  """Returns the page of a run, as a terminal of 80 characters shows it."""
  console = rich.console.Console(file=io.StringIO(), width=80)
  console.print(Page(folder).render())
  return console.file.getvalue()


class ProgressTest(parameterized.TestCase):
  @parameterized.parameters('bsp', 'asp', 'ssp', 'elastic', 'quorum')
  def test_versions_and_staleness_are_those_of_the_run(self, scheme):
    run, summary = small.execute(sync__name=scheme)
    progress = Progress(is_allreduce=False)
    for line in (run.files.workdir / 'events.jsonl').read_text().splitlines():
      progress.take(json.loads(line))
    found = {str(key): n for key, n in sorted(progress.staleness.items())}
    expected = {str(key): n for key, n in summary['staleness'].items() if n}
    self.assertEqual(found, expected)
    self.assertEqual(progress.version, summary['updates'])
    pushes = [each.pushes for each in progress.workers.values()]
    self.assertEqual(sum(pushes), summary['iterations'])
    self.assertEqual(
      [progress.lead(k) for k in (0, 1, 2)],
      [progress.workers[k].pushes - min(pushes) for k in (0, 1, 2)],
    )

  def _take(self, progress, *rows):
    for event, worker, time, decision in rows:
      fields = {'compute_s': 1.0 + worker, 'examples': 8}
      progress.take(
        {
          'event': event,
          'time': time,
          **({'worker': worker} if worker >= 0 else {}),
          **(fields if event == 'push' else {}),
          'decision': decision,
        }
      )

  def test_times_of_servers_are_computing_transfers_and_waiting(self):
    progress = Progress(is_allreduce=False)
    both = {'commit': [0], 'release': [0, 1]}
    self._take(
      progress,
      ('start', -1, 0.0, {'release': [0, 1]}),
      ('push', 0, 1.5, {'into': 0}),
      ('push', 1, 2.5, {'into': 0} | both),
      ('push', 0, 4.0, {'into': 1}),
    )
    moved, waited = progress.workers[0].shares
    # Computes 1 s in both, transfers .5 and .5 s, and has waited 1 s.
    self.assertAlmostEqual(moved, 1 / 4)
    self.assertAlmostEqual(waited, 1 / 4)
    self.assertEqual(progress.workers[0].phase, 'waiting')
    self.assertAlmostEqual(progress.workers[0].speed, 8.0)

  def test_an_allreduce_waits_for_the_slowest_worker(self):
    progress = Progress(is_allreduce=True)
    both = {'into': 0, 'commit': [0], 'release': [0, 1]}
    self._take(
      progress,
      ('start', -1, 0.0, {'release': [0, 1]}),
      ('push', 0, 2.5, {'into': 0}),
      ('push', 1, 2.5, both),
    )
    for worker, waited_s in ((0, 1.0), (1, 0.0)):
      moved, waited = progress.workers[worker].shares
      self.assertAlmostEqual(moved, 0.5 / 2.5)
      self.assertAlmostEqual(waited, waited_s / 2.5)

  def test_workers_leave_and_join(self):
    progress = Progress(is_allreduce=False)
    self._take(
      progress,
      ('start', -1, 0.0, {'release': [0, 1]}),
      ('leave', 1, 1.0, {}),
    )
    self.assertEqual(progress.workers[1].phase, LEFT)
    self.assertEqual(progress.lost, 1)
    self._take(progress, ('join', 1, 3.0, {'release': [1]}))
    self.assertEqual(progress.workers[1].phase, 'computing')
    self.assertIsNone(progress.workers[1].speed)

  def test_dropped_pushes_and_lost_iterations_are_those_of_the_summary(self):
    run, summary = small.execute(
      sync__name='quorum',
      sync__quorum__late='drop',
      cluster__script=((0.25, 'leave', 0), (0.7, 'join', 0)),
    )
    progress = Progress(is_allreduce=False)
    for row in small.rows(run, 'events.jsonl'):
      progress.take(row)
    self.assertGreater(progress.dropped, 0)
    self.assertLen(summary['dropped'], progress.dropped)
    self.assertLen(summary['lost'], progress.lost)
    page = _show(pathlib.Path(run.files.workdir))
    self.assertIn(f'{progress.dropped} dropped pushes, ', page)

  def test_stragglers_appear_and_end(self):
    progress = Progress(is_allreduce=False)
    worker = {'event': 'straggler', 'time': 9.0, 'of': 'worker', 'worker': 2}
    link = {'event': 'straggler', 'time': 9.0, 'of': 'link', 'src': 0, 'dst': 1}
    progress.take(worker | {'did': 'appears', 'since': 4.0})
    progress.take(link | {'did': 'appears', 'since': 5.0})
    expected = {'worker 2': 4.0, 'link from worker 0 to 1': 5.0}
    self.assertEqual(progress.stragglers, expected)
    progress.take(worker | {'did': 'ends', 'since': 8.0})
    self.assertEqual(progress.stragglers, {'link from worker 0 to 1': 5.0})


class PageTest(parameterized.TestCase):
  def test_a_run_that_has_ended(self):
    run, summary = small.execute(
      sync__name='asp', outputs__events=True, epochs=2.0
    )
    text = _show(run.files.workdir)
    self.assertIn('finished', text)
    self.assertIn('asp, fixed, dense, server', text)
    self.assertIn(f'{summary["updates"]} updates', text)
    self.assertIn(f'accuracy {summary["final_accuracy"]:.2%}', text)
    self.assertNotIn('left', text)
    self.assertLessEqual(max(map(len, text.splitlines())), 80)

  def test_a_run_under_way_has_a_time_left(self):
    run, _ = small.execute(sync__name='bsp')
    (run.files.workdir / 'summary.json').unlink()
    for name in ('events.jsonl', 'metrics.jsonl'):
      path = run.files.workdir / name
      lines = path.read_text().splitlines(keepends=True)
      path.write_text(''.join(lines[: len(lines) // 2]) + lines[-1][:10])
    text = _show(run.files.workdir)
    self.assertRegex(text, r'running, last event \d+ s ago')
    self.assertRegex(text, r'about \d+ s left')

  def test_links_of_an_allreduce_are_compared_with_plan(self):
    run, _ = small.execute(sync__name='bsp', route__name='ring')
    text = _show(run.files.workdir)
    self.assertRegex(text, r'slowest links +MB/s +planned +share')

  def test_a_run_that_has_not_begun(self):
    run, _ = small.execute(epochs=0.1)
    for path in run.files.workdir.glob('*.jsonl'):
      path.unlink()
    (run.files.workdir / 'summary.json').unlink()
    self.assertRegex(_show(run.files.workdir), r'phase +starting')

  def test_bad_input(self):
    with self.assertRaisesRegex(ValueError, 'expected a run with manifest'):
      Page(_folder())
    run, _ = small.execute(epochs=0.1, outputs__events=False)
    with self.assertRaisesRegex(ValueError, 'config.outputs.events=False'):
      Page(run.files.workdir)


class MemoryTest(absltest.TestCase):
  def test_processes_of_a_launcher_and_of_a_lock(self):
    folder = _folder()
    self.assertEqual(find_memory(folder), {})
    owner = {'host': platform.node(), 'pid': os.getpid()}
    (folder / '.lock').write_text(json.dumps(owner))
    found = find_memory(folder)
    self.assertEqual(found.keys(), {'process'})
    self.assertGreater(found['process'], 10.0)
    rows = [
      {'role': 'worker:0', 'event': 'start', 'pid': 2**22 + 1},  # No process.
      {'role': 'worker:1', 'event': 'start', 'pid': os.getpid()},
      {'role': 'worker:1', 'event': 'exit', 'pid': os.getpid(), 'code': 0},
    ]
    text = ''.join(f'{json.dumps(row)}\n' for row in rows)
    (folder / 'launch.jsonl').write_text(text + '{"role"')
    self.assertEqual(find_memory(folder).keys(), {'worker:1'})

  def test_the_lock_of_another_host_is_left_out(self):
    folder = _folder()
    owner = {'host': 'elsewhere', 'pid': os.getpid()}
    (folder / '.lock').write_text(json.dumps(owner))
    self.assertEqual(find_memory(folder), {})


class CommandTest(absltest.TestCase):
  def test_a_page_without_a_terminal_is_printed_once(self):
    run, _ = small.execute(epochs=0.5)
    process = small.python('-m', 'tools.watch', str(run.files.workdir))
    self.assertEqual(process.returncode, 0, process.stderr)
    self.assertIn('finished', process.stdout)
    process = small.python('-m', 'tools.watch', str(_folder()))
    self.assertEqual(process.returncode, 1)
    self.assertRegex(process.stderr, 'Refused: .*manifest.json')


if __name__ == '__main__':
  absltest.main()
