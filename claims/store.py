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
    rules: Rules of the claims when the runs started, by the texts of claims.
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


def find_changed(results: Results, entry: Entry) -> set[str]:
  """Returns the texts of claims whose rules are not those of the runs."""
  rules = json.loads(json.dumps(catalog.rules(entry)))
  return {
    text
    for text in results.rules.keys() & rules.keys()
    if results.rules[text] != rules[text]
  }


def find_late(results: Results, entry: Entry) -> set[str]:
  """Returns the texts of claims that have been written after the runs."""
  return catalog.rules(entry).keys() - results.rules.keys()


def find_dropped(results: Results, entry: Entry) -> list[str]:
  """Returns the texts of claims that the entry no longer has, sorted."""
  return sorted(results.rules.keys() - catalog.rules(entry).keys())


def read(folder: pathlib.Path, name: str) -> Results | None:
  """Returns the results of an entry, of full scale if possible, or None.

  Raises:
    ValueError: If a file has another format, or comes from an interrupted
      write; names the file.
  """
  for scale in reversed(catalog.SCALES):
    path = results_file(folder, name, scale)
    if path.exists():
      return _read(path)
  return None


def _round(record: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a record with floats rounded to `_DIGITS` digits."""
  return {
    field: float(f'{value:.{_DIGITS}g}') if isinstance(value, float) else value
    for field, value in sorted(record.items())
    if field != 'run' or record['status'] != 'finished'
  }


def _read(path: pathlib.Path) -> Results:
  content = atomic.read_object(path)
  if content is None:
    raise ValueError(
      f'{path}: expected stored results, got what an interrupted write has '
      'left; remove it and run its entry again.'
    )
  version = content.get('format')
  require(version == _FORMAT, str(path), f'format {_FORMAT}', version)
  return Results(
    content['scale'], content['about'], content['rules'], content['records']
  )
