"""Whole runs of allreduces on unreliable hosts and links, simulated.

A failure names its seed, and the least part of its script of faults with which
the run still fails.
"""

import pytest
from absl.testing import absltest, parameterized

from tests.simulation import checks, invariants, runs
from tests.simulation.runs import Fault, Setting

_SETTINGS = {
  'ring': Setting(fields={'route.name': 'ring'}),
  'double_tree': Setting(workers=4, fields={'route.name': 'double_tree'}),
  'local_steps': Setting(
    fields={'route.name': 'ring', 'batching.local_steps': 2}
  ),
}
_SEEDS = 20


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

  def test_the_same_seed_gives_the_same_events(self):
    found = []
    for _ in range(2):
      faults = [Fault(0.2, 'kill', 1)]
      with runs.simulate(_SETTINGS['ring'], faults, 3) as outcome:
        found.append((outcome.folder / 'events.jsonl').read_text())
    self.assertEqual(*found)

  @parameterized.product(
    name=('ring', 'double_tree'), after_s=(0.0, 0.01, 0.29)
  )
  def test_a_coordinator_and_its_successor_are_killed(self, name, after_s):
    faults = [Fault(0.3, 'kill', 0), Fault(0.3 + after_s, 'kill', 1)]
    self.check(_SETTINGS[name], faults)

  def test_a_worker_is_killed_at_any_moment_of_the_start(self):
    for n in range(12):
      faults = [Fault(0.002 + 0.003 * n, 'kill', 1 + n % 2)]
      self.check(_SETTINGS['ring'], faults, n)

  @parameterized.parameters('ring', 'double_tree')
  def test_a_stopped_coordinator_does_not_write_once_another_one_does(
    self, name
  ):
    faults = [Fault(0.3, 'stop', 0, lasts_s=4 * runs.TIMEOUT_S)]
    self.check(_SETTINGS[name], faults)

  def test_a_member_that_wakes_after_the_run_has_begun_again_joins_it(self):
    faults = [
      Fault(0.183, 'power_off', 2),
      Fault(0.501, 'stop', 1, lasts_s=4 * runs.TIMEOUT_S),
      Fault(0.544, 'kill', 0),
    ]
    self.check(_SETTINGS['ring'], faults, 81)

  @parameterized.parameters('cut', 'one_way')
  def test_a_coordinator_that_is_cut_off_does_not_write_either(self, kind):
    faults = [
      Fault(0.3, kind, 0, other, lasts_s=4 * runs.TIMEOUT_S) for other in (1, 2)
    ]
    self.check(_SETTINGS['ring'], faults)


if __name__ == '__main__':
  absltest.main()
