"""Rows of tokens, cut from a sequence when they are indexed.

Documents follow each other without gaps, so that several may share a row and
one may continue in the next: no token is padding but after the last one.
Models keep documents apart by a separator that begins each of them.
"""

from typing import Any

import numpy as np

from data.dataset import PADDING, Split


class TokenRows:
  """Inputs or targets, int32 [N, T], which are read when indexed: see `split`.

  Args:
    tokens: Integers, at least 2.
    length: Tokens T of a row.
    shift: 0 for inputs, 1 for targets.

  Attributes:
    tokens: The sequence, 1-D, in memory or mapped from a file.
    shape: (N, T).
    dtype: Int32.
  """

  def __init__(self, tokens: np.ndarray, *, length: int, shift: int):
    self.tokens = tokens
    self.shape = (-(-(len(tokens) - 1) // length), length)
    self.dtype = np.dtype(np.int32)
    self._shift = shift

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, rows: Any) -> np.ndarray:
    """Returns int32 [..., T]; of a mapped file it reads these rows alone.

    Args:
      rows: A slice, or integers.

    Raises:
      IndexError: If there is no such row.
    """
    count, length = self.shape
    if isinstance(rows, slice):
      rows = np.arange(*rows.indices(count))
    rows = np.asarray(rows)
    if not ((-count <= rows) & (rows < count)).all():
      raise IndexError(f'rows: expected -{count} to {count - 1}, got {rows}.')
    starts = np.where(rows < 0, rows + count, rows).astype(np.int64) * length
    places = starts[..., None] + np.arange(self._shift, self._shift + length)
    last = len(self.tokens) - 1
    found = np.asarray(self.tokens[np.minimum(places, last)], np.int32)
    if self._shift:
      found = np.where(places <= last, found, np.int32(PADDING))
    return found


def split(tokens: np.ndarray, *, length: int) -> Split:
  """Returns rows in which every token but the first is a target once.

  Row k has the inputs k T to k T + T - 1 and the targets after each of them.
  After the last token, targets are `PADDING` and inputs repeat the last one.

  Args:
    tokens: Sequence, 1-D, at least 2.
    length: Tokens T of a row.

  Example:
    >>> rows = split(np.arange(6), length=3)
    >>> rows.inputs[:].tolist(), rows.targets[:].tolist()
    ([[0, 1, 2], [3, 4, 5]], [[1, 2, 3], [4, 5, -1]])
  """
  return Split(
    TokenRows(tokens, length=length, shift=0),
    TokenRows(tokens, length=length, shift=1),
  )
