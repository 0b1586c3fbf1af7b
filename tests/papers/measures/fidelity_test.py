"""Tests for papers.measures.fidelity: signed errors of the virtual clock."""

import contextlib
import io
import pathlib
import re
import tempfile

from absl.testing import absltest

from bench.lab import conditions
from papers import store
from papers.measures import fidelity, lab

_STORED = pathlib.Path(__file__).parents[3] / 'results'
_TIMES = {
  'asp, 8 workers, 2 servers in workers, 1 MB': (1.1, 1.0),
  'asp, 8 workers, 2 servers of their own, 1 MB': (0.9, 1.0),
  'ssp, 2 workers, 1 servers of their own, 1 MB, unequal': (1.5, 1.0),
  'bsp, pipelined, 2 workers, 1 servers of their own': (0.4, 0.5),
  'ring, 4 workers, 1 MB, unequal': (2.2, 2.0),
}


def _records():
  for name, (virtual_s, real_s) in _TIMES.items():
    times = {'virtual_s': virtual_s, 'real_s': real_s}
    yield {'lab': 'a', 'condition': name, 'status': 'finished', **times}
  yield {'lab': 'a', 'condition': 'bsp, 2 workers', 'status': 'failed'}
  yield {'part': 'all', 'status': 'finished', 'median': 0.1}


class GroupTest(absltest.TestCase):
  def test_errors_keep_their_signs_by_scheme_or_route(self):
    groups = fidelity.group(_records(), fidelity.scheme_or_route)
    self.assertEqual([*groups], ['asp', 'bsp, pipelined', 'ring', 'ssp'])
    asp = groups['asp']
    self.assertEqual((asp.conditions, asp.too_slow), (2, 1))
    for got, expected in zip(asp[2:], (0, 0, -0.1, 0.1), strict=True):
      self.assertAlmostEqual(got, expected)
    self.assertAlmostEqual(groups['bsp, pipelined'].mean, -0.2)
    self.assertAlmostEqual(groups['ring'].most, 0.1)

  def test_asynchronous_schemes_are_grouped_by_workers(self):
    groups = fidelity.group(_records(), fidelity.asynchronous_workers)
    counts = {name: each.conditions for name, each in groups.items()}
    self.assertEqual(counts, {'2 workers, unequal': 1, '8 workers, equal': 2})

  def test_stored_results_have_the_largest_error_that_they_say(self):
    results = store.read(_STORED, 'simulator')
    (total,) = (each for each in results.records if each['part'] == 'all')
    groups = fidelity.group(results.records, fidelity.scheme_or_route)
    sizes = max(max(-each.least, each.most) for each in groups.values())
    self.assertAlmostEqual(sizes, total['worst'], delta=1e-6)

  def test_tables_have_each_group_and_each_condition(self):
    with contextlib.redirect_stdout(io.StringIO()) as out:
      fidelity.print_tables([*_records()])
    text = re.sub(' +', ' ', out.getvalue())  # Columns are aligned.
    self.assertIn('| ssp | 1 | 1 | +50.0 % | +50.0 % |', text)
    self.assertIn('| 0.4000 | 0.5000 | -20.0 % |', text)
    for name in _TIMES:
      self.assertIn(f'| a | {name} | ', text)


class RepredictTest(absltest.TestCase):
  def test_the_present_model_predicts_stored_conditions(self):
    place, (condition, *_) = lab.draw_conditions('full')[0]
    record = {'lab': place.name, 'condition': condition.name, 'iterations': 4}
    (found,) = fidelity.repredict([record | {'virtual_s': 9.0}])
    run = condition._replace(iterations=4)
    expected_s = conditions.predict(place, run).mean_s
    self.assertEqual(found['virtual_s'], expected_s)

  def test_unknown_condition_is_refused(self):
    record = {'lab': 'a', 'condition': 'bsp, on the moon', 'iterations': 4}
    with self.assertRaisesRegex(ValueError, 'drawn one, got .*on the moon'):
      fidelity.repredict([record])

  def test_a_folder_without_results_is_refused(self):
    with self.assertRaisesRegex(ValueError, "results of 'simulator', got"):
      fidelity.read(pathlib.Path(tempfile.mkdtemp()))


if __name__ == '__main__':
  absltest.main()
