"""Tables of runs, from their folders and from those of sweeps."""

import csv
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

from analysis import records
from analysis.records import RunRecord
from configs import cells

_MOST = 40  # Runs that are shown in detail; others have only a row.
_ACCURACY = 'final_accuracy'  # None of tasks without one.
_RESULTS, _SUMMARY_FILE = 'results.csv', 'summary.json'
_ALWAYS = (
  *('seed', 'sync.name', 'batching.name', 'wire.name', 'route.name'),
  'cluster.workers',
)
# Columns beside the fields in which runs differ.
_SUMMARY = (
  *('time_s', 'iterations', 'updates', 'waiting_share'),
  *('staleness_mean', 'goodput'),
)


class Table(NamedTuple):
  """Table with a row for each run.

  Attributes:
    title: Heading of the table.
    columns: Names of the columns.
    rows: Rows, each with a text, number, bool or None per column.
  """

  title: str
  columns: Sequence[str]
  rows: Sequence[Sequence[Any]]


class Content(NamedTuple):
  """Tables, and the runs that a report shows in detail.

  Attributes:
    tables: Tables, one of each sweep and one of all other runs.
    runs: Names and records of runs that have ended, the first 40.
  """

  tables: Sequence[Table]
  runs: Sequence[tuple[str, RunRecord]]


def read(folders: Iterable[str | pathlib.Path]) -> Content:
  """Returns the content of the folders.

  A folder with results.csv is that of a sweep, any other that of a run.

  Args:
    folders: Folders, at least one.

  Raises:
    ValueError: If a folder is neither, is empty, or holds a run that has not
      ended; names the folder.
    OSError: If a file cannot be read.
  """
  tables: list[Table] = []
  runs: list[tuple[str, RunRecord]] = []
  alone = []
  for folder in map(pathlib.Path, folders):
    if (folder / _RESULTS).is_file():
      tables.append(_sweep(folder, runs))
    else:
      alone.append((str(folder), _run(folder)))
  if alone:
    tables.append(_of_runs(alone))
    runs += alone
  return Content(tables, runs)


def _run(folder: pathlib.Path) -> RunRecord:
  if folder.is_dir() and not any(folder.iterdir()):
    raise ValueError(
      f'{folder}: expected a run, or a sweep with {_RESULTS}, got an empty '
      'folder.'
    )
  run = records.load(folder)
  if run.summary is None:
    raise ValueError(
      f'{folder}: expected a run that has ended, with summary.json, got one '
      'without.'
    )
  return run


def _sweep(folder: pathlib.Path, runs: list[tuple[str, RunRecord]]) -> Table:
  """Returns the table of a sweep, and adds to `runs` those that have ended."""
  path = folder / _RESULTS
  with path.open(encoding='utf-8', newline='') as file:
    read = [list(map(cells.unescape, row)) for row in csv.reader(file)]
  columns, *rows = read or [[]]
  if not rows or columns[:2] != ['run', 'status']:
    raise ValueError(
      f'{path}: expected a row for each run, after the names run and status, '
      f'got {len(rows)} rows after {columns[:2]}.'
    )
  ended = [
    row[0] for row in rows if (folder / row[0] / _SUMMARY_FILE).is_file()
  ]
  chosen = ended[: max(_MOST - len(runs), 0)]
  runs += [(name, records.load(folder / name)) for name in chosen]
  if len(chosen) < len(rows):
    logging.warning(
      '%s: %d of %d runs have a row alone: they have not ended, or there are '
      'more than %d.',
      *(folder, len(rows) - len(chosen), len(rows), _MOST),
    )
  end = len(columns)  # Before any run has ended, there are no measures.
  if _ACCURACY in columns:
    end = columns.index(_ACCURACY)
  every = list(zip(*rows, strict=True))
  shown = [
    k
    for k, name in enumerate(columns)
    if k < end or (_is_shown(name) and (name != _ACCURACY or any(every[k])))
  ]
  values = [_numbers(every[k]) for k in shown]
  names = [columns[k] for k in shown]
  return Table(f'Sweep {folder}', names, list(zip(*values, strict=True)))


def _is_shown(name: str) -> bool:
  """Returns whether a field of a summary, by dotted name, has a column."""
  is_accuracy = name.startswith('to_accuracy.')  # In `time_to`.
  reached = name.startswith('to_') and name.endswith('.time_s')
  measured = name.startswith(('final_', 'time_to.'))
  return name in _SUMMARY or measured or (reached and not is_accuracy)


def _numbers(column: Sequence[str]) -> list[Any]:
  """Returns a column's numbers if all that it has are, else its texts."""
  numbers = [_number(text or None) for text in column]
  if all(isinstance(number, float | None) for number in numbers):
    return numbers
  return [text or None for text in column]


def _of_runs(runs: Sequence[tuple[str, RunRecord]]) -> Table:
  flat = [_flat(run.config) for _, run in runs]
  fields = dict.fromkeys(name for each in flat for name in each)
  differ = [
    name
    for name in fields
    if name in _ALWAYS or len({str(each.get(name)) for each in flat}) > 1
  ]
  summaries = [
    {
      name: value
      for name, value in _flat(run.summary or {}).items()
      if _is_shown(name) and (name != _ACCURACY or value is not None)
    }
    for _, run in runs
  ]
  measured = dict.fromkeys(name for each in summaries for name in each)
  columns = ['run', 'ended', *differ, *measured]
  rows = [
    [
      *(name, run.ended),
      *(config.get(field) for field in differ),
      *(summary.get(field) for field in measured),
    ]
    for (name, run), config, summary in zip(runs, flat, summaries, strict=True)
  ]
  return Table('Runs', columns, rows)


def _flat(values: Mapping[str, Any], above: str = '') -> dict[str, Any]:
  """Returns values by dotted name; lists as text."""
  flat: dict[str, Any] = {}
  for name, value in values.items():
    if isinstance(value, Mapping):
      flat |= _flat(value, f'{above}{name}.')
    else:
      listed = isinstance(value, list)
      flat[above + name] = (
        f'({", ".join(map(str, value))})' if listed else value
      )
  return flat


def _number(text: str | None) -> str | float | None:
  try:
    number = None if text is None else float(text)
  except ValueError:
    return text
  return number if number is None or math.isfinite(number) else text
