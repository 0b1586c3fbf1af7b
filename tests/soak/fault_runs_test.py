"""Tests for the fault matrix."""

import pathlib
import tempfile

from absl.testing import absltest, parameterized

from cluster.process.faults import Faults, Kind, Phase
from tests.soak.fault_runs import RUNS


class FaultRunsTest(parameterized.TestCase):
  @parameterized.parameters(*RUNS)
  def test_faults_are_accepted(self, name):
    run = RUNS[name]
    faults = _make(run.entries, run.workers, max(run.servers, 1))
    self.assertEqual(bool(run.entries), bool(faults.kinds))

  @parameterized.parameters('die:5', 'memory:5', 'stop:0')
  def test_seconds_of_other_kinds_are_refused(self, kind):
    with self.assertRaisesRegex(ValueError, 'seconds, above 0'):
      _make(((0, 1, kind),), 1, 1)

  def test_a_counted_phase_fails_at_its_number_and_only_once(self):
    faults = _make(((0, 1, 'memory', 'serve'),), 1, 1)
    faults.strike_counted(0, Phase.SERVE)
    with self.assertRaisesRegex(MemoryError, 'as the config says'):
      faults.strike_counted(0, Phase.SERVE)
    faults.strike_counted(0, Phase.SERVE)
    self.assertEqual(faults.kinds, {Kind.MEMORY})


def _make(entries, workers, servers):
  return Faults(
    entries,
    num_workers=workers,
    num_servers=servers,
    directory=pathlib.Path(tempfile.mkdtemp()),
    interface='eth0',
    timeout_s=1.0,
  )


if __name__ == '__main__':
  absltest.main()
