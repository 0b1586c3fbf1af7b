"""Says whether two runs gave the same, to the last bit, but for real time.

  python -m tools.same runs/before runs/after

Compares metrics, events, timeline and summary of two folders.  Fields of real
time, which start with `wall_`, are left out.  The exit status is 1 if anything
else differs; the first difference of each file is printed.
"""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

from absl import app

_FILES = ('metrics.jsonl', 'events.jsonl', 'trace.json', 'summary.json')


def differences(before: pathlib.Path, after: pathlib.Path) -> Iterator[str]:
  """Yields the first difference of each file of two runs, as text.

  Args:
    before: Folder of a run.
    after: Folder of the other.

  Raises:
    OSError: If a file is missing.
    ValueError: If a file is no JSON.
  """
  for name in _FILES:
    rows = _rows(before / name), _rows(after / name)
    pairs = enumerate(zip(*rows, strict=False))
    for number, (one, other) in pairs:
      if one != other:
        yield f'{name}: row {number}: {_changed(one, other)}'
        break
    else:
      if len(rows[0]) != len(rows[1]):
        yield f'{name}: {len(rows[0])} and {len(rows[1])} rows'


def _rows(path: pathlib.Path) -> list[Any]:
  text = path.read_text()
  if path.suffix == '.jsonl':
    return [_timeless(json.loads(line)) for line in text.splitlines()]
  found = json.loads(text)
  return found if isinstance(found, list) else [_timeless(found)]


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
  return {k: v for k, v in row.items() if not k.startswith('wall_')}


def _changed(one: dict[str, Any], other: dict[str, Any]) -> str:
  fields = sorted(
    key for key in one.keys() | other.keys() if one.get(key) != other.get(key)
  )
  return '; '.join(f'{k} {one.get(k)!r} and {other.get(k)!r}' for k in fields)


def main(argv: list[str]) -> None:
  """Compares the two folders that are named."""
  if len(argv) != 3:
    raise app.UsageError(f'Expected two folders, got {argv[1:]}.')
  found = list(differences(pathlib.Path(argv[1]), pathlib.Path(argv[2])))
  print('\n'.join(found) or 'The same.')
  raise SystemExit(bool(found))


if __name__ == '__main__':
  app.run(main)
