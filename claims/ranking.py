"""Rankings of all runs of an entry."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from claims import running
from claims.judging import read_number
from claims.published import Entry
from claims.statistics import median_of
from claims.store import Results

_DASH = '-'


def table(entry: Entry, results: Results) -> str:
  """Returns a row per combination, sorted by the first field, as Markdown.

  Cells are medians over seeds, and over fields that are not listed, with
  ranges.  A seed without a number sorts as an infinite one.

  Args:
    entry: Entry with the fields of the ranking.
    results: Its results.
  """
  runs: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
  fields = [*entry.listed]
  if entry.grids and not entry.listed:
    points = running.entry_points(entry, results.scale, [0])
    fields += [f for f in running.varied_fields(points) if f != 'seed']
  for record in results.records:
    if entry.listed and entry.listed[0] not in record:
      continue  # The record summarises all runs.
    key = tuple(str(record.get(field)) for field in fields)
    runs.setdefault(key, []).append(record)
  rows = [
    (
      key,
      [[read_number(f, record) for record in records] for f in entry.ranked],
    )
    for key, records in runs.items()
  ]
  rows.sort(key=lambda row: _order(row[1][0]))
  head = ('', *(field.removesuffix('.name') for field in fields))
  lines = [(*head, *entry.ranked), ('---',) * (len(head) + len(entry.ranked))]
  lines += [
    (f'{place}', *key, *map(_cell, columns))
    for place, (key, columns) in enumerate(rows, start=1)
  ]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def _order(values: Sequence[float | None]) -> float:
  return median_of([math.inf if value is None else value for value in values])


def _cell(values: Sequence[float | None]) -> str:
  numbers = [v for v in values if v is not None]
  if not numbers:
    return _DASH
  texts = [
    format(v, '.3g') for v in (median_of(numbers), min(numbers), max(numbers))
  ]
  return texts[0] if len({*texts}) == 1 else '{} ({} to {})'.format(*texts)
