"""Positive definite systems, with a solution of the same bits on all machines.

A library multiplies matrices in an order of its own, which depends on the
processor and on the number of threads, and so do the last digits.  Here it gets
only integers with so few bits that all sums are exact in any order.  Everything
else is elementwise, or a sum in NumPy's fixed order.
"""

import math

import numpy as np

from topology.algorithms import stopping

_DIGITS = 53  # Bits of an integer that a float holds exactly.
_ROWS = 512  # Rows multiplied at a time: more would leave fewer digits.
_BLOCK = 32  # Columns that are eliminated one by one.


class Gram:
  """Products `whole.T @ diag(weight) @ whole` of a matrix `whole`.

  The matrix has floats [m, n] that are small integers of at least 0.
  """

  def __init__(self, whole: np.ndarray) -> None:
    self._whole = whole
    self._row, self._column = np.nonzero(whole)
    self._entry = whole[self._row, self._column]
    most = int(whole.max(initial=1))
    self._digits = _DIGITS - math.ceil(math.log2(_ROWS * most))

  def of(
    self, weight: np.ndarray, stop: stopping.Stop = stopping.never
  ) -> np.ndarray:
    """Returns the product for one weight per row, floats of at least 0.

    The result is symmetric, with errors of about 2^-40 of the diagonal entries
    of an entry's row and column.  O(m n^2), in one product of matrices.
    """
    top = np.zeros(self._whole.shape[1])
    np.maximum.at(top, self._column, self._entry * weight[self._row])
    # A power of two for each column, far from overflow.
    power = np.minimum(self._digits - np.frexp(top)[1], 1000)
    factor = np.ldexp(1.0, power)
    total = np.zeros((len(top),) * 2)
    for start in range(0, len(weight), _ROWS):
      stopping.check(stop)
      rows = slice(start, start + _ROWS)
      weighted = self._whole[rows] * weight[rows, None]
      weighted *= factor
      total += self._whole[rows].T @ np.rint(weighted, out=weighted)
    total /= factor
    # The product with the smaller column is the more exact one.
    total = np.where(factor >= factor[:, None], total, total.T)
    return (total + total.T) / 2


class Factor:
  """Cholesky factor of a symmetric matrix with a diagonal of about 1.

  ValueError if the matrix is numerically not positive definite; `Stopped` once
  `stop` returns True.
  """

  def __init__(
    self, matrix: np.ndarray, stop: stopping.Stop = stopping.never
  ) -> None:
    self._size = len(matrix)
    count = -(-self._size // _BLOCK)
    self._lower = np.eye(count * _BLOCK)
    self._lower[: self._size, : self._size] = matrix
    with np.errstate(all='ignore'):  # Errors show in the diagonal.
      _eliminate(self._lower, stop)
    diagonal = self._lower.diagonal()
    if not (np.isfinite(diagonal).all() and (diagonal > 0).all()):
      raise ValueError('Expected a positive definite matrix.')
    self._inverses = _inverses(self._lower, count)

  def solve(self, right: np.ndarray) -> np.ndarray:
    """Returns the floats x [n] with `matrix @ x = right`."""
    x = np.zeros(len(self._lower))
    x[: self._size] = right
    for k, inverse in enumerate(self._inverses):
      block = slice(k * _BLOCK, (k + 1) * _BLOCK)
      known = self._lower[block, : k * _BLOCK] * x[: k * _BLOCK]
      x[block] = (inverse * (x[block] - known.sum(1))).sum(1)
    for k in reversed(range(len(self._inverses))):
      block, after = slice(k * _BLOCK, (k + 1) * _BLOCK), (k + 1) * _BLOCK
      known = self._lower[after:, block] * x[after:, None]
      rest = x[block] - known.sum(0)
      x[block] = (self._inverses[k] * rest[:, None]).sum(0)
    return x[: self._size]


def times(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
  """Returns `matrix @ x`, for floats [m, n] and [n]."""
  product: np.ndarray = (matrix * x).sum(1)
  return product


def _eliminate(panel: np.ndarray, stop: stopping.Stop) -> None:
  """Replaces the left columns of a matrix by those of its factor, in place."""
  # Numbers above the diagonal are neither read nor meaningful afterwards.
  columns = panel.shape[1]
  if columns > _BLOCK:
    half = columns // 2 // _BLOCK * _BLOCK
    _eliminate(panel[:, :half], stop)
    stopping.check(stop)
    panel[half:, half:] -= _product(panel[half:, :half], columns - half)
    _eliminate(panel[half:, half:], stop)
    return
  turned = panel.T.copy()
  for j in range(columns):
    turned[j] /= np.sqrt(turned[j, j])
    turned[j + 1 :] -= turned[j, j + 1 : columns, None] * turned[j]
  panel[:] = turned.T
  panel[:columns][np.triu_indices(columns, 1)] = 0


def _product(left: np.ndarray, count: int) -> np.ndarray:
  """Returns `left @ left[:count].T`, of entries of at most 1, to 40 bits."""
  # Entries are sums of two integers, one of them scaled down.
  digits = (_DIGITS - 1 - math.ceil(math.log2(left.shape[1]))) // 2
  one = 2.0**digits
  left = left * one
  coarse = np.rint(left)
  fine = np.rint((left - coarse) * one)
  right = coarse[:count].T
  mixed = coarse @ fine[:count].T
  mixed += fine @ right
  total = coarse @ right
  total += mixed / one
  return total / (one * one)


def _inverses(lower: np.ndarray, count: int) -> np.ndarray:
  """Returns inverses of the diagonal blocks, [count, block, block]."""
  shape = count, _BLOCK, count, _BLOCK
  blocks = lower.reshape(shape)[np.arange(count), :, np.arange(count)]
  inverses = np.tile(np.eye(_BLOCK), (count, 1, 1))
  for j in range(_BLOCK):
    inverses[:, j] /= blocks[:, j, j, None]
    inverses[:, j + 1 :] -= blocks[:, j + 1 :, j, None] * inverses[:, j, None]
  return inverses
