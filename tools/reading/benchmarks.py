"""Reads the folder of a benchmark whose rows have aims, such as bench.gpu's.

The folder has

- `manifest.json`: `benchmark`, its name; `dry_run`; command, machine, versions
  and code;
- `rows.jsonl`: one object for each row, written as it is measured;
- `summary.json`: `ended`, `wall_s` and `verdicts`, the number of rows by
  verdict; written last.

The function `verdict` gives the verdict on a value and an aim; files with other
verdicts are rejected.  A value that could not be measured is null.  After an
error the row has missed its aim; if the machine or the sizes of a dry run allow
no verdict, the row is not measured.
"""

import collections
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from configs.checks import require

HELD, MISSED, UNMEASURED = 'held', 'missed', 'not measured'
SCRATCH = 'scratch'  # Folder of runs and caches, not part of a result.
MANIFEST, ROWS, SUMMARY = 'manifest.json', 'rows.jsonl', 'summary.json'
_FIELDS = ('job', 'row', 'quantity', 'aim', 'value', 'verdict', 'detail')


class Aim(NamedTuple):
  """Closed interval of accepted values.

  Attributes:
    least: Lower end.
    most: Upper end.
  """

  least: float = -math.inf
  most: float = math.inf

  @classmethod
  def of(cls, ends: Sequence[float | None]) -> 'Aim':
    """Returns the aim with these ends, as JSON has them."""
    least, most = ends
    return cls(
      -math.inf if least is None else least, math.inf if most is None else most
    )

  @property
  def ends(self) -> list[float | None]:
    """Both ends as JSON, which has no infinite numbers: those are null."""
    return [end if math.isfinite(end) else None for end in self]

  def __str__(self) -> str:
    if self.least == self.most:
      return f'{self.least:g}'
    low, high = self.least > -math.inf, self.most < math.inf
    if low and high:
      return f'{self.least:g} to {self.most:g}'
    return f'at least {self.least:g}' if low else f'at most {self.most:g}'


class Benchmark(NamedTuple):
  """Content of a benchmark's folder.

  Attributes:
    manifest: Content of manifest.json.
    rows: Rows of rows.jsonl.
    summary: Content of summary.json.
  """

  manifest: Mapping[str, Any]
  rows: Sequence[Mapping[str, Any]]
  summary: Mapping[str, Any]


def verdict(value: float | None, aim: Aim) -> str:
  """Returns the verdict on a value; a NaN misses every aim.

  Args:
    value: Measured value; None without one.
    aim: Interval of accepted values.
  """
  if value is None:
    return UNMEASURED
  return HELD if aim.least <= value <= aim.most else MISSED


def counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
  """Returns the number of rows by verdict."""
  counter = collections.Counter(row['verdict'] for row in rows)
  return {name: counter[name] for name in (HELD, MISSED, UNMEASURED)}


def is_benchmark(folder: pathlib.Path) -> bool:
  """Returns True for the folder of a benchmark, False for that of a run."""
  try:
    return 'benchmark' in json.loads((folder / MANIFEST).read_text())
  except (OSError, ValueError, TypeError):
    return False


def load(folder: pathlib.Path) -> Benchmark:
  """Returns the content of a benchmark's folder.

  Raises:
    ValueError: If the benchmark has not finished, if a row has other fields, or
      if a verdict or a count does not follow from the values.
    OSError: If a file cannot be read.
  """
  if not (folder / SUMMARY).exists():
    raise ValueError(
      f'{folder}: expected a benchmark that has finished, got one without '
      f'{SUMMARY}.'
    )
  manifest = json.loads((folder / MANIFEST).read_text())
  summary = json.loads((folder / SUMMARY).read_text())
  ended = summary.get('ended')
  require(ended == 'finished', f'{folder}: ended', "'finished'", ended)
  rows = [*map(json.loads, (folder / ROWS).read_text().splitlines())]
  for number, row in enumerate(rows, start=1):
    _check(row, f'{folder}/{ROWS}, line {number}')
  expected_counts = counts(rows)
  same = summary.get('verdicts') == expected_counts
  field = f'{folder}/{SUMMARY}: verdicts'
  require(
    same, field, f'{expected_counts}, as in {ROWS}', summary.get('verdicts')
  )
  return Benchmark(manifest, rows, summary)


def _check(row: Mapping[str, Any], where: str) -> None:
  """Rejects a row without its fields, or with a wrong verdict."""
  missing = [name for name in _FIELDS if name not in row]
  require(not missing, where, f'the fields {_FIELDS}', sorted(row))
  # An error leaves no value and misses the aim; a dry run gives no verdict on
  # rows that depend on sizes.
  allowed = {verdict(row['value'], Aim.of(row['aim'])), UNMEASURED}
  if row['value'] is None:
    allowed.add(MISSED)
  expected = f'one of {sorted(allowed)}'
  require(
    row['verdict'] in allowed, f'{where}: verdict', expected, row['verdict']
  )
