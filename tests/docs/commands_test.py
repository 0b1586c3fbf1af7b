"""Tests for the page of commands and for what commands say of themselves."""

import ast
import pathlib
import re

from absl.testing import absltest, parameterized

_ROOT = pathlib.Path(__file__).parents[2]
_PAGE = (_ROOT / 'docs/commands.md').read_text()
_COMMANDS = {
  **{name: _ROOT / f'{name}.py' for name in ('main', 'sweep', 'reproduce')},
  **{
    f'tools.{path.stem}': path
    for path in sorted((_ROOT / 'tools').glob('*.py'))
    if 'app.run(' in path.read_text()
  },
}
_BENCHMARKS = {
  '.'.join(path.relative_to(_ROOT).with_suffix('').parts).removesuffix(
    '.__main__'
  ): path
  for path in sorted((_ROOT / 'bench').rglob('*.py'))
  if 'app.run(' in path.read_text()
}
_ALL = _COMMANDS | _BENCHMARKS


def _flags(tree):
  """Yields the name of each flag that a module defines, and its help."""
  for node in ast.walk(tree):
    name = ast.unparse(node.func) if isinstance(node, ast.Call) else ''
    if name == 'paths.define_path':
      place = 1
    elif name.startswith('flag_lists.'):
      place = 2
    elif name.startswith('flags.DEFINE_'):
      place = 3 if name.endswith('_enum') else 2
    else:
      continue
    yield ast.unparse(node.args[0]), ast.unparse(node.args[place])


class CommandsTest(parameterized.TestCase):
  def test_the_page_lists_each_command(self):
    listed = re.findall(r'^\| `(?:python -m )?([\w.]+)` ', _PAGE, re.MULTILINE)
    names = [name.removesuffix('.py') for name in listed]
    self.assertCountEqual(names, _COMMANDS)

  @parameterized.parameters(*_ALL)
  def test_help_begins_with_the_purpose_and_has_an_example(self, name):
    text = ast.get_docstring(ast.parse(_ALL[name].read_text()))
    self.assertRegex(text.splitlines()[0], r'^[A-Z].*[.:]')
    is_script = _ALL[name].parent == _ROOT
    called = f'{name}.py ' if is_script else f'-m {name} '
    self.assertIn(called, f'{text} '.replace('\n', ' '))

  @parameterized.parameters(*_ALL)
  def test_each_flag_says_what_it_is(self, name):
    for flag, text in _flags(ast.parse(_ALL[name].read_text())):
      self.assertGreater(len(text), 3, flag)


if __name__ == '__main__':
  absltest.main()
