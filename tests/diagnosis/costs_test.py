"""Tests for diagnosis.costs."""

import numpy as np
from absl.testing import absltest

from diagnosis import costs
from sync import asp, bsp, ssp


def _iterations(table: np.ndarray) -> costs.Iterations:
  """Iterations of all workers, by round."""
  rounds, workers = table.shape
  zeros = np.zeros(table.size)
  return costs.Iterations(
    rounds=np.repeat(np.arange(rounds), workers),
    workers=np.tile(np.arange(workers), rounds),
    compute_s=table.ravel(),
    transfer_s=zeros,
    examples=zeros.astype(int),
    times=zeros,
  )


class ReplayTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.table = np.random.default_rng(0).uniform(1, 2, (30, 5))
    self.iterations = _iterations(self.table)

  def _replay_s(self, scheme) -> float:
    seconds = self.iterations.compute_s
    return costs.replay_s(self.iterations, seconds, scheme, 5)

  def test_bsp_takes_the_sum_of_the_longest(self):
    expected = self.table.max(axis=1).sum()
    self.assertAlmostEqual(self._replay_s(bsp.make(num_workers=5)), expected)
    seconds = self.iterations.compute_s
    self.assertAlmostEqual(costs.barrier_s(self.iterations, seconds), expected)

  def test_asp_ends_with_the_last_of_as_many_pushes(self):
    ends = np.sort(np.cumsum(np.tile(self.table, (2, 1)), axis=0).ravel())
    expected = ends[self.table.size - 1]
    self.assertAlmostEqual(self._replay_s(asp.make(num_workers=5)), expected)

  def test_ssp_lies_between_both(self):
    found = self._replay_s(ssp.make(num_workers=5, bound=2))
    self.assertBetween(
      found,
      self._replay_s(asp.make(num_workers=5)),
      self._replay_s(bsp.make(num_workers=5)),
    )

  def test_a_share_is_that_of_the_closed_form(self):
    table = np.ones((40, 4))
    table[:, 1] = 4
    iterations = _iterations(table)
    replaced = np.minimum(iterations.compute_s, 1.0)
    found = costs.share(
      iterations, iterations.compute_s, replaced, costs.barrier_s
    )
    self.assertEqual(found, costs.Estimate(0.25, 0.25, 0.25))

  def test_an_interval_covers_the_mean(self):
    draws = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
      parts = draws.normal(3.0, 1.0, 10)
      found = costs.interval(parts, float(parts.mean()))
      covered += found.low <= 3.0 <= found.high
    self.assertBetween(covered / 400, 0.92, 0.98)


if __name__ == '__main__':
  absltest.main()
