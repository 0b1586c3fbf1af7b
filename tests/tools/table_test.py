"""Tests of the way from a sweep to a table for a paper."""

import json
import pathlib
import re
import statistics
import subprocess
import tempfile

from absl.testing import absltest

from tests.support import small, sweeping

_GRID = (
  'sync.name=bsp,asp; cluster.speed.slowdown=(1.0, 1.0),(1.0, 2.0); seed=0,1,2'
)


class TableTest(absltest.TestCase):
  def test_a_sweep_becomes_a_latex_table(self):
    out = pathlib.Path(tempfile.mkdtemp(), 'out')
    subprocess.run(
      sweeping.command(out, _GRID),
      cwd=sweeping.ROOT,
      capture_output=True,
      check=True,
    )
    words = (
      *('-m', 'tools.table', str(out), '--rows=sync.name'),
      *('--columns=cluster.speed.slowdown', '--value=virtual_s'),
    )
    said = small.python(*words, '--format=latex', '--baseline=bsp')
    self.assertEqual(said.returncode, 0, said.stderr)
    rows = re.findall(r'^  (bsp|asp) & (.*) \\\\$', said.stdout, re.MULTILINE)
    self.assertEqual([name for name, _ in rows], ['bsp', 'asp'])
    for name, cells in rows:
      means = [cell.split()[0] for cell in cells.split(' & ')[::2]]
      for shown, slowest in zip(means, (1.0, 2.0), strict=True):
        mean = statistics.fmean(self._times(out, name, slowest))
        self.assertAlmostEqual(float(shown), mean, delta=0.02 * mean)
    self.assertIn('over seeds, n = 3', said.stdout)
    refused = small.python(*words, '--baseline=ssp')
    self.assertEqual(refused.returncode, 1)
    self.assertIn("one of the rows ['bsp', 'asp'], got 'ssp'", refused.stderr)

  def _times(self, out, scheme, slowest):
    """Returns the virtual seconds of the runs of a cell."""
    for path in out.glob('*/summary.json'):
      config = json.loads((path.parent / 'manifest.json').read_text())['config']
      is_of_cell = config['cluster']['speed']['slowdown'] == [1.0, slowest]
      if is_of_cell and config['sync']['name'] == scheme:
        yield json.loads(path.read_text())['virtual_s']

  def test_a_folder_of_no_sweep_is_refused(self):
    folder = tempfile.mkdtemp()
    said = small.python('-m', 'tools.table', folder)
    self.assertEqual(said.returncode, 1)
    self.assertIn(f'Refused: {folder}: expected a folder of a', said.stderr)


if __name__ == '__main__':
  absltest.main()
