"""Runs what README.md shows, as it stands there."""

import json
import os
import pathlib
import re
import tempfile

from absl.testing import absltest, parameterized

from tests.support import small

_ROOT = pathlib.Path(__file__).parents[1]
_BLOCK = re.compile(r'```python\n(.*?)```', re.DOTALL)


def _blocks():
  return _BLOCK.findall((_ROOT / 'README.md').read_text())


def _executed(block):
  """Returns the summary of the run that a block makes, as a script."""
  folder = pathlib.Path(tempfile.mkdtemp())
  (folder / 'script.py').write_text(block)
  done = small.python('script.py', cwd=folder, PYTHONWARNINGS='error')
  if done.returncode:
    raise AssertionError(done.stderr)
  (summary,) = folder.glob('runs/*/summary.json')
  return json.loads(summary.read_text())


class ReadmeTest(parameterized.TestCase):
  def test_an_own_scheme_takes_50_lines(self):
    block, _ = _blocks()
    self.assertLess(len(block.splitlines()), 50)
    summary = _executed(block)
    self.assertEqual(summary['ended'], 'finished')
    self.assertEqual(summary['updates'], summary['iterations'] // 2)
    self.assertGreater(summary['staleness_mean'], 0)

  def test_own_model_loss_and_data_take_30_lines(self):
    _, block = _blocks()
    lines = [line for line in block.splitlines() if line]
    self.assertLessEqual(len(lines), 30)
    self.assertGreater(_executed(block)['final_accuracy'], 0.93)

  def test_every_command_names_files_that_exist(self):
    text = (_ROOT / 'README.md').read_text()
    for path in re.findall(r'(?:configs|bench|tools)/\w+\.py', text):
      self.assertTrue((_ROOT / path).exists(), path)
    for module in re.findall(r'-m ((?:bench|tools)\.\w+)', text):
      path = _ROOT / f'{module.replace(".", os.sep)}.py'
      self.assertTrue(path.exists(), module)


if __name__ == '__main__':
  absltest.main()
