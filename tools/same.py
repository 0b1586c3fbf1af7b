"""Compares two runs to the last bit, except for real time.

  python -m tools.same runs/before runs/after

Compares metrics, events, timeline and summary of two folders.  Fields of real
time, which start with `wall_`, are ignored.  The exit status is 1 if anything
else differs; fields of the configs that differ are printed, then the first
difference of each file, with long values cut.
"""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from absl import app

from analysis import checking, runs

_MOST = 12  # Differences that are printed of a config, or of a row.
_LONGEST = 60  # Characters of a printed value.
_FILES = ('metrics.jsonl', 'events.jsonl', 'trace.json', 'summary.json')


def differences(before: pathlib.Path, after: pathlib.Path) -> Iterator[str]:
  """Yields the differences of the configs and the first one of each file.

  Args:
    before: Folder of a run.
    after: Folder of the other run.

  Raises:
    OSError: If a file is missing.
    ValueError: If a file is not valid JSON.
  """
  configs = [dict(_fields(runs.read(path).config)) for path in (before, after)]
  yield from (f'config.{text}' for text in _describe(*configs))
  for name in _FILES:
    rows = [
      [runs.without_real_time(row) for row in runs.read_objects(path / name)]
      for path in (before, after)
    ]
    found = checking.first_difference(zip(*rows, strict=False))
    if found:
      fields = '; '.join(_describe(found.before, found.after))
      yield f'{name}: row {found.row}: {fields}'
    elif len(rows[0]) != len(rows[1]):
      yield f'{name}: {len(rows[0])} and {len(rows[1])} rows'


def _fields(
  section: Mapping[str, Any], above: str = ''
) -> Iterator[tuple[str, Any]]:
  """Yields the path and the value of every field of a config."""
  for name, value in section.items():
    if isinstance(value, Mapping):
      yield from _fields(value, f'{above}{name}.')
    else:
      yield above + name, value


def _describe(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
  """Returns the fields in which two objects differ, with both values."""
  fields = sorted(
    name
    for name in before.keys() | after.keys()
    if before.get(name) != after.get(name)
  )
  texts = [
    f'{field} {_cut(before.get(field))} and {_cut(after.get(field))}'
    for field in fields[:_MOST]
  ]
  more = len(fields) - _MOST
  return [*texts, f'and {more} other fields'] if more > 0 else texts


def _cut(value: Any) -> str:
  """Returns a value as text that is not too long."""
  text = repr(value)
  return text if len(text) <= _LONGEST else f'{text[: _LONGEST - 4]} ...'


def main(argv: list[str]) -> None:
  """Compares the two folders that the command line names."""
  if len(argv) != 3:
    raise app.UsageError(f'Expected two folders, got {argv[1:]}.')
  found = list(differences(pathlib.Path(argv[1]), pathlib.Path(argv[2])))
  print('\n'.join(found) or 'The same.')
  raise SystemExit(bool(found))


if __name__ == '__main__':
  app.run(main)
