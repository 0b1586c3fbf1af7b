"""Files of results: records of runs, and the rules of their entry."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from claims import catalog
from claims.published import Entry
from configs.checks import require
from outputs import atomic

_FORMAT = 1
_DIGITS = 9


class Results(NamedTuple):
  """Results of an entry.

  Attributes:
    scale: 'quick' or 'full'.
    about: Command, date, machine, versions and code.
    rules: Rules of the claims when the runs started.
    records: Records of all runs, including failed ones.
  """

  scale: str
  about: dict[str, Any]
  rules: dict[str, Any]
  records: list[dict[str, Any]]


def results_file(folder: pathlib.Path, name: str, scale: str) -> pathlib.Path:
  """Returns the file of an entry's results."""
  return folder / f'{name}-{scale}.json'


def write(folder: pathlib.Path, name: str, results: Results) -> pathlib.Path:
  """Writes the results of an entry; returns the file.

  Raises:
    OSError: If the file cannot be written.
  """
  path = results_file(folder, name, results.scale)
  head = {'format': _FORMAT, 'scale': results.scale, 'about': results.about}
  lines = [json.dumps(_round(record)) for record in results.records]
  text = json.dumps({**head, 'rules': results.rules}, indent=1)
  body = ',\n'.join(f'  {line}' for line in lines)
  atomic.write(path, f'{text[:-2]},\n "records": [\n{body}\n ]\n}}\n')
  return path


class Stale(ValueError):
  """Error of results whose rules differ from those of their entry."""


def read(folder: pathlib.Path, name: str, entry: Entry) -> Results | None:
  """Returns the results of an entry, of full scale if possible, or None.

  Raises:
    ValueError: If a file has another format, or comes from an interrupted
      write; names the file.
    Stale: If the rules of the entry have changed since.
  """
  for scale in reversed(catalog.SCALES):
    path = results_file(folder, name, scale)
    if path.exists():
      return _read(path, entry)
  return None


def _round(record: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a record with floats rounded to `_DIGITS` digits."""
  return {
    field: float(f'{value:.{_DIGITS}g}') if isinstance(value, float) else value
    for field, value in sorted(record.items())
    if field != 'run' or record['status'] != 'finished'
  }


def _read(path: pathlib.Path, entry: Entry) -> Results:
  content = atomic.read_object(path)
  if content is None:
    raise ValueError(
      f'{path}: expected stored results, got what an interrupted write has '
      'left; remove it and run its entry again.'
    )
  version = content.get('format')
  require(version == _FORMAT, str(path), f'format {_FORMAT}', version)
  rules = json.loads(json.dumps(catalog.rules(entry)))
  changed = sorted(
    text
    for text in content['rules'].keys() | rules.keys()
    if content['rules'].get(text) != rules.get(text)
  )
  if changed:
    raise Stale(
      f'{path}: expected the rules that were written before its runs; run it '
      f'again, got others of {changed}.'
    )
  return Results(
    content['scale'], content['about'], content['rules'], content['records']
  )
