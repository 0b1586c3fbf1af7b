"""Configuration of Sphinx for `make docs`, with MyST and the book theme.

Before Sphinx reads the pages, this module writes those of docs/api/packages/,
one for each package, with every module of it, and the tables of docs/fields.md:
no list of modules or fields can be out of date.  No network is used.
"""

import pathlib
import re
import sys
from typing import Any

from sphinx.application import Sphinx

_DOCS = pathlib.Path(__file__).parent
_ROOT = _DOCS.parent
sys.path.insert(0, str(_ROOT))

from configs import reference  # noqa: E402

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
# Names that a module re-exports are documented in both modules.
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

# First sentence of each package's page.
PACKAGES = {
  'sync': 'Schemes decide when a worker may continue.',
  'batching': 'Batchings decide how much each worker computes.',
  'wire': 'Codecs decide what is sent.',
  'route': 'Routes decide where it travels.',
  'predict': 'Predictors of worker speeds.',
  'diagnosis': 'Slow workers, links and stages, and what they cost.',
  'topology': 'Clusters as graphs, forests and their bounds.',
  'learning': 'Gradients, their layout, updates and evaluations.',
  'models': 'Flax NNX models, and the interface of tasks.',
  'data': 'Data sets and the stream of examples.',
  'outputs': 'Files that a run writes: rows, checkpoints, summary.',
  'cluster': 'Coordinator, training loop, virtual clock and real hosts.',
}
# Words that begin a section of a docstring.
_SECTIONS = ('Args', 'Attributes', 'Example', 'Raises', 'Returns', 'Yields')


def modules(package: str) -> list[str]:
  """Returns the names of a package's subpackages and modules."""
  files = sorted((_ROOT / package).rglob('*.py'), key=_order)
  names = [
    '.'.join(path.relative_to(_ROOT).with_suffix('').parts) for path in files
  ]
  return [name.removesuffix('.__init__') for name in names]


def _order(path: pathlib.Path) -> tuple:
  """Returns a sort key: packages first, then the module named like it."""
  packages, name = path.parts[:-1], path.stem
  return packages, name != '__init__', name != packages[-1], name


def _write_packages(app: Sphinx) -> None:
  """Writes the page of each package, unless it has not changed."""
  del app
  folder = _DOCS / 'api' / 'packages'
  folder.mkdir(exist_ok=True)
  for package, sentence in PACKAGES.items():
    lines = [f'# {package}', '', sentence, '']
    for name in modules(package):
      lines += [f'## {name}', '', '```{eval-rst}', f'.. automodule:: {name}']
      if (_ROOT / name.replace('.', '/')).is_dir():
        lines += ['   :no-members:']  # Their own modules document them.
      lines += ['```', '']
    text = '\n'.join(lines)
    page = folder / f'{package}.md'
    if not page.exists() or page.read_text() != text:
      page.write_text(text)


def _write_fields(app: Sphinx) -> None:
  """Writes the tables that docs/fields.md includes."""
  del app
  (_DOCS / '_build').mkdir(exist_ok=True)
  (_DOCS / '_build' / 'fields.md').write_text(reference.as_markdown())


def _as_rst(
  app: Sphinx, kind: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
  """Turns indented lines, most of which are tables, into literal blocks."""
  # The sections of a docstring, which follow them, do not change.
  del app, kind, name, obj, options
  rst, literal = [], False
  for number, line in enumerate(lines):
    if line.rstrip(':') in _SECTIONS:
      rst += lines[number:]
      break
    if literal and line and not line.startswith('  '):
      literal = False
    indented = line.startswith('  ')
    if line and not indented and rst and rst[-1].startswith('  '):
      rst.append('')
    starts = indented and (not rst or not rst[-1].strip())
    if starts and not literal:
      rst += ['::', '']
      literal = True
    rst.append(line if literal else _escape(line))
  lines[:] = rst


def _escape(line: str) -> str:
  """Returns a line of reST: stars as text, code that letters may follow."""
  parts = re.split(r'(`[^`]+`)', line)
  parts[::2] = [text.replace('*', r'\*') for text in parts[::2]]
  return re.sub(r'(`[^`]+`)(?=\w)', r'\1\\ ', ''.join(parts))


def setup(app: Sphinx) -> None:
  """Registers the hooks of this module."""
  app.connect('builder-inited', _write_packages)
  app.connect('builder-inited', _write_fields)
  app.connect('autodoc-process-docstring', _as_rst, priority=400)
