"""Tests of the limit of open files."""

import pathlib
import resource
import tempfile
from unittest import mock

from absl.testing import absltest

from cluster import distributed
from cluster.network import descriptors
from configs import default
from outputs.files import RunFiles
from route.route import ParameterServer
from tests.support import requires


class DescriptorsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
    self.hard = limits[1]
    has_limit = self.hard != resource.RLIM_INFINITY
    requires.host(has_limit, 'This system has no limit of open files.')
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(self.hard, 900), self.hard))

  def test_the_soft_limit_is_raised_to_the_hard_limit(self):
    with self.assertNoLogs(level='WARNING'):
      descriptors.raise_limit(1)
    self._check_raised()

  def test_a_limit_too_low_for_the_workers_is_warned_of(self):
    workers = self.hard
    with self.assertLogs(level='WARNING') as logs:
      descriptors.raise_limit(workers)
    (line,) = logs.output
    self.assertIn(f'may open {self.hard} files', line)
    self.assertIn(f'may need {descriptors.needed(workers)}', line)
    self._check_raised()

  def test_a_limit_that_cannot_be_raised_is_no_error(self):
    with (
      mock.patch.object(resource, 'setrlimit', side_effect=ValueError('no')),
      self.assertLogs(level='WARNING') as logs,
    ):
      descriptors.raise_limit(1)
    self.assertRegex(logs.output[0], f'stays at 900, not {self.hard}: no')

  def test_every_process_of_a_real_run_raises_its_limit(self):
    config = default.get_config()
    config.cluster.runtime = 'distributed'
    config.cluster.workers = 2
    plan = ParameterServer(servers=1, dedicated=False, pipelined=False)
    with (
      tempfile.TemporaryDirectory() as folder,
      # The process waits for the others next.
      mock.patch.object(
        distributed.rendezvous_files, 'join', side_effect=InterruptedError
      ),
      self.assertRaises(InterruptedError),
    ):
      distributed.meet(
        config,
        plan,
        files=RunFiles(str(pathlib.Path(folder) / 'run')),
        process={'role': 'worker:1', 'coordinator': '127.0.0.1:61500'},
      )
    self._check_raised()

  def _check_raised(self):
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    self.assertEqual(soft, self.hard)


if __name__ == '__main__':
  absltest.main()
