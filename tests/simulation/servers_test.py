"""Whole runs over parameter servers on unreliable hosts and links, simulated.

See `allreduce_test`.
"""

import pytest
from absl.testing import absltest, parameterized

from tests.simulation import checks, invariants, runs
from tests.simulation.runs import Fault, Setting

_MIRRORED = {'route.server.mirror_s': 0.3}
_SETTINGS = {
  'bsp': Setting(fields=_MIRRORED),
  'asp': Setting(fields={'sync.name': 'asp', **_MIRRORED}),
}
_SEEDS = 4


class SeedsTest(checks.TestCase):
  @parameterized.parameters(*_SETTINGS)
  def test_a_run_recovers_from_every_script(self, name):
    self.check_seeds(_SETTINGS[name], range(_SEEDS))


@pytest.mark.soak
@pytest.mark.timeout(7200)
class SoakTest(checks.TestCase):
  @parameterized.parameters(*_SETTINGS)
  def test_a_run_recovers_from_many_scripts(self, name):
    self.check_seeds(_SETTINGS[name], range(_SEEDS, checks.SOAK_SEEDS))


class ScenarioTest(checks.TestCase):
  @parameterized.parameters(*_SETTINGS)
  def test_a_run_without_faults_takes_its_time(self, name):
    setting = _SETTINGS[name]
    with runs.simulate(setting, [], 0) as outcome:
      self.assertEqual(invariants.violations(outcome), [])
    self.assertEqual(outcome.starts, setting.workers)
    self.assertLess(outcome.time_s, 1.0 + setting.iterations * runs.ITERATION_S)

  @parameterized.parameters(0.0, 0.01, 0.29)
  def test_a_coordinator_and_its_successor_are_killed(self, after_s):
    faults = [Fault(0.3, 'kill', 0), Fault(0.3 + after_s, 'kill', 1)]
    self.check(_SETTINGS['bsp'], faults)

  def test_both_copies_of_a_share_are_lost(self):
    faults = [Fault(0.35, 'kill', 1), Fault(0.35, 'kill', 2)]
    self.check(_SETTINGS['bsp'], faults)

  def test_a_server_is_killed_before_the_first_copy_of_its_share(self):
    for n in range(6):
      faults = [Fault(0.01 + 0.02 * n, 'kill', 1 + n % 2)]
      self.check(_SETTINGS['bsp'], faults, n)

  def test_a_stopped_coordinator_does_not_write_once_another_one_does(self):
    faults = [Fault(0.3, 'stop', 0, lasts_s=4 * runs.TIMEOUT_S)]
    self.check(_SETTINGS['bsp'], faults)


if __name__ == '__main__':
  absltest.main()
