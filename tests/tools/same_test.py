"""Tests for tools.same: the differences of two runs are named."""

import json
import pathlib
import shutil
import tempfile

from absl.testing import absltest, parameterized

from tests.support import small
from tools import same


class SameTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    run, _ = small.execute(epochs=0.5)
    cls.folder = pathlib.Path(run.files.workdir)

  def _copy(self):
    return pathlib.Path(shutil.copytree(self.folder, f'{tempfile.mkdtemp()}/a'))

  def test_two_runs_of_a_config_are_the_same(self):
    run, _ = small.execute(epochs=0.5)
    other = pathlib.Path(run.files.workdir)
    self.assertEqual(list(same.differences(self.folder, other)), [])

  def test_of_two_configs_the_fields_come_first_and_values_are_cut(self):
    run, _ = small.execute(
      epochs=0.6, time_to=tuple(n / 100 for n in range(1, 99))
    )
    other = pathlib.Path(run.files.workdir)
    found = list(same.differences(self.folder, other))
    self.assertEqual(found[0], 'config.epochs 0.5 and 0.6')
    self.assertRegex(found[1], r'^config.time_to \[.*\] and \[0.01, .* \.\.\.$')
    self.assertRegex(found[2], '^[a-z]+[.]json')
    self.assertLess(len('\n'.join(found)), 3000)

  @parameterized.parameters(
    ('metrics.jsonl', 'time'), ('events.jsonl', 'time'), ('trace.json', 'ts')
  )
  def test_a_changed_row_is_named(self, name, field):
    other = self._copy()
    lines = (other / name).read_text().split('\n')
    number = next(n for n, line in enumerate(lines) if f'"{field}"' in line)
    row = json.loads(lines[number].rstrip(','))
    row[field] += 1e-9
    end = ',' if lines[number].endswith(',') else ''
    lines[number] = json.dumps(row) + end
    (other / name).write_text('\n'.join(lines))
    (found,) = same.differences(self.folder, other)
    self.assertRegex(found, rf'{name}: row \d+: {field} ')

  def test_a_missing_row_and_a_changed_summary_are_named(self):
    other = self._copy()
    lines = (other / 'events.jsonl').read_text().splitlines()
    (other / 'events.jsonl').write_text('\n'.join(lines[:-1]))
    summary = json.loads((other / 'summary.json').read_text())
    summary |= {'wall_s': 0.0, 'updates': -1}
    (other / 'summary.json').write_text(json.dumps(summary))
    found = list(same.differences(self.folder, other))
    self.assertEqual(
      found[0], f'events.jsonl: {len(lines)} and {len(lines) - 1} rows'
    )
    self.assertRegex(found[1], r'summary.json: row 0: updates \d+ and -1$')


if __name__ == '__main__':
  absltest.main()
