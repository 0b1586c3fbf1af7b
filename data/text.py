"""Examples for language models from any text, byte by byte.

A model predicts the next byte at every position of a row of the text: its
vocabulary is that of all texts, and bits per byte need no conversion.
"""

import numpy as np

from configs import declared
from data import embedded, token_rows
from data.dataset import Dataset
from data.files import locate_file

_BYTES = 256  # Size of the vocabulary.
_SEPARATOR = 0  # No byte of a text in UTF-8.


@declared.check_arguments('data.text')
def make(
  *, directory: str | None, file: str, length: int, test_share: float
) -> Dataset:
  """Returns rows of the text's bytes, int32 [N, length].

  Rows are those of `token_rows.split`.  The last rows are for testing, so that
  no text that is tested is learned; the last one may be padded.  A zero byte
  begins each document, such as each topic of the text that comes with Python;
  attention never crosses it.

  Args:
    directory: Folder of the file; None if there is none.
    file: Name of a file, of any size, as it is mapped into memory; '' for the
      text that comes with Python.
    length: Bytes of a row.
    test_share: Share of the rows that is for testing, between 0 and 1.

  Raises:
    ValueError: If `file` is missing or too short for a row in each split, or if
      another argument is out of range.
  """
  found, source = _read(directory, file)
  if len(found) < length + 2:
    raise ValueError(
      f'file: expected at least {length + 2} bytes, for a row of {length} to '
      f'train on and one to test on, got {len(found)} in {source}.'
    )
  rows = -(-(len(found) - 1) // length)
  cut = (rows - min(max(round(test_share * rows), 1), rows - 1)) * length
  return Dataset(
    train=token_rows.split(found[: cut + 1], length=length),
    test=token_rows.split(found[cut:], length=length),
    num_classes=_BYTES,
    separator=_SEPARATOR,
    bytes_per_token=1.0,
  )


def _read(directory: str | None, file: str) -> tuple[np.ndarray, str]:
  """Returns the bytes of a text, and the name of its source."""
  if not file:
    text, source = embedded.read()
    return np.frombuffer(text.encode(), np.uint8), source
  path = locate_file(directory, file)
  if not path.stat().st_size:  # Cannot be mapped.
    return np.zeros(0, np.uint8), str(path)
  return np.memmap(path, np.uint8, 'r'), str(path)
