"""Tests of many real replicas on this machine, of which some are lost."""

import pathlib
import tempfile

import pytest
from absl.testing import absltest, parameterized

from tests.soak import replicas
from tests.support import accounts


class ReplicasTest(parameterized.TestCase):
  def _measure(self, route, **sizes):
    folder = pathlib.Path(tempfile.mkdtemp(), route)
    row = replicas.measure(folder, route, **sizes)
    self.assertEmpty(accounts.failed(row.checks))
    self.assertLen(row.checks, 7)
    return row

  def test_a_ring_loses_a_replica_and_takes_it_in(self):
    row = self._measure('ring', replicas=4, iterations=10, losses=1)
    self.assertLess(row.ready_s + row.rejoin_s, row.whole_s)
    self.assertBetween(row.iteration_s, 0.0, row.pause_s)

  @parameterized.named_parameters(('ring', 'ring'), ('forest', 'forest'))
  @pytest.mark.soak
  @pytest.mark.timeout(1800)
  def test_64_replicas_take_in_three_that_were_lost(self, route):
    row = self._measure(route, replicas=64, iterations=50, losses=3)
    print(replicas.describe(route, row))


if __name__ == '__main__':
  absltest.main()
