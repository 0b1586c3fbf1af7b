"""Results as files: what the runs of an entry came to, with its rules."""

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


class Stored(NamedTuple):
  """Results of an entry.

  Attributes:
    scale: 'quick' or 'full'.
    about: When and where, by which command.
    rules: Of the claims that were judged.
    records: Of all runs, those that failed among them.
  """

  scale: str
  about: dict[str, Any]
  rules: dict[str, Any]
  records: list[dict[str, Any]]


def file_of(folder: pathlib.Path, name: str, scale: str) -> pathlib.Path:
  """Returns the file of an entry's results."""
  return folder / f'{name}-{scale}.json'


def write(folder: pathlib.Path, name: str, stored: Stored) -> pathlib.Path:
  """Writes results; returns the file.

  Raises:
    OSError: If it cannot be written.
  """
  path = file_of(folder, name, stored.scale)
  head = {'format': _FORMAT, 'scale': stored.scale, 'about': stored.about}
  lines = [json.dumps(_short(record)) for record in stored.records]
  text = json.dumps({**head, 'rules': stored.rules}, indent=1)
  body = ',\n'.join(f'  {line}' for line in lines)
  atomic.write(path, f'{text[:-2]},\n "records": [\n{body}\n ]\n}}\n')
  return path


class Stale(ValueError):
  """Results that were judged by other rules than their entry has."""


def read(folder: pathlib.Path, name: str, entry: Entry) -> Stored | None:
  """Returns the results of an entry, full ones rather; None without any.

  Raises:
    ValueError: If they are of another format, or left of an interrupted
      write; names the file.
    Stale: If they were judged by other rules.
  """
  for scale in reversed(catalog.SCALES):
    path = file_of(folder, name, scale)
    if path.exists():
      return _read(path, entry)
  return None


def _short(record: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a record with no more digits than matter."""
  return {
    field: float(f'{value:.{_DIGITS}g}') if isinstance(value, float) else value
    for field, value in sorted(record.items())
    if field != 'run' or record['status'] != 'finished'
  }


def _read(path: pathlib.Path, entry: Entry) -> Stored:
  whole = atomic.read_object(path)
  if whole is None:
    raise ValueError(
      f'{path}: expected stored results, got what an interrupted write has '
      'left; remove it and run its entry again.'
    )
  found = whole.get('format')
  require(found == _FORMAT, str(path), f'format {_FORMAT}', found)
  rules = json.loads(json.dumps(catalog.rules(entry)))
  changed = sorted(
    text
    for text in whole['rules'].keys() | rules.keys()
    if whole['rules'].get(text) != rules.get(text)
  )
  if changed:
    raise Stale(
      f'{path}: expected the rules that were written before its runs; run it '
      f'again, got others of {changed}.'
    )
  return Stored(
    whole['scale'], whole['about'], whole['rules'], whole['records']
  )
