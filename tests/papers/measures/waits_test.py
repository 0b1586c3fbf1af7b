"""Tests for papers.measures.waits."""

import numpy as np
from absl.testing import absltest

from papers.measures import waits


class WaitsTest(absltest.TestCase):
  def test_regular_iterations_wait_as_predicted(self):
    last_s = np.array([3.0, 4.0])
    ends_s = np.array([[0, 3, 6, 9, 12], [0.5, 4.5, 8.5, 12.5, 16.5]])
    # 9 and 8.5, or 12 and 12.5: the earlier one.
    self.assertEqual(waits.find_waits(last_s, ends_s), (0.5, 0.5))

  def test_a_late_iteration_makes_the_others_wait(self):
    last_s = np.array([3.0, 4.0])
    ends_s = np.array([[0, 3, 6, 9, 12], [0.5, 4.5, 10.5, 14.5, 18.5]])
    # Stops are predicted at 9 and 8.5; the second comes at 10.5.
    self.assertEqual(waits.find_waits(last_s, ends_s), (0.5, 1.5))

  def test_waits_grow_with_jitter(self):
    records = waits.measure(seed=0, scale='quick')
    real = {(each['sigma'], each['R']): each['real_s'] for each in records}
    self.assertGreater(real[0.1, 15], real[0.01, 15])


if __name__ == '__main__':
  absltest.main()
