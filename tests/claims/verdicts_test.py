"""Tests that repeated runs of each family give the stored verdicts."""

import math
import pathlib
import tempfile

from absl.testing import absltest, parameterized

import train
from claims import catalog, page, running, store
from claims.measures import forest
from sweeps import plan

_RESULTS = catalog.ROOT / 'results'
_SCALE = 'quick'
# Relative tolerance for mathematical libraries and XLA on other machines.
_NEAR = 1e-6
# An entry of each family, and the places of the runs of a seed to repeat.
_CHEAP = {
  'elastic_large': (0, 4),
  'dssp_lead': (0,),
  'r2sp_relaxation': (1, 2),
  'lb_bsp_gain': (2,),
  'gradientflow_fusion': (0,),
  'local_steps_digits': (3,),
}
_TRAINED = 'accuracy', '_to.'  # Parts of names of fields that XLA affects.


def _repeat(name, entry, point):
  """Repeats a run in this process; returns its record."""
  words = [f'--config.{field}={value}' for field, value in point.items()]
  config = plan.parse_config([f'--config={running.config_file(name)}', *words])
  folder = pathlib.Path(tempfile.mkdtemp()) / 'run'
  train.build(config, workdir=str(folder))()
  return running.make_record(entry, [*point], folder, 'finished')


def _difference(new, old):
  """Returns a text on the first different field; '' if there is none."""
  for field, value in new.items():
    if any(part in field for part in _TRAINED):
      continue
    if isinstance(value, float) and math.isfinite(value):
      if not math.isclose(value, old[field], rel_tol=_NEAR):
        return f'{field}: {value} now, {old[field]} stored'
    elif value != old[field]:
      return f'{field}: {value} now, {old[field]} stored'
  return ''


def _judge(entry, results):
  return page.judge_entries([(entry, results)])[0]


class VerdictsTest(parameterized.TestCase):
  @parameterized.parameters(*_CHEAP.items())
  def test_repeated_runs_give_the_stored_records_and_verdicts(
    self, name, places
  ):
    entry = catalog.find(name)
    stored = store.read(_RESULTS, name)
    before = _judge(entry, stored)
    points = running.entry_points(entry, _SCALE, [0])
    for place in places:
      new = _repeat(name, entry, points[place])
      old = next(
        each
        for each in stored.records
        if all(each.get(field) == new[field] for field in points[place])
      )
      self.assertEqual(_difference(new, old), '', str(points[place]))
      old.update(new)
    after = _judge(entry, stored)
    self.assertEqual(
      {text: row.verdict for text, row in after.items()},
      {text: row.verdict for text, row in before.items()},
    )

  def test_rates_of_forests_equal_the_stored_ones(self):
    stored = store.read(_RESULTS, 'forest_rates')
    for new in forest.measure(seed=0, scale=_SCALE):
      old = next(
        each
        for each in stored.records
        if each['seed'] == 0
        and (each['network'], each['ratio']) == (new['network'], new['ratio'])
      )
      self.assertEqual(_difference(new, old), '', new)


if __name__ == '__main__':
  absltest.main()
