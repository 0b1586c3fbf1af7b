"""Matrices of bandwidths between pairs of workers, as CSV or .npy files.

Row i, column j is the bandwidth from worker i to worker j.  Each pair has a
link of its own, so that links which several pairs share are not known;
`tools.probe` measures them.  The diagonal is ignored, and 0 is no link.
"""

import io
import math
import re
from fractions import Fraction

import numpy as np

from topology.clusters import parts
from topology.clusters.cluster import Cluster
from topology.clusters.parts import LinkTo
from topology.readers.capacities import Capacities

_NPY = b'\x93NUMPY'
_EMPTY = ('', '-', 'x', 'X')  # Cells of the diagonal.


def is_npy(data: bytes) -> bool:
  """Returns whether the content of a file is that of a .npy file."""
  return data.startswith(_NPY)


def matches(text: str) -> bool:
  """Returns whether a text may be a matrix: its last line has a number."""
  rows = _rows(text)
  return bool(rows) and any(map(_number, rows[-1][1]))


def read_npy(data: bytes, capacities: Capacities) -> Cluster:
  """Returns the cluster of an array [n, n]; arguments are those of `read`."""
  try:
    array = np.load(io.BytesIO(data), allow_pickle=False)
  except (ValueError, EOFError, OSError) as error:
    raise ValueError(
      f'expected an array of numpy.save, got: {error}.'
    ) from error
  if array.ndim != 2 or array.shape[0] != array.shape[1]:
    raise ValueError(f'expected an array [n, n], got shape {array.shape}.')
  if array.dtype.kind not in 'iuf':
    raise ValueError(f'expected an array of numbers, got {array.dtype}.')
  names = parts.make_names('w', len(array))
  cells = [[repr(value) for value in row] for row in array.tolist()]
  return _build(
    names, [(f'row {i}', row) for i, row in enumerate(cells)], capacities
  )


def read(text: str, capacities: Capacities) -> Cluster:
  """Returns the cluster of a matrix as text.

  Cells are separated by commas, semicolons, tabs or spaces.  A first row and a
  first column that are no numbers name the workers, else w0, w1 and so on; text
  after # is a comment.

  Args:
    text: Content of the file, a row a line.
    capacities: `unit_GBps`, the GB/s of a 1 in the matrix; 1 if it is not
      given, 0.125 for Gbit/s.

  Raises:
    ValueError: If the matrix is not square, or a cell is no bandwidth; names
      the line.
  """
  rows = _rows(text)
  names: list[str] = []
  if rows and any(_number(cell) is None for cell in rows[0][1][1:]):
    names = [cell for cell in rows[0][1] if cell]
    rows = rows[1:]
  has_names = bool(rows) and all(
    len(row) == len(rows) + 1 and _number(row[0]) is None for _, row in rows
  )
  if has_names:
    first = [row[0] for _, row in rows]
    rows = [(number, row[1:]) for number, row in rows]
    names = names[-len(rows) :] if names else first  # A corner may have a word.
    if names != first:
      raise ValueError(f'expected rows in the order {names}, got {first}.')
  names = names or parts.make_names('w', len(rows))
  for number, row in rows:
    if len(row) != len(names) or len(rows) != len(names):
      raise ValueError(
        f'line {number}: expected {len(rows)} cells, one for each row, got '
        f'{len(row)}.'
      )
  return _build(names, [(f'line {n}', row) for n, row in rows], capacities)


def _rows(text: str) -> list[tuple[int, list[str]]]:
  """Returns the cells of each line that has any, and its number."""
  rows = []
  for number, line in enumerate(text.splitlines(), 1):
    plain = line.partition('#')[0].strip(' \r\n')
    if not plain.strip():
      continue
    mark = next((each for each in ',;\t' if each in plain), None)
    cells = plain.split(mark) if mark else plain.split()
    rows.append((number, [cell.strip().strip('"') for cell in cells]))
  return rows


def _number(cell: str) -> Fraction | None:
  """Returns a cell as an exact number; None if it is none."""
  if not re.match(r'[+-]?(\d|\.\d|inf|nan)', cell, re.IGNORECASE):
    return None
  try:
    value = float(cell)
    return Fraction(cell) if math.isfinite(value) else Fraction(-1)
  except ValueError:
    return None


def _build(
  names: list[str], rows: list[tuple[str, list[str]]], capacities: Capacities
) -> Cluster:
  unit = capacities.get('unit_GBps') or Fraction(1)
  links: list[LinkTo] = []
  for src, (where, row) in zip(names, rows, strict=True):
    for dst, cell in zip(names, row, strict=True):
      if src == dst:
        if cell not in _EMPTY and _number(cell) is None:
          raise ValueError(
            f'{where}, {src} to itself: expected a number or nothing, got '
            f'{cell!r}.'
          )
        continue
      value = _number(cell)
      if value is None or value < 0:
        raise ValueError(
          f'{where}, {src} to {dst}: expected a finite number of at least 0, '
          f'got {cell!r}.'
        )
      if value:
        links.append((src, dst, value * unit))
  return parts.make_cluster(names, (), links)
