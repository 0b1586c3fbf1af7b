"""Results of a sweep: results.csv and results.parquet, a row for each run."""

import csv
import io
import pathlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from configs import cells
from configs.checks import require
from outputs import atomic
from sweeps.folder import LOG, SweepFolder
from sweeps.outcomes import Outcome
from sweeps.plan import PlannedRun, differing_fields

# Fields of manifest.json on which a result may depend beside the config.
_ENVIRONMENT = (
  *('host', 'cores', 'devices', 'python', 'versions', 'xla_flags'),
  *('numerics', 'git_revision'),
)
# Fields of summary.json that no cell can hold: of each worker, or over time.
_OMITTED = ('staleness', 'worker_breakdown', 'bandwidth')
_PARQUET = 'results.parquet'
_SHARE = 20  # At most 1 / 20 of the time is spent on writing.


def read(folder: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the rows of a sweep's results by the names of the columns.

  Args:
    folder: Folder of the sweep.

  Raises:
    ValueError: If there is no results.parquet, or another file of that name.
    OSError: If it cannot be read.
  """
  path = folder / _PARQUET
  expected = f'a folder of a sweep, with {_PARQUET}'
  require(path.is_file(), str(folder), expected, 'one without')
  try:
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
  except pa.ArrowInvalid as error:
    raise ValueError(f'{path}: expected results, got {error}.') from error
  return rows


class ResultsTable:
  """Table of a sweep's results, with a row for each run from the start on.

  It begins with the outcomes that the folder has.

  Args:
    runs: All runs of the sweep.
    folder: Folder of the sweep.
  """

  def __init__(self, runs: Sequence[PlannedRun], folder: SweepFolder):
    self._folder = folder
    self._fields = differing_fields(runs)
    self._rows = {
      run.name: self._row(run, folder.outcome(run.name)) for run in runs
    }
    self._next_write_s = 0.0

  def update(self, run: PlannedRun, outcome: Outcome) -> None:
    """Updates the row of a run that has ended; writes the files now and then.

    Writing them after each of many runs would take a time that grows with the
    square of their number.

    After the last run the caller calls `write`.
    """
    self._rows[run.name] = self._row(run, outcome)
    if time.monotonic() >= self._next_write_s:
      self.write()

  def write(self) -> None:
    """Writes results.csv and results.parquet, each in one atomic step."""
    start = time.monotonic()
    rows = list(self._rows.values())
    columns = {name: None for row in rows for name in row}
    table = {name: _column([row.get(name) for row in rows]) for name in columns}
    lines = map(_line, (table, *zip(*table.values(), strict=True)))
    atomic.write(self._folder.file('results.csv'), ''.join(lines))
    buffer = pa.BufferOutputStream()
    parquet.write_table(pa.table(table), buffer)
    atomic.write(self._folder.file(_PARQUET), buffer.getvalue().to_pybytes())
    end = time.monotonic()
    self._next_write_s = end + _SHARE * (end - start)

  def _row(self, run: PlannedRun, outcome: Outcome) -> dict[str, Any]:
    values = run.resolved.fields
    row: dict[str, Any] = {'run': run.name, 'status': outcome.status}
    row |= {field: values[field] for field in self._fields}
    summary = self._folder.read(run.name, 'summary.json') or {}
    row |= _flatten({k: v for k, v in summary.items() if k not in _OMITTED})
    manifest = self._folder.read(run.name, 'manifest.json') or {}
    row |= _flatten({name: manifest.get(name) for name in _ENVIRONMENT})
    folder = self._folder.file(run.name)
    return row | {
      'identity': run.resolved.identity,
      'folder': str(folder),
      'log': str(folder / LOG),
      'error': outcome.error or None,
    }


def _line(row: Iterable[Any]) -> str:
  """Returns a row as a line of CSV, with cells quoted where necessary."""
  text = io.StringIO()
  # The writer quotes a carriage return only if it is part of the terminator.
  csv.writer(text).writerow(map(cells.escape, row))
  return text.getvalue().removesuffix('\r\n') + '\n'


def _flatten(values: Mapping[str, Any], above: str = '') -> dict[str, Any]:
  """Returns values by path; texts of a list are joined, other lists counted."""
  flat: dict[str, Any] = {}
  for name, value in values.items():
    if isinstance(value, dict):
      flat |= _flatten(value, f'{above}{name}.')
    elif isinstance(value, list):
      text = all(isinstance(each, str) for each in value) and value
      flat[above + name] = ', '.join(value) if text else len(value)
    else:
      flat[above + name] = value
  return flat


def _column(values: list[Any]) -> list[Any]:
  """Returns the values of a column, converted to one type."""
  known = [value for value in values if value is not None]
  kinds = {type(value) for value in known}
  if kinds <= {int} or kinds <= {bool} or kinds <= {str}:
    return values
  if kinds <= {int, float}:
    return [None if value is None else float(value) for value in values]
  return [None if value is None else str(value) for value in values]
