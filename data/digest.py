"""Digest of a data set, by which processes compare what they have read."""

import numpy as np
import xxhash

from data.dataset import Dataset
from data.token_rows import TokenRows

_SAMPLED = 64  # Rows of an array that is mapped from a file.


def digest(dataset: Dataset) -> str:
  """Returns a digest of both splits: 16 hexadecimal digits.

  It covers shapes, types and all integers in memory.  Of integers that are
  mapped from files it covers their number and 64 rows, at equal distances from
  the first to the last, so that a large file is not read.  Of floats, and of
  images that are decoded when they are read, only the shape counts: their last
  digits depend on the library.
  """
  found = xxhash.xxh3_64()
  for split in (dataset.train, dataset.test):
    for array in split:
      found.update(f'{array.dtype} {tuple(array.shape)};'.encode())
      if isinstance(array, TokenRows):
        source = array.tokens
        found.update(f'{source.dtype} {len(source)};'.encode())
      elif isinstance(array, np.ndarray) and array.dtype.kind in 'iub':
        source = array
      else:
        continue
      if isinstance(source, np.memmap):
        rows = array[np.linspace(0, len(array) - 1, _SAMPLED).astype(int)]
      else:
        rows = array[:]
      found.update(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
  return found.hexdigest()
