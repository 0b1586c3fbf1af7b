"""Blocks of code and commands of README.md, CONTRIBUTING.md and docs/."""

import ast
import pathlib
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from typing import NamedTuple
from unittest import mock

from absl import flags
from ml_collections import ConfigDict

from configs import config_file, sections

ROOT = pathlib.Path(__file__).parents[2]
_BLOCK = re.compile(r'^```(\w+)\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_DEFINE = re.compile(r'DEFINE_\w+$|\.define_(?:path|choices|integers)$')
_VARIABLE = re.compile(r'[A-Z_]+=')
# Flags of main.py beside those of its config.
_MAIN = ('workdir', 'role', 'coordinator')


class Block(NamedTuple):
  """A block of code on a page.

  Attributes:
    language: Language that the page names.
    text: Content of the block.
    line: Number of its first line on the page.
  """

  language: str
  text: str
  line: int


def pages() -> list[pathlib.Path]:
  """Returns README.md, CONTRIBUTING.md and all pages that are not generated."""
  written = [
    path
    for path in sorted((ROOT / 'docs').rglob('*.md'))
    if not {'_build', 'packages'} & set(path.parts)
  ]
  return [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *written]


def name(path: pathlib.Path) -> str:
  """Returns the path of a page for messages."""
  return str(path.relative_to(ROOT))


def blocks(path: pathlib.Path) -> list[Block]:
  """Returns the blocks of a page."""
  text = path.read_text()
  return [
    Block(found[1], found[2], text.count('\n', 0, found.start()) + 2)
    for found in _BLOCK.finditer(text)
  ]


def commands(text: str) -> Iterator[list[str]]:
  """Yields the commands of a block of shell, without comments and variables."""
  for line in text.replace('\\\n', ' ').splitlines():
    words = shlex.split(line, comments=True)
    while words and _VARIABLE.match(words[0]):
      words.pop(0)
    if words:
      yield words


def config(arguments: list[str]) -> tuple[ConfigDict, dict[str, str]]:
  """Returns the config that flags describe, and the other flags of main.py.

  Args:
    arguments: Arguments of `python main.py`; files are relative to ROOT.

  Raises:
    SystemExit: If a flag names an unknown field.
    absl.flags.Error: If a flag is unknown or its value is invalid.
  """
  values = flags.FlagValues()
  config_file.define_flag(None, '', flag_values=values)
  for flag in _MAIN:
    flags.DEFINE_string(flag, None, '', flag_values=values)
  with warnings.catch_warnings(), sections.reject_unknown_flags(arguments):
    # ml_collections loads the file in a deprecated way.
    warnings.filterwarnings('ignore', 'the load_module', DeprecationWarning)
    argv = ['main.py', *arguments]
    with mock.patch.object(sys, 'argv', argv):  # ml_collections reads it.
      rest = values(argv)
  if rest[1:]:
    raise flags.Error(f'Expected only flags, got {rest[1:]}.')
  others = {flag: values[flag].value for flag in _MAIN}
  return values.config, {k: v for k, v in others.items() if v is not None}


def flags_of(module: pathlib.Path) -> set[str]:
  """Returns the names of the flags that a command defines."""
  calls = [
    node
    for node in ast.walk(ast.parse(module.read_text()))
    if isinstance(node, ast.Call) and _DEFINE.search(ast.unparse(node.func))
  ]
  return {
    part.value
    for call in calls
    for part in call.args[:1]
    if isinstance(part, ast.Constant)
  }
