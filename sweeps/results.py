"""results.csv and results.parquet of a sweep: a row for each run."""

import csv
import io
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from configs import cells
from outputs import atomic
from sweeps.folder import LOG, Folder, State
from sweeps.plan import Run, differing

# Of a manifest: what a result may depend on beside the config.
_MADE = (
  *('host', 'cores', 'devices', 'python', 'versions', 'xla_flags'),
  *('numerics', 'git_revision'),
)
# Of a summary: of each worker, over time, or a histogram.
_LEFT_OUT = ('staleness', 'worker_breakdown', 'bandwidth')
_SHARE = 20  # Of the time since the last one, writing takes at most 1 / this.


class Results:
  """The rows of a sweep, of which each is known as far as its run has come."""

  def __init__(self, runs: Sequence[Run], folder: Folder):
    """Reads what the runs have come to so far, but writes nothing."""
    self._folder = folder
    self._fields = differing(runs)
    self._rows = {run.name: self._row(run, folder.state(run)) for run in runs}
    self._next_s = 0.0

  def update(self, run: Run, state: State) -> None:
    """Takes in that a run has ended, and writes the files.

    Of many runs not each time, as the time it takes would grow with their
    square.
    """
    self._rows[run.name] = self._row(run, state)
    if time.monotonic() >= self._next_s:
      self.write()

  def write(self) -> None:
    """Writes both files; neither is ever seen half."""
    start = time.monotonic()
    rows = list(self._rows.values())
    columns = {name: None for row in rows for name in row}
    table = {name: _column([row.get(name) for row in rows]) for name in columns}
    lines = map(_line, (table, *zip(*table.values(), strict=True)))
    atomic.write(self._folder.file('results.csv'), ''.join(lines))
    buffer = pa.BufferOutputStream()
    parquet.write_table(pa.table(table), buffer)
    atomic.write(
      self._folder.file('results.parquet'), buffer.getvalue().to_pybytes()
    )
    end = time.monotonic()
    self._next_s = end + _SHARE * (end - start)

  def _row(self, run: Run, state: State) -> dict[str, Any]:
    values = run.checked.fields
    row = {'run': run.name, 'status': state.status}
    row |= {field: values[field] for field in self._fields}
    summary = self._folder.read(run, 'summary.json') or {}
    row |= _flat({k: v for k, v in summary.items() if k not in _LEFT_OUT})
    made = self._folder.read(run, 'manifest.json') or {}
    row |= _flat({name: made.get(name) for name in _MADE})
    folder = self._folder.file(run.name)
    return row | {
      'identity': run.checked.identity,
      'folder': str(folder),
      'log': str(folder / LOG),
      'error': state.error or None,
    }


def _line(row: Iterable[Any]) -> str:
  """Returns a row as a line of CSV; what breaks lines is quoted."""
  text = io.StringIO()
  # A carriage return is quoted only if it is part of what ends lines.
  csv.writer(text).writerow(map(cells.escape, row))
  return text.getvalue().removesuffix('\r\n') + '\n'


def _flat(values: Mapping[str, Any], above: str = '') -> dict[str, Any]:
  """Returns values by path; of a list of anything but text its length."""
  flat: dict[str, Any] = {}
  for name, value in values.items():
    if isinstance(value, dict):
      flat |= _flat(value, f'{above}{name}.')
    elif isinstance(value, list):
      text = all(isinstance(each, str) for each in value) and value
      flat[above + name] = ', '.join(value) if text else len(value)
    else:
      flat[above + name] = value
  return flat


def _column(values: list[Any]) -> list[Any]:
  """Returns values of one type, as a table needs them."""
  known = [value for value in values if value is not None]
  kinds = {type(value) for value in known}
  if kinds <= {int} or kinds <= {bool} or kinds <= {str}:
    return values
  if kinds <= {int, float}:
    return [None if value is None else float(value) for value in values]
  return [None if value is None else str(value) for value in values]
