"""Tests for papers.measures.lab: the conditions, and their records."""

import json
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

import train
from bench.lab import conditions, running
from bench.lab.conditions import Times
from configs import default
from papers.measures import lab


class DrawingTest(absltest.TestCase):
  def test_conditions_are_the_same_at_every_call(self):
    full, quick = lab.draw_conditions('full'), lab.draw_conditions('quick')
    self.assertEqual(full, lab.draw_conditions('full'))
    names = [(at.name, each.name) for at, drawn in full for each in drawn]
    self.assertLen({*names}, len(names))
    self.assertGreaterEqual(len(names), 40)
    sample = [(at.name, each.name) for at, drawn in quick for each in drawn]
    self.assertContainsSubset(sample, names)

  def test_configs_of_a_sample_pass_all_checks(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    for at, drawn in lab.draw_conditions('quick'):
      for each in drawn[:3]:
        fields = conditions.virtual_fields(
          at, each._replace(iterations=16), folder
        )
        config = default.get_config()
        config.update_from_flattened_dict(fields)
        train.check(config)  # Raises for an invalid config.


class ComparisonTest(absltest.TestCase):
  def test_a_failed_condition_has_a_record(self):
    at, drawn = lab.draw_conditions('quick')[0]
    folder = pathlib.Path(tempfile.mkdtemp())
    times = {each.name: {'mean_s': 2.0} for each in drawn}
    times[drawn[0].name] = {'error': 'broken'}
    with (
      mock.patch.object(conditions, 'predict', lambda *_: Times(1.9)),
      mock.patch.object(conditions, 'choose_iterations', lambda *_: 20),
      mock.patch.object(running, 'measure', lambda *_: times),
    ):
      first, *others = lab.compare(at, drawn, folder, 3.0)
    self.assertEqual((first['status'], first['error']), ('failed', 'broken'))
    for record in others:
      self.assertAlmostEqual(record['miss'], 0.05)
    self.assertLen([*folder.glob('*.json')], 1)
    json.loads(next(folder.glob('*.json')).read_text())


if __name__ == '__main__':
  absltest.main()
