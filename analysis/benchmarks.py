"""Rows of a benchmark that have aims, and the files that hold them.

The folder of such a benchmark, as `bench.gpu` writes it, has

- `manifest.json`: `benchmark`, its name; `dry_run`; command, machine, versions
  and code;
- `rows.jsonl`: one object for each row, written as it is measured;
- `summary.json`: `ended`, `wall_s` and `verdicts`, the number of rows by
  verdict; written last.

A value that could not be measured is null.  After an error the row has missed
its aim; if the machine or the sizes of a dry run allow no verdict, the row is
not measured.
"""

import collections
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

HELD, MISSED, UNMEASURED = 'held', 'missed', 'not measured'
SCRATCH = 'scratch'  # Folder of runs and caches, not part of a result.
MANIFEST, ROWS, SUMMARY = 'manifest.json', 'rows.jsonl', 'summary.json'


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
    """Returns the aim with the ends that JSON has."""
    least, most = ends
    return cls(
      -math.inf if least is None else least, math.inf if most is None else most
    )

  @property
  def ends(self) -> list[float | None]:
    """Both ends for JSON, which has no infinite numbers: they are null."""
    return [end if math.isfinite(end) else None for end in self]

  def __str__(self) -> str:
    if self.least == self.most:
      return f'{self.least:g}'
    low, high = self.least > -math.inf, self.most < math.inf
    if low and high:
      return f'{self.least:g} to {self.most:g}'
    return f'at least {self.least:g}' if low else f'at most {self.most:g}'


def verdict(value: float | None, aim: Aim) -> str:
  """Returns the verdict on a measured value; a NaN misses every aim.

  Args:
    value: None if it could not be measured.
  """
  if value is None:
    return UNMEASURED
  return HELD if aim.least <= value <= aim.most else MISSED


def counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
  """Returns the number of rows by verdict."""
  counter = collections.Counter(row['verdict'] for row in rows)
  return {name: counter[name] for name in (HELD, MISSED, UNMEASURED)}
