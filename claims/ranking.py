"""All runs of an entry in order: which combination wins."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from claims import running
from claims.judging import known_of, middle
from claims.published import Entry
from claims.store import Stored

_DASH = '-'


def table(entry: Entry, stored: Stored) -> str:
  """Returns a row per combination, the best one first, as Markdown.

  Cells are medians over seeds, with ranges; the first field orders, seeds
  that never got there counting as infinite, accuracies and rates downwards.

  Args:
    entry: Whose fields are ranked.
    stored: Its results.
  """
  runs: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
  fields = [*entry.listed]
  if entry.grids:
    points = running.points_of(entry, stored.scale, [0])
    fields += [f for f in running.fields_of(points) if f != 'seed']
  for record in stored.records:
    if entry.listed and entry.listed[0] not in record:
      continue  # Of all together.
    key = tuple(_text(record.get(field)) for field in fields)
    runs.setdefault(key, []).append(record)
  rows = [
    (key, [[known_of(f, each) for each in own] for f in entry.ranked])
    for key, own in runs.items()
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
  return middle([math.inf if value is None else value for value in values])


def _cell(values: Sequence[float | None]) -> str:
  known = [v for v in values if v is not None]
  if not known:
    return _DASH
  texts = [format(v, '.3g') for v in (middle(known), min(known), max(known))]
  return texts[0] if len({*texts}) == 1 else '{} ({} to {})'.format(*texts)


def _text(value: Any) -> str:
  return str(value)
