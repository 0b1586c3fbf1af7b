"""How `make docs` builds these pages: Sphinx, MyST, the book theme.

The pages of docs/api/rooms/ are written here, before Sphinx reads the rest: one
for each room, with every module of it, so that no list of modules can be out
of date.  No network is used.
"""

import pathlib
import re
import sys
from typing import Any

from sphinx.application import Sphinx

_DOCS = pathlib.Path(__file__).parent
_ROOT = _DOCS.parent
sys.path.insert(0, str(_ROOT))

project = 'Syncopate'
author = 'The Syncopate authors'
copyright = 'The Syncopate authors; Apache License 2.0'
release = re.search(
  r'^version = "(.+)"$', (_ROOT / 'pyproject.toml').read_text(), re.MULTILINE
)[1]

extensions = [
  'myst_parser',
  'sphinx.ext.autodoc',
  'sphinx.ext.napoleon',
  'sphinx.ext.viewcode',
]
exclude_patterns = ['_build']
# Names that a module hands on are documented where they are, and there again.
suppress_warnings = ['ref.python']

# Backquotes are code in our docstrings.
default_role = 'code'

myst_heading_anchors = 3

html_theme = 'sphinx_book_theme'
html_title = 'Syncopate'
html_theme_options = {
  'navbar_persistent': [],  # One field to search in is enough.
  'show_toc_level': 2,
  'use_download_button': False,
  'use_fullscreen_button': False,
}
html_show_sourcelink = False
pygments_style = 'friendly'

autodoc_default_options = {
  'members': True,
  'member-order': 'bysource',
}
autodoc_typehints = 'signature'
autodoc_typehints_format = 'short'
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

# Rooms of the code, each with what it holds.  Packages in them follow.
ROOMS = {
  'sync': 'When may a worker go on?',
  'batching': 'How much does each worker compute?',
  'wire': 'What travels?',
  'route': 'Where does it travel?',
  'predict': 'How fast will each worker be?',
  'topology': 'Clusters as graphs, forests and their bounds.',
  'learning': 'What is learned, whoever does it.',
  'models': 'Flax NNX models, and what a model is to a run.',
  'data': 'Data sets and the stream of examples.',
  'outputs': 'What a run leaves.',
  'cluster': 'Who runs it: the lead, the virtual clock, real hosts.',
}
# Words that begin a section of a docstring.
_SECTIONS = ('Args', 'Attributes', 'Example', 'Raises', 'Returns', 'Yields')


def modules(room: str) -> list[str]:
  """Returns a room's packages that say what they are, and its modules."""
  files = sorted((_ROOT / room).rglob('*.py'), key=_order)
  names = [
    '.'.join(path.relative_to(_ROOT).with_suffix('').parts) for path in files
  ]
  return [name.removesuffix('.__init__') for name in names]


def _order(path: pathlib.Path) -> tuple:
  """A package comes before its modules, of which that of its name is first."""
  packages, name = path.parts[:-1], path.stem
  return packages, name != '__init__', name != packages[-1], name


def _write_rooms(app: Sphinx) -> None:
  del app
  folder = _DOCS / 'api' / 'rooms'
  folder.mkdir(exist_ok=True)
  for room, what in ROOMS.items():
    lines = [f'# {room}', '', what, '']
    for name in modules(room):
      lines += [f'## {name}', '', '```{eval-rst}', f'.. automodule:: {name}']
      if (_ROOT / name.replace('.', '/')).is_dir():
        lines += ['   :no-members:']  # They are where they are defined.
      lines += ['```', '']
    text = '\n'.join(lines)
    page = folder / f'{room}.md'
    if not page.exists() or page.read_text() != text:
      page.write_text(text)


def _as_rst(
  app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
  """Shows blocks that a docstring indents as they stand: most are tables.

  They come before the sections of a docstring, which are left as they are.
  """
  del app, what, name, obj, options
  told, literal = [], False
  for number, line in enumerate(lines):
    if line.rstrip(':') in _SECTIONS:
      told += lines[number:]
      break
    if literal and line and not line.startswith('  '):
      literal = False
    indented = line.startswith('  ')
    if line and not indented and told and told[-1].startswith('  '):
      told.append('')
    starts = indented and (not told or not told[-1].strip())
    if starts and not literal:
      told += ['::', '']
      literal = True
    told.append(line if literal else _escaped(line))
  lines[:] = told


def _escaped(line: str) -> str:
  """Stars are products, and code may have letters right behind it."""
  parts = re.split(r'(`[^`]+`)', line)
  parts[::2] = [text.replace('*', r'\*') for text in parts[::2]]
  return re.sub(r'(`[^`]+`)(?=\w)', r'\1\\ ', ''.join(parts))


def setup(app: Sphinx) -> None:
  """Registers both."""
  app.connect('builder-inited', _write_rooms)
  app.connect('autodoc-process-docstring', _as_rst, priority=400)
