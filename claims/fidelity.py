"""Signed errors of the virtual clock, by scheme, route, links and workers.

  python -m claims.fidelity [--results=results/simulator-full.json]

reads the stored results of the entry `simulator` and prints tables.  An error
is the virtual time of an iteration over the measured one, less 1: above 0 the
virtual clock is too slow.  A scheme whose errors have one sign is biased, which
a median of sizes hides.
"""

import argparse
import math
import pathlib
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from configs.checks import require
from outputs import atomic, transient

_WORKERS = re.compile(r'\d+ workers')
# Schemes with servers; conditions of other names are routes among the workers.
_SCHEMES = 'bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp'


class Group(NamedTuple):
  """Signed errors of the virtual clock under a group of conditions.

  Attributes:
    conditions: Number of conditions.
    too_slow: Number of those whose virtual time is the longer one.
    mean: Mean error.
    median: Median error.
    least: Least error.
    most: Largest error.
  """

  conditions: int
  too_slow: int
  mean: float
  median: float
  least: float
  most: float


def group(
  records: Iterable[Mapping[str, Any]],
  key: Callable[[Mapping[str, Any]], str | None],
) -> dict[str, Group]:
  """Returns the signed errors of finished conditions, by group.

  Args:
    records: Records of claims.measures.lab.
    key: Function that returns the group of a record; None to leave it out.
  """
  errors: dict[str, list[float]] = {}
  for record in records:
    if is_condition(record) and (name := key(record)) is not None:
      errors.setdefault(name, []).append(signed_error(record))
  return {
    name: Group(
      len(found),
      sum(error > 0 for error in found),
      statistics.mean(found),
      statistics.median(found),
      min(found),
      max(found),
    )
    for name, found in sorted(errors.items())
  }


def is_condition(record: Mapping[str, Any]) -> bool:
  """Returns whether a record has the times of a condition."""
  return 'condition' in record and record.get('status') == 'finished'


def signed_error(record: Mapping[str, Any]) -> float:
  """Returns the error of a condition; above 0 if the virtual clock is slow."""
  return float(record['virtual_s'] / record['real_s'] - 1)


def scheme_or_route(record: Mapping[str, Any]) -> str:
  """Returns the scheme of a condition with servers, or else its route."""
  first, second, *_ = record['condition'].split(', ')
  return f'{first}, pipelined' if second == 'pipelined' else str(first)


def asynchronous_workers(record: Mapping[str, Any]) -> str | None:
  """Returns number and speeds of an asynchronous scheme's workers, or None."""
  scheme, *words = record['condition'].split(', ')
  if scheme == 'bsp' or scheme not in _SCHEMES:
    return None
  workers = next(filter(_WORKERS.fullmatch, words), 'workers')
  return f'{workers}, {"unequal" if "unequal" in words else "equal"}'


def print_tables(records: Sequence[Mapping[str, Any]]) -> None:
  """Prints the errors of each group and of each condition, as Markdown.

  Args:
    records: Records of claims.measures.lab.
  """
  tables = (
    ('scheme or route', scheme_or_route),
    ('links', lambda record: str(record['lab'])),
    ('workers of asynchronous schemes', asynchronous_workers),
    ('all', lambda _: 'all'),
  )
  for title, key in tables:
    lines = [(title, 'conditions', 'too slow', 'mean', 'median', 'range')]
    for name, each in group(records, key).items():
      numbers = map(_percent, (each.mean, each.median, each.least, each.most))
      mean, median, least, most = numbers
      counts = f'{each.conditions}', f'{each.too_slow}'
      lines.append((name, *counts, mean, median, f'{least} to {most}'))
    print(_table(lines))
  rows = [('links', 'condition', 'virtual s', 'real s', 'error')]
  for record in sorted(filter(is_condition, records), key=signed_error):
    times = (f'{record[field]:.4f}' for field in ('virtual_s', 'real_s'))
    error = _percent(signed_error(record))
    rows.append((record['lab'], record['condition'], *times, error))
  print(_table(rows))


def read(path: pathlib.Path) -> Sequence[Mapping[str, Any]]:
  """Returns the records of a file of results.

  Raises:
    ValueError: If the file has no conditions with their times; names it.
    OSError: If it cannot be read.
  """
  content = atomic.read_object(path) or {}
  records = content.get('records')
  found = [
    record
    for record in (records if isinstance(records, list) else ())
    if isinstance(record, Mapping) and is_condition(record)
  ]
  expected = "results of the entry 'simulator'"
  require(bool(found), str(path), expected, [*content])
  for record in found:
    for field in ('virtual_s', 'real_s'):
      value = record.get(field)
      is_time = isinstance(value, float) and 0 < value < math.inf
      place = f'{path}: {record["condition"]}: {field}'
      require(is_time, place, 'seconds above 0', value)
  return found


def main(argv: list[str] | None = None) -> int:
  """Prints the errors of stored results; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog='claims.fidelity', description=(__doc__ or '').split('\n')[0]
  )
  parser.add_argument('--results', default='results/simulator-full.json')
  args = parser.parse_args(argv)
  try:
    print_tables(read(pathlib.Path(args.results)))
  except (OSError, ValueError) as error:
    return transient.exit_code(error)
  return 0


def _percent(share: float) -> str:
  return f'{100 * share:+.1f} %'


def _table(rows: Sequence[Sequence[str]]) -> str:
  lines = [rows[0], ['---'] * len(rows[0]), *rows[1:]]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


if __name__ == '__main__':
  sys.exit(main())
