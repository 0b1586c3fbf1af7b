"""Tests for claims.measures.lab: what is run, and what is fitted."""

import json
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

import train
from bench import conditions
from bench.conditions import Fitted
from claims.measures import lab
from configs import default


class DrawnTest(absltest.TestCase):
  def test_conditions_are_the_same_again_and_none_was_fitted(self):
    full, quick = lab.drawn('full'), lab.drawn('quick')
    self.assertEqual(full, lab.drawn('full'))
    names = [(at.name, each.name) for at, own in full for each in own]
    self.assertLen({*names}, len(names))
    self.assertGreaterEqual(len(names), 40)
    some = [(at.name, each.name) for at, own in quick for each in own]
    self.assertContainsSubset(some, names)
    every = [each for _, own in full for each in own]
    for fitted in lab.FITTED:
      alike = [c for c in every if c.workers == fitted.workers]
      fields = [c.fields for c in alike if c.servers == fitted.servers]
      self.assertNotIn(fitted.fields, fields)

  def test_all_of_a_sample_are_runs(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    for at, own in lab.drawn('quick'):
      for each in own[:3]:
        fields = conditions.fields(at, each, 16, Fitted(), folder)
        config = default.get_config()
        config.update_from_flattened_dict(fields)
        train.check(config)  # Or it raises.


class FittedTest(absltest.TestCase):
  def test_what_runs_have_had_is_found_and_measured_once(self):
    true = Fitted(share=0.97, worker_s=3e-4, range_s=2e-3)

    def virtual(at, condition, count, fitted):
      del at, count
      size = condition.fields['model.none.size_bytes']
      rate = 25e6 * fitted.share
      if condition.servers:
        return 0.05 + 8 * size / rate + 4 * fitted.worker_s
      return (
        0.05 + 1.5 * size / rate + 12 * fitted.worker_s + 2 * fitted.range_s
      )

    def real(out, at, runs):
      del out
      return {c.name: virtual(at, c, count, true) for c, count in runs}

    kept = pathlib.Path(tempfile.mkdtemp())
    made = mock.Mock(side_effect=real)
    with (
      mock.patch.object(conditions, 'virtual', virtual),
      mock.patch.object(conditions, 'iterations', lambda *_: 20),
      mock.patch.object(conditions, 'real', made),
    ):
      found = lab._fitted(kept)
      self.assertEqual(lab._fitted(kept), found)
    for name, value in true._asdict().items():
      self.assertAlmostEqual(getattr(found, name), value, delta=2e-4)
    made.assert_called_once()

  def test_a_condition_that_failed_is_a_record(self):
    at, own = lab.drawn('quick')[0]
    kept = pathlib.Path(tempfile.mkdtemp())
    times = {each.name: 2.0 for each in own} | {own[0].name: 'it broke'}
    with (
      mock.patch.object(conditions, 'virtual', lambda *_: 1.9),
      mock.patch.object(conditions, 'iterations', lambda *_: 20),
      mock.patch.object(conditions, 'real', lambda *_: times),
    ):
      first, *others = lab._compared(at, own, Fitted(), kept)
    self.assertEqual((first['status'], first['error']), ('failed', 'it broke'))
    for record in others:
      self.assertAlmostEqual(record['miss'], 0.05)
    self.assertLen([*kept.glob('*.json')], 1)
    json.loads(next(kept.glob('*.json')).read_text())


if __name__ == '__main__':
  absltest.main()
