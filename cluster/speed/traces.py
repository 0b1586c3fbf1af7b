"""Reads traces of iterations and their driving factors from CSV files."""

import csv
import math
from collections.abc import Sequence
from typing import NamedTuple

from configs.checks import require


class Row(NamedTuple):
  """An iteration of a trace.

  Attributes:
    worker: Name of the worker.
    order: Number by which a worker's rows are sorted.
    value: Duration in any unit, > 0.
    driving: Driving factors, read after the iteration.
  """

  worker: str
  order: float
  value: float
  driving: tuple[float, ...]


def rows(path: str, driving: Sequence[str], **columns: str) -> list[Row]:
  """Returns the rows of a CSV file.

  Args:
    path: Path of the file.
    driving: Columns of the driving factors.
    **columns: Columns of worker, order and value, in this order.

  Raises:
    ValueError: If the file cannot be read, lacks a column or has no rows, or if
      a number in it is none or not finite or a value is not positive.
  """
  try:
    with open(path, newline='', encoding='utf-8-sig') as file:
      reader = csv.DictReader(file)
      header = reader.fieldnames or []
      found = [(reader.line_num, row) for row in reader]
  except (OSError, UnicodeDecodeError, csv.Error) as error:
    raise ValueError(f'path: expected a CSV file, got {error}.') from error
  wanted = [*columns.items(), *(('driving_columns', name) for name in driving)]
  for name, column in wanted:
    require(column in header, name, f'one of {header} of {path}', column)
  require(bool(found), 'path', f'rows below the header of {path}', 'none')
  worker, order, value = columns.values()
  for line, row in found:
    place = f'{path}, line {line}, {worker}'
    require(bool(row[worker]), place, 'a worker', row[worker])
  return [
    Row(
      row[worker],
      _number(row[order], f'{path}, line {line}, {order}'),
      _number(row[value], f'{path}, line {line}, {value}', above=0.0),
      tuple(
        _number(row[name], f'{path}, line {line}, {name}') for name in driving
      ),
    )
    for line, row in found
  ]


def _number(text: str | None, name: str, above: float = -math.inf) -> float:
  try:
    number = float(text or 'nan')
  except ValueError:
    number = math.nan
  require(above < number < math.inf, name, f'a finite number > {above}', text)
  return number
