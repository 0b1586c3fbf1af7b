"""Tests for cluster.process.cores."""

import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.process import cores


class CountCoresTest(parameterized.TestCase):
  @parameterized.parameters(
    ('max 100000', 'max 100000', 8),
    ('250000 100000', 'max 100000', 2),
    ('max 100000', '300000 100000', 3),  # Of a group above.
    ('1600000 100000', 'max 100000', 8),  # More than the affinity.
    ('20000 100000', 'max 100000', 1),  # A part of a core.
    (None, None, 8),
  )
  def test_cores_are_those_of_affinity_and_quota(self, own, above, count):
    groups = pathlib.Path(tempfile.mkdtemp())
    (groups / 'job' / 'step').mkdir(parents=True)
    for folder, quota in (('job/step', own), ('job', above)):
      if quota:
        (groups / folder / 'cpu.max').write_text(quota + '\n')
    group = groups / 'cgroup'
    group.write_text('4:memory:/other\n0::/job/step\n')
    with mock.patch.object(os, 'sched_getaffinity', lambda _: {*range(8)}):
      self.assertEqual(cores.count_cores(group, groups), count)
      self.assertEqual(cores.count_cores(groups / 'none', groups), 8)


if __name__ == '__main__':
  absltest.main()
