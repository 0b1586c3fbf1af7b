"""Tests for tools/resolve_requirements, with an index of a folder."""

import pathlib
import tempfile
import zipfile

from absl.testing import absltest, parameterized

from tests.support import requires
from tools import resolve_requirements as tool


def _wheel(folder, name, version, tag, python='>=3.11'):
  """Writes a wheel without any module."""
  info = f'{name}-{version}.dist-info'
  metadata = (
    f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n'
    f'Requires-Python: {python}\n'
  )
  path = folder / f'{name}-{version}-{tag}.whl'
  with zipfile.ZipFile(path, 'w') as file:
    file.writestr(f'{info}/METADATA', metadata)
    file.writestr(f'{info}/WHEEL', f'Wheel-Version: 1.0\nTag: {tag}\n')
    file.writestr(f'{info}/RECORD', '')


class ResolveRequirementsTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    requires.program('uv')
    self.folder = pathlib.Path(tempfile.mkdtemp())
    _wheel(self.folder, 'anywhere', '1.0', 'py3-none-any')
    _wheel(self.folder, 'anywhere', '2.0', 'py3-none-any', python='>=3.12')
    _wheel(self.folder, 'intel', '1.0', 'cp312-cp312-manylinux_2_28_x86_64')

  def _problem(self, text, python, machine):
    file = self.folder / 'requirements.txt'
    file.write_text(text)
    options = ['--no-index', f'--find-links={self.folder}', '--no-config']
    return tool.resolve(file, python=python, machine=machine, options=options)

  def test_markers_are_those_of_the_requested_python(self):
    text = (
      "anywhere==1.0; python_version < '3.12'\n"
      "anywhere==2.0; python_version >= '3.12'\n"
      "intel==1.0; platform_machine == 'x86_64' and python_version >= '3.12'\n"
    )
    for python in tool.PYTHONS:
      for machine in tool.MACHINES:
        self.assertEqual(self._problem(text, python, machine), '')

  @parameterized.parameters(
    ('anywhere==2.0', '3.11', 'x86_64', 'Python ?>=3.12'),
    ('intel==1.0', '3.12', 'aarch64', 'aarch64'),
    ('intel==1.0', '3.11', 'x86_64', 'cp311|cp312|Python'),
    ('anywhere==3.0', '3.12', 'x86_64', 'anywhere==3.0'),
  )
  def test_failed_resolutions_have_their_reason(
    self, text, python, machine, why
  ):
    self.assertRegex(self._problem(text, python, machine), why)

  def test_a_missing_index_is_an_error(self):
    file = self.folder / 'requirements.txt'
    file.write_text('anywhere==1.0')
    with self.assertRaises(ConnectionError):
      cache = f'--cache-dir={tempfile.mkdtemp()}'
      tool.resolve(
        file,
        python='3.12',
        machine='x86_64',
        options=['--offline', '--no-config', cache],
      )


if __name__ == '__main__':
  absltest.main()
