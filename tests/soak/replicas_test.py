"""Tests for tests.soak.replicas."""

import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

from tests.soak import replicas


class ReplicasTest(absltest.TestCase):
  def test_a_ring_loses_a_replica_and_takes_it_in(self):
    folder = pathlib.Path(tempfile.mkdtemp()) / 'run'
    with mock.patch.dict(os.environ, JAX_PLATFORMS='cpu'):
      row = replicas.measure(
        folder, 'ring', replicas=4, iterations=10, losses=1
      )
    for check in row.checks:
      self.assertTrue(check.holds, check)
    self.assertLen(row.checks, 7)
    self.assertLess(row.ready_s + row.rejoin_s, row.whole_s)
    self.assertBetween(row.iteration_s, 0.0, row.pause_s)


if __name__ == '__main__':
  absltest.main()
