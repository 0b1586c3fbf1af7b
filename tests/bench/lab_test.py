"""Tests for what bench.lab makes of the files of runs."""

import contextlib
import io
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from bench import clusters as runs
from bench import lab
from tests.support import clusters, small
from tools import calibrate


class LabTest(parameterized.TestCase):
  def test_a_round_of_bsp_is_that_of_the_slowest(self):
    run, _ = small.trained(sync__name='bsp')
    config = run.runtime.lead.batching.worker_batch
    speed = 3.1 * (0.02 + 0.0025 * config)
    took_s = runs.round_s(run.files.workdir, workers=3)
    self.assertAlmostEqual(took_s, speed, places=6)

  def test_a_run_of_dedicated_servers_predicts_itself(self):
    def dedicate(manifest):
      manifest['config']['route']['server']['dedicated'] = True
      manifest['config']['cluster']['runtime'] = 'distributed'

    real = small.changed(clusters.run('r2sp'), 'manifest.json', dedicate)
    calibration = calibrate.measure(real)
    (check,) = calibrate.check(calibration, [real])
    ratio = check.predicted.iteration_s / check.measured.iteration_s
    self.assertAlmostEqual(ratio, 1, delta=0.02)

  @parameterized.parameters(lab.print_rounds, lab.print_sweep)
  def test_tables_are_printed_of_the_runs_there_are(self, table):
    took = {'return_value': 1.0, 'autospec': True}
    with (
      mock.patch.object(lab.moving, 'real', **took) as real,
      mock.patch.object(lab.moving, 'virtual', **took),
      contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
      table(pathlib.Path('none'), 3, ())
    self.assertContainsSubset([200], [call.args[4] for call in real.mock_calls])
    self.assertIn('| 1.000 ', printed.getvalue())

  def test_unknown_parts_are_refused(self):
    with self.assertRaises(SystemExit):
      lab.main(['--parts=none', f'--out={tempfile.mkdtemp()}'])


if __name__ == '__main__':
  absltest.main()
