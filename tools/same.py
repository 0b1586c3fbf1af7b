"""Compares two runs to the last bit, except for real time.

  python -m tools.same runs/before runs/after

Compares metrics, events, timeline and summary of two folders.  Fields of real
time, which start with `wall_`, are ignored.  The exit status is 1 if anything
else differs; the first difference of each file is printed.
"""

import pathlib
from collections.abc import Iterator

from absl import app

from tools.reading import checking, records

_FILES = ('metrics.jsonl', 'events.jsonl', 'trace.json', 'summary.json')


def differences(before: pathlib.Path, after: pathlib.Path) -> Iterator[str]:
  """Yields the first difference of each file of two runs, as text.

  Args:
    before: Folder of a run.
    after: Folder of the other run.

  Raises:
    OSError: If a file is missing.
    ValueError: If a file is not valid JSON.
  """
  for name in _FILES:
    rows = [
      [records.without_real_time(row) for row in records.read_rows(path / name)]
      for path in (before, after)
    ]
    found = checking.first_difference(zip(*rows, strict=False))
    if found:
      fields = checking.describe_fields(found.before, found.after)
      yield f'{name}: row {found.row}: {fields}'
    elif len(rows[0]) != len(rows[1]):
      yield f'{name}: {len(rows[0])} and {len(rows[1])} rows'


def main(argv: list[str]) -> None:
  """Compares the two folders that the command line names."""
  if len(argv) != 3:
    raise app.UsageError(f'Expected two folders, got {argv[1:]}.')
  found = list(differences(pathlib.Path(argv[1]), pathlib.Path(argv[2])))
  print('\n'.join(found) or 'The same.')
  raise SystemExit(bool(found))


if __name__ == '__main__':
  app.run(main)
