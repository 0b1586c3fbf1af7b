"""Tests for claims.fidelity: signed errors of the virtual clock."""

import contextlib
import io
import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from claims import catalog, fidelity

_STORED = catalog.ROOT / 'results/simulator-full.json'
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


def _print(path):
  """Returns the exit code of the command, its output and its errors."""
  with (
    contextlib.redirect_stdout(io.StringIO()) as out,
    contextlib.redirect_stderr(io.StringIO()) as errors,
  ):
    code = fidelity.main([f'--results={path}'])
  return code, out.getvalue(), errors.getvalue()


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

  def test_stored_results_have_all_conditions_of_the_entry(self):
    records = json.loads(_STORED.read_text())['records']
    groups = fidelity.group(records, fidelity.scheme_or_route)
    (total,) = (each for each in records if each.get('part') == 'all')
    found = sum(each.conditions for each in groups.values())
    self.assertEqual(found, total['conditions'])
    sizes = max(max(-each.least, each.most) for each in groups.values())
    self.assertAlmostEqual(sizes, total['worst'], delta=1e-6)


class CommandTest(parameterized.TestCase):
  def test_tables_have_each_group_and_each_condition(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, 'x.json')
      path.write_text(json.dumps({'records': [*_records()]}))
      code, out, _ = _print(path)
    self.assertEqual(code, 0)
    self.assertIn('| ssp | 1 | 1 | +50.0 % | +50.0 % |', out)
    self.assertIn('| 0.4000 | 0.5000 | -20.0 % |', out)
    for name in _TIMES:
      self.assertIn(f'| a | {name} | ', out)

  @parameterized.named_parameters(
    ('no_file', None, "expected results of the entry 'simulator'"),
    ('none', {'records': []}, "results of the entry 'simulator'"),
    ('no_list', {'records': 3}, "results of the entry 'simulator'"),
    (
      'no_time',
      {'records': [next(_records()) | {'real_s': 0.0}]},
      'asp, 8 workers.*real_s: expected seconds above 0, got 0.0',
    ),
  )
  def test_other_files_are_refused(self, content, message):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, 'x.json')
      if content is not None:
        path.write_text(json.dumps(content))
      code, _, errors = _print(path)
    self.assertEqual(code, 1)
    self.assertRegex(errors, f'Refused: .*{message}')


if __name__ == '__main__':
  absltest.main()
