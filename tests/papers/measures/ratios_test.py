"""Tests for papers.measures.ratios: the conditions, and errors of ratios."""

import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

import train
from bench.lab import conditions
from configs import default
from papers.measures import lab, ratios


def _record(scheme, real_s, virtual_s, *, place='100 Mbit'):
  return {
    'lab': place,
    'condition': f'{scheme}, 4 workers',
    'status': 'finished',
    'real_s': real_s,
    'virtual_s': virtual_s,
  }


class ConditionsTest(absltest.TestCase):
  def test_configs_of_all_schemes_pass_all_checks(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    places = {place.name: place for place in lab.LABS}
    for setting in ratios.SETTINGS:
      for scheme in ('bsp', *ratios.SCHEMES):
        condition = ratios.make_condition(setting, scheme)
        fields = conditions.virtual_fields(
          places[setting.lab], condition._replace(iterations=16), folder
        )
        config = default.get_config()
        config.update_from_flattened_dict(fields)
        train.check(config)  # Raises for an invalid config.

  def test_each_scheme_has_the_cluster_of_bsp(self):
    with (
      mock.patch.object(
        lab,
        'compare',
        lambda at, drawn, *_: [(at.name, each) for each in drawn],
      ),
      mock.patch.object(ratios, 'summarize', lambda _: []),
    ):
      pairs = ratios.measure(seed=0, scale='full', folder=pathlib.Path())
    by_cluster = {}
    for place, each in pairs:
      scheme, _, cluster = each.name.partition(', ')
      others = {k: v for k, v in each.fields.items() if k != 'sync.name'}
      by_cluster.setdefault((place, cluster), []).append((scheme, others))
    self.assertLen(by_cluster, 6)
    for (first, fields), *others in by_cluster.values():
      self.assertEqual(first, 'bsp')
      self.assertCountEqual([name for name, _ in others], ratios.SCHEMES)
      for _, each in others:
        self.assertEqual(each, fields)


class SummaryTest(absltest.TestCase):
  def test_errors_are_those_of_ratios(self):
    records = [
      _record('bsp', 2.0, 2.2),  # 10 % too slow, as ASP: no error.
      _record('asp', 1.0, 1.1),
      _record('r2sp', 1.0, 1.0),
      _record('bsp', 1.0, 1.0, place='200 Mbit'),
      _record('asp', 0.5, 0.6, place='200 Mbit'),
    ]
    parts = {each.pop('part'): each for each in ratios.summarize(records)}
    self.assertAlmostEqual(records[1]['ratio_error'], 0.0)
    self.assertAlmostEqual(records[1]['real_ratio'], 0.5)
    self.assertAlmostEqual(parts['asp']['mean_error'], 0.1)
    self.assertAlmostEqual(parts['r2sp']['mean_error'], 1 / 1.1 - 1)
    self.assertEqual(parts['all']['ratios'], 3)
    self.assertAlmostEqual(parts['all']['median'], 1 - 1 / 1.1)
    self.assertAlmostEqual(parts['all']['worst'], 0.2)

  def test_failed_runs_have_no_ratio(self):
    failed = {'lab': '100 Mbit', 'condition': 'bsp, 4 workers'}
    records = [failed | {'status': 'failed'}, _record('asp', 1.0, 1.0)]
    self.assertEmpty(ratios.summarize(records))
    self.assertEqual([each['status'] for each in records], ['failed'] * 2)


if __name__ == '__main__':
  absltest.main()
