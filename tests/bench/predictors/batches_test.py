"""Tests for the replays of bench.predictors, on a trace that is computed."""

import pathlib
import tempfile

from absl.testing import absltest

from batching import fixed
from bench.predictors import batches

# Times of two workers; the mean of all is 2.
_ROWS = ('worker,iteration,compute_s', '0,0,1', '0,1,3', '1,0,2', '1,1,2')


class TracesTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(tempfile.mkdtemp()) / 'trace.csv'
    self.path.write_text('\n'.join(_ROWS) + '\n')
    self.speed, self.supersteps = batches.read_speeds(
      self.path, 'compute_s', 'iteration', ''
    )

  def test_supersteps_begin_where_they_are_told_and_continue_at_the_start(self):
    for count, factors in ((1, [1.5]), (2, [1.5, 1.0]), (3, [1.5, 1.0, 1.5])):
      rule = fixed.make(num_workers=2, worker_batch=32)
      rate = batches.simulate(rule, self.speed, count, 1)
      # The slower worker of each superstep, 4 ms an example.
      seconds = sum(32 * 0.004 * factor for factor in factors)
      self.assertAlmostEqual(rate, 64 * count / seconds)

  def test_an_oracle_divides_by_the_speeds_of_the_iteration(self):
    oracle = batches.Oracle(self.speed, 60, 1)
    self.assertEqual(oracle.assign((0, 1)), {0: 24, 1: 36})  # 1.5 : 1.
    self.assertEqual(oracle.assign((0, 1)), {0: 40, 1: 20})  # .5 : 1.


if __name__ == '__main__':
  absltest.main()
