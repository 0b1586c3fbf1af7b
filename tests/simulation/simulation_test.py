"""Whole runs on unreliable hosts and links, in a deterministic simulation.

A failure names its seed, and the least part of its script with which the run
still fails.
"""

import os

import pytest
from absl.testing import absltest, parameterized

from tests.simulation import invariants, runs
from tests.simulation.runs import Fault, Setting

_SEEDS = 15
_SOAK_SEEDS = int(os.environ.get('SYNCOPATE_SEEDS', '1000'))
_MIRRORED = {'route.server.mirror_s': 0.3}
_SETTINGS = {
  'ring': Setting(fields={'route.name': 'ring'}),
  'double_tree': Setting(workers=4, fields={'route.name': 'double_tree'}),
  'servers': Setting(fields=_MIRRORED),
  'asp': Setting(fields={'sync.name': 'asp', **_MIRRORED}),
  'local_steps': Setting(
    fields={'route.name': 'ring', 'batching.local_steps': 2}
  ),
}


def _check(setting, faults, seed):
  """Returns what does not hold for a run under faults."""
  with runs.simulate(setting, faults, seed) as outcome:
    return invariants.violations(outcome)


class SeedsTest(parameterized.TestCase):
  def _run_seeds(self, name, seeds):
    setting = _SETTINGS[name]
    until_s = setting.iterations * runs.ITERATION_S
    for seed in seeds:
      faults = runs.draw_faults(seed, setting.workers, until_s=until_s)
      if _check(setting, faults, seed):
        least = runs.shrink(
          faults, lambda part, seed=seed: bool(_check(setting, part, seed))
        )
        found = _check(setting, least, seed)
        self.fail(f'{name}, seed {seed}, {least}: {found}')

  @parameterized.parameters(*_SETTINGS)
  def test_a_run_recovers_from_every_script(self, name):
    self._run_seeds(name, range(_SEEDS))

  @pytest.mark.soak
  @pytest.mark.timeout(7200)
  @parameterized.parameters(*_SETTINGS)
  def test_a_run_recovers_from_many_scripts(self, name):
    self._run_seeds(name, range(_SEEDS, _SOAK_SEEDS))


class ScenarioTest(parameterized.TestCase):
  @parameterized.parameters(*_SETTINGS)
  def test_a_run_without_faults_takes_its_time(self, name):
    setting = _SETTINGS[name]
    with runs.simulate(setting, [], 0) as outcome:
      self.assertEqual(invariants.violations(outcome), [])
    self.assertEqual(outcome.starts, setting.workers)
    least_s = setting.iterations * runs.ITERATION_S
    self.assertLess(outcome.time_s, least_s + 1.0)

  def test_the_same_seed_gives_the_same_events(self):
    found = []
    for _ in range(2):
      faults = [Fault(0.2, 'kill', 1)]
      with runs.simulate(_SETTINGS['ring'], faults, 3) as outcome:
        found.append((outcome.folder / 'events.jsonl').read_text())
    self.assertEqual(*found)

  @parameterized.product(
    name=('ring', 'servers', 'double_tree'), after_s=(0.0, 0.01, 0.29)
  )
  def test_a_coordinator_and_its_successor_are_killed(self, name, after_s):
    faults = [Fault(0.3, 'kill', 0), Fault(0.3 + after_s, 'kill', 1)]
    self.assertEqual(_check(_SETTINGS[name], faults, 0), [])

  def test_both_copies_of_a_share_are_lost(self):
    faults = [Fault(0.35, 'kill', 1), Fault(0.35, 'kill', 2)]
    self.assertEqual(_check(_SETTINGS['servers'], faults, 0), [])

  @parameterized.parameters('ring', 'servers')
  def test_a_worker_is_killed_at_any_moment_of_the_start(self, name):
    for n in range(12):
      faults = [Fault(0.002 + 0.003 * n, 'kill', 1 + n % 2)]
      self.assertEqual(_check(_SETTINGS[name], faults, n), [], faults)

  @parameterized.parameters('ring', 'servers', 'double_tree')
  def test_a_stopped_coordinator_does_not_write_once_another_one_does(
    self, name
  ):
    faults = [Fault(0.3, 'stop', 0, lasts_s=4 * runs.TIMEOUT_S)]
    self.assertEqual(_check(_SETTINGS[name], faults, 0), [])


if __name__ == '__main__':
  absltest.main()
