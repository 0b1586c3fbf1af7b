"""Tests of the way from a sweep to a table for a paper."""

import json
import pathlib
import re
import statistics
import subprocess
import tempfile

from absl.testing import absltest

from tests.support import small, sweeping

_GRID = 'sync.name=bsp,asp; batching.worker_batch=16,32; seed=0,1,2'


class TableTest(absltest.TestCase):
  def test_a_sweep_becomes_a_latex_table_and_figures(self):
    out = pathlib.Path(tempfile.mkdtemp(), 'out')
    subprocess.run(
      sweeping.command(out, _GRID),
      cwd=sweeping.ROOT,
      capture_output=True,
      check=True,
    )
    words = (
      *('-m', 'tools.table', str(out), '--rows=sync.name'),
      *('--columns=batching.worker_batch', '--value=virtual_s'),
    )
    said = small.python(*words, '--format=latex', '--baseline=bsp')
    self.assertEqual(said.returncode, 0, said.stderr)
    rows = re.findall(r'^  (bsp|asp) & (.*) \\\\$', said.stdout, re.MULTILINE)
    self.assertEqual([name for name, _ in rows], ['bsp', 'asp'])
    for name, cells in rows:
      means = [cell.split()[0] for cell in cells.split(' & ')[::2]]
      for shown, batch in zip(means, (16, 32), strict=True):
        mean = statistics.fmean(self._times(out, name, batch))
        self.assertAlmostEqual(float(shown), mean, delta=0.02 * mean)
    self.assertIn('over seeds, n = 3', said.stdout)
    figures = out.with_name('figures')
    drawn = small.python(
      *('-m', 'tools.report', str(out)),
      *(f'--out={figures}', '--format=pdf'),
    )
    self.assertEqual(drawn.returncode, 0, drawn.stderr)
    waiting = (figures / 'waiting.pdf').read_bytes()
    self.assertTrue(waiting.startswith(b'%PDF'))
    refused = small.python(*words, '--baseline=ssp')
    self.assertEqual(refused.returncode, 1)
    self.assertIn("one of the rows ['bsp', 'asp'], got 'ssp'", refused.stderr)

  def _times(self, out, scheme, batch):
    """Returns the virtual seconds of the runs of a cell."""
    for path in out.glob('*/summary.json'):
      config = json.loads((path.parent / 'manifest.json').read_text())['config']
      is_of_cell = config['batching']['worker_batch'] == batch
      if is_of_cell and config['sync']['name'] == scheme:
        yield json.loads(path.read_text())['virtual_s']

  def test_a_folder_of_no_sweep_is_refused(self):
    folder = tempfile.mkdtemp()
    said = small.python('-m', 'tools.table', folder)
    self.assertEqual(said.returncode, 1)
    self.assertIn(f'Refused: {folder}: expected a folder of a', said.stderr)


if __name__ == '__main__':
  absltest.main()
