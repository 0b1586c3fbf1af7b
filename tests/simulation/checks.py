"""Checks that scenarios of all routes share."""

import os

from absl.testing import parameterized

from tests.simulation import invariants, runs

SOAK_SEEDS = int(os.environ.get('SYNCOPATE_SEEDS', '1000'))


class TestCase(parameterized.TestCase):
  """Runs settings under faults, and checks what holds for every run."""

  def check(self, setting, faults, seed=0):
    """Checks a run under faults."""
    self.assertEqual(_find(setting, faults, seed), [], faults)

  def check_seeds(self, setting, seeds):
    """Checks a run for each seed; shrinks the script of one that fails."""
    until_s = setting.iterations * runs.ITERATION_S
    for seed in seeds:
      faults = runs.draw_faults(seed, setting.workers, until_s=until_s)
      if _find(setting, faults, seed):
        least = runs.shrink(
          faults, lambda part, seed=seed: bool(_find(setting, part, seed))
        )
        self.fail(f'seed {seed}, {least}: {_find(setting, least, seed)}')


def _find(setting, faults, seed):
  with runs.simulate(setting, faults, seed) as outcome:
    return invariants.violations(outcome)
