"""Tests for tools/resolve_requirements, with an index of a folder."""

import hashlib
import pathlib
import re
import tempfile
import zipfile

from absl.testing import absltest, parameterized

from tests.support import requires
from tools import resolve_requirements as tool


def _wheel(folder, name, version, tag, python='>=3.11', needs=''):
  """Writes a wheel without any module."""
  info = f'{name}-{version}.dist-info'
  metadata = (
    f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n'
    f'Requires-Python: {python}\n'
  )
  if needs:
    metadata += f'Requires-Dist: {needs}\n'
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

  def _lock(self, text, below=None):
    file = self.folder / 'requirements.txt'
    file.write_text(text)
    options = ['--no-index', f'--find-links={self.folder}', '--no-config']
    return tool.lock(file, below=below, options=options)

  def test_a_lock_has_all_packages_with_the_hashes_of_their_files(self):
    _wheel(self.folder, 'needed', '1.0', 'py3-none-any')
    _wheel(self.folder, 'user', '1.0', 'py3-none-any', needs='needed')
    text = self._lock(
      "user==1.0\nanywhere==1.0; python_version < '3.12'\n"
      "anywhere==2.0; python_version >= '3.12'\n"
    )
    for name, version in (
      *(('needed', '1.0'), ('user', '1.0')),
      *(('anywhere', '1.0'), ('anywhere', '2.0')),
    ):
      path = self.folder / f'{name}-{version}-py3-none-any.whl'
      digest = hashlib.sha256(path.read_bytes()).hexdigest()
      self.assertRegex(
        text, rf'(?m)^{name}=={version}.*\\\n    --hash=sha256:{digest}$'
      )

  def test_a_lock_keeps_versions_that_its_file_allows(self):
    _wheel(self.folder, 'needed', '1.0', 'py3-none-any')
    _wheel(self.folder, 'user', '1.0', 'py3-none-any', needs='needed')
    text = self._lock('user==1.0\n')
    tool.lock_of(self.folder / 'requirements.txt').write_text(text)
    _wheel(self.folder, 'needed', '2.0', 'py3-none-any')
    self.assertEqual(self._lock('user==1.0\n'), text)
    self.assertIn('needed==2.0', self._lock('user==1.0\nneeded==2.0\n'))

  def test_a_lock_has_the_versions_of_what_is_installed_below(self):
    for version in ('1.0', '2.0'):
      _wheel(self.folder, 'needed', version, 'py3-none-any')
    below = self.folder / 'below.lock'
    below.write_text('needed==1.0\n')
    self.assertIn('needed==2.0', self._lock('needed\n'))
    self.assertIn('needed==1.0', self._lock('needed\n', below))

  def test_a_file_that_does_not_resolve_has_no_lock(self):
    with self.assertRaisesRegex(ValueError, '^requirements.txt: .*anywhere'):
      self._lock('anywhere==3.0\n')

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


class LocksTest(parameterized.TestCase):
  @parameterized.parameters(*tool.FILES)
  def test_a_lock_has_each_pin_of_its_file_and_hashes_of_all_packages(
    self, file
  ):
    name, locked = '', {}
    for line in tool.lock_of(file).read_text().splitlines():
      if line.startswith('    --hash=sha256:'):
        locked[name] += 1
      else:
        name = line.partition(' ')[0]
        locked.setdefault(name, 0)
    self.assertTrue(all(locked.values()), locked)
    pins = re.findall(r'(?m)^([\w.-]+)(?:\[\w+\])?(==[\w.]+)', file.read_text())
    self.assertNotEmpty(pins)
    for name, version in pins:
      name = re.sub('[-_.]+', '-', name).lower()
      self.assertIn(f'{name}{version}', locked)


if __name__ == '__main__':
  absltest.main()
