"""A page of runs: one file, which needs no network.

Curves are drawn by plotly.js, which is in the page once.
"""

import importlib.resources
import json
import pathlib
from typing import Any

from plotly import offline

from outputs import atomic
from tools.pages import series
from tools.pages.sources import Content

NAME = 'report.html'


def write(content: Content, out: str | pathlib.Path) -> pathlib.Path:
  """Writes the page; returns it.

  Args:
    content: Content of the page.
    out: Folder, created if it is missing.

  Raises:
    ValueError: If a file of a run is broken.
    OSError: If the page cannot be written.
  """
  text = render(content)
  out = pathlib.Path(out)
  out.mkdir(parents=True, exist_ok=True)
  path = out / NAME
  atomic.write(path, text)
  return path


def render(content: Content) -> str:
  """Returns the page."""
  data = {
    'tables': [table._asdict() for table in content.tables],
    'runs': [series.of(name, run) for name, run in content.runs],
  }
  parts = {
    '/* style */': _file('page.css'),
    '/* library */': offline.get_plotlyjs(),
    '/* tables */': _file('tables.js'),
    '/* charts */': _file('charts.js'),
    '/* script */': _file('page.js'),
    '/* data */': embedded(data),
  }
  text = _file('page.html')
  for place, part in parts.items():
    before, after = text.split(place)
    text = before + part + after
  return text


def embedded(data: Any) -> str:
  """Returns JSON for a script element of HTML, in which no text can end it."""
  text = json.dumps(data, separators=(',', ':'), allow_nan=False)
  return text.replace('<', '\\u003c').replace('>', '\\u003e')


def _file(name: str) -> str:
  folder = importlib.resources.files('tools.pages')
  return folder.joinpath(name).read_text(encoding='utf-8')
