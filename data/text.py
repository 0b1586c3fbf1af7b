"""Examples for language models from any text, character by character.

A model predicts the next character at every position of a window of the text,
as in Graves, 'Generating Sequences With Recurrent Neural Networks'
(2013).
"""

import sys

import numpy as np

from data import embedded
from data.dataset import Dataset, Split
from data.files import locate_file


def make(
  *, directory: str | None, file: str, length: int, test_share: float
) -> Dataset:
  """Returns windows of the text, int32 [N, length].

  The text is cut into windows of `length` + 1 characters that do not overlap:
  the inputs are all but the last of them, the targets all but the first.  The
  rest at the end is dropped.  The last windows are for testing, so that no test
  text is seen in training; the vocabulary is that of the whole file.

  Args:
    directory: Path of the folder that has `file`.
    file: Name of a text in UTF-8; '' for the one that comes with Python.
    length: Characters of an input.
    test_share: Share of the windows that is for testing, between 0 and 1.

  Raises:
    ValueError: If `file` is missing or not UTF-8, if it is too short for a
      window in each split, or if another argument is out of range.
  """
  if length < 1:
    raise ValueError(f'length: expected at least 1, got {length}.')
  if not 0 < test_share < 1:
    raise ValueError(f'test_share: expected between 0 and 1, got {test_share}.')
  text, source = _read(directory, file) if file else embedded.read()
  tokens, vocabulary = encode(text)
  num_windows = len(tokens) // (length + 1)
  if num_windows < 2:
    raise ValueError(
      f'file: expected at least {2 * (length + 1)} characters, two windows, '
      f'got {len(tokens)} in {source}.'
    )
  windows = tokens[: num_windows * (length + 1)].reshape(num_windows, -1)
  num_test = min(max(round(test_share * num_windows), 1), num_windows - 1)
  return Dataset(
    train=_split(windows[:-num_test]),
    test=_split(windows[-num_test:]),
    num_classes=len(vocabulary),
    mean=(),
    std=(),
  )


def _read(directory: str | None, file: str) -> tuple[str, str]:
  """Returns a file's text, and the file's path."""
  path = locate_file(directory, file)
  try:
    return path.read_bytes().decode('utf-8'), str(path)
  except UnicodeDecodeError as error:
    raise ValueError(
      f'file: expected text in UTF-8, got {path}: {error}.'
    ) from error


def encode(text: str) -> tuple[np.ndarray, str]:
  """Returns the text's tokens, int32 [characters], and its vocabulary.

  The vocabulary is the text's different characters in the order of their code
  points, and a token is an index into it.  The function takes linear time.

  Example:
    >>> tokens, vocabulary = encode('banana')
    >>> tokens.tolist(), vocabulary
    ([1, 0, 2, 0, 2, 0], 'abn')
  """
  points = np.frombuffer(text.encode('utf-32-le'), np.uint32)
  present = np.zeros(sys.maxunicode + 1, bool)
  present[points] = True
  tokens = np.cumsum(present, dtype=np.int32) - 1
  return tokens[points], ''.join(map(chr, np.flatnonzero(present)))


def _split(windows: np.ndarray) -> Split:
  return Split(
    np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:])
  )
