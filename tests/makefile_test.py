"""Tests for the Makefile: which requirements a host gets."""

import pathlib
import shutil
import subprocess
import tempfile

from absl.testing import absltest

from tests.support import gpus, requires

_ROOT = pathlib.Path(__file__).parents[1]
_CUDA, _CPU = '-r requirements.lock', '-r requirements-cpu.lock'


class RequirementsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    requires.program('make')
    self.folder = pathlib.Path(tempfile.mkdtemp())
    for path in (_ROOT / 'Makefile', *_ROOT.glob('requirements*.lock')):
      shutil.copy(path, self.folder)

  def _make(self, host, *words):
    return subprocess.run(
      ['make', *words, 'train', 'BIN=/bin/true', 'PYTHON=/bin/true'],
      cwd=self.folder,
      env=host.environ,
      capture_output=True,
      text=True,
      check=True,
    ).stdout

  def test_a_host_with_gpus_gets_cuda_where_one_without_was_first(self):
    without, with_gpus = gpus.Host(), gpus.Host(gpus.list_output(1))
    self.assertIn(_CPU, self._make(without, '-n'))
    (self.folder / '.venv').mkdir()
    # All stamps of a host without GPUs.
    for name in ('run', 'requirements-cpu'):
      (self.folder / '.venv' / name).touch()
    self.assertNotIn('pip', self._make(without, '-n'))
    self.assertIn(_CUDA, self._make(with_gpus, '-n'))
    (self.folder / '.venv/requirements').touch()
    for host in (without, with_gpus):
      self.assertNotIn('pip', self._make(host, '-n'))


if __name__ == '__main__':
  absltest.main()
