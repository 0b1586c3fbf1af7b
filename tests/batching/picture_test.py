"""Tests for the picture of changing batches."""

import numpy as np
from absl.testing import absltest

from analysis import records
from analysis.drawing import batches
from tests.support import small

_CHANGING = {
  'sync__name': 'bsp',
  'batching__name': 'lb_bsp',
  'batching__lb_bsp__predictor__name': 'ema',
  'batching__lb_bsp__threshold': 0.0,
  'cluster__workers': 4,
  'cluster__speed__slowdown': (1.0, 1.3, 2.0, 3.1),
}


class PictureTest(absltest.TestCase):
  def test_a_run_with_changing_batches_has_a_picture(self):
    run, _ = small.execute(**_CHANGING)
    figure = batches.draw('a run', records.load(run.files.workdir))

    (axes,) = figure.axes
    self.assertLen(axes.lines, 4)
    mine = [
      event['examples']
      for event in records.read_events(run.files.workdir)
      if event['event'] == 'push' and event['worker'] == 1
    ]
    self.assertGreater(len(set(mine)), 1)
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), mine)

  def test_a_run_with_fixed_batches_has_no_picture(self):
    run, _ = small.execute(sync__name='bsp')
    self.assertIsNone(batches.draw('a run', records.load(run.files.workdir)))


if __name__ == '__main__':
  absltest.main()
