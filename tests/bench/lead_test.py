"""Tests for bench.lead, with real processes."""

import pytest
from absl.testing import absltest

from bench import lead


@pytest.mark.soak
class LeadTest(absltest.TestCase):
  def test_scripted_workers_push_as_often_as_they_are_told(self):
    row = lead.measure(4, 2, 40)
    self.assertEqual(row['pushes'], 40)
    self.assertGreater(row['wall_s'], 0.0)
    self.assertGreater(row['cpu_s'], row['decided_s'])


if __name__ == '__main__':
  absltest.main()
