"""Tests of tools on a run that has resumed with other numbers of workers."""

import json
import signal
import time

from absl.testing import absltest, parameterized

import analysis
from analysis import diagnosing, runs
from tests.support import processes
from tests.support.recomputing import recompute
from tools import replay
from tuning import calibration

_FIELDS = {
  'checkpoint__every_examples': 96,
  'cluster__speed__injected': True,
  'cluster__speed__fixed_s': 0.02,
  'cluster__speed__per_example_s': 0.0,
  'cluster__speed__slowdown': (1.0,),
  'epochs': 8.0,
}


class ResizedRunTest(processes.TestCase, parameterized.TestCase):
  def _run(self, **fields):
    """Returns the folder of a run of 2 workers, then of 3, then of 2."""
    folder = None
    for number, workers in enumerate((2, 3, 2)):
      with processes.launch(
        workers=workers, folder=folder, **_FIELDS, **fields
      ) as launch:
        folder = launch.folder
        if number < 2:
          self._reach(launch)
          launch.signal(signal.SIGTERM)
        launch.wait()
    summary = json.loads((folder / 'summary.json').read_text())
    self.assertEqual(summary['ended'], 'finished')
    return folder

  def _reach(self, launch):
    """Waits until the run has pushed enough since this start."""
    done, deadline = self._pushes(launch.folder), time.monotonic() + 60
    while self._pushes(launch.folder) < done + 60:
      self.assertLess(time.monotonic(), deadline, launch.text)
      time.sleep(0.05)

  def _pushes(self, folder):
    path = folder / 'events.jsonl'
    return path.read_text().count('"event":"push"') if path.exists() else 0

  @parameterized.named_parameters(
    ('ring', {'route__name': 'ring', 'servers': 0}),
    ('server', {'servers': 1, 'dedicated': True}),
    ('servers_in_workers', {'servers': 0}),
  )
  def test_every_tool_reads_it(self, fields):
    folder = self._run(**fields)
    workers = runs.values_at_starts(folder, 'config.cluster.workers')
    self.assertEqual(workers, [2, 3, 2])
    self.assertEqual(recompute.difference(folder), 0.0)
    self.assertTrue(all(a == b for a, b in replay.pairs(folder)))
    self.assertNotEmpty(diagnosing.diagnose_run(analysis.read(folder)))
    measured = calibration.measure(folder)
    self.assertEqual(measured.config.cluster.workers, 3)
    self.assertLen(measured.compute_s, 3)
    self.assertNotEmpty(calibration.check(measured, [folder]))
    self.assertEqual(analysis.read(folder).config['cluster']['workers'], 3)


if __name__ == '__main__':
  absltest.main()
