"""Examples for language models from files of tokens.

A file has the tokens of a corpus one after the other, without a header, as
little-endian integers of 16 or 32 bits: the format of nanoGPT's data.  Files
are mapped into memory, and a row is read when it is used.
"""

import codecs
import pathlib

import numpy as np

from configs import declared
from data import token_rows
from data.dataset import Dataset
from data.files import locate_file

_DTYPES: dict[str, np.dtype] = {
  'uint16': np.dtype('<u2'),
  'uint32': np.dtype('<u4'),
}
_CHUNK = 1 << 24  # Tokens that are checked at once.
# First bytes of other formats, whose headers would be read as tokens.
_FORMATS = {
  b'\x93NUMPY': "a NumPy array; numpy.load(FILE).astype('<u2').tofile(OTHER)",
  b'PK\x03\x04': 'a ZIP archive or .npz',
  b'\x1f\x8b\x08': 'compressed by gzip',
  b'PAR1': 'in the format Parquet',
  b'ARROW1': 'in the format Arrow',
  b'\x89HDF\r\n\x1a\n': 'in the format HDF5',
  (20240520).to_bytes(4, 'little'): 'one of llm.c, with a header of 1024 bytes',
  (20240801).to_bytes(4, 'little'): 'one of llm.c, with a header of 1024 bytes',
}
_SAMPLED = 1 << 16  # First tokens by which other kinds of files are found.
_FEWEST = 16  # With fewer tokens, chance may make them look like others.


@declared.check_arguments('data.tokens')
def make(
  *,
  directory: str | None,
  file: str,
  test_file: str,
  test_tokens: int,
  dtype: str,
  vocabulary: int,
  separator: int,
  length: int,
  bytes_per_token: float,
) -> Dataset:
  """Returns rows of the corpus, int32 [N, length].

  Rows are those of `token_rows.split`; of the training file the rest that fills
  no row is left out.  All tokens are read once, to find those that are not in
  the vocabulary, unless the vocabulary has all integers of the type.

  Args:
    directory: Folder of both files; None if there is none.
    file: Name of the file to train on.
    test_file: Name of the file to test on; '' for the end of `file`, which is
      then left out of training.
    test_tokens: Largest number of tokens to test on: the first of `test_file`,
      or the last of `file`.
    dtype: 'uint16' or 'uint32', the type of both files.
    vocabulary: Number of different tokens, which count from 0.
    separator: Token id at the start of each document.  Attention never crosses
      it.  -1: no such token.
    length: Tokens of a row.
    bytes_per_token: Mean bytes of text per token, for bits per byte; 0 if it is
      not known.

  Raises:
    ValueError: If a file is missing, seems to be of another type or format, has
      part of a token, a token that is not in the vocabulary or too few, or if
      another argument is out of range.
  """
  if separator >= vocabulary:
    raise ValueError(
      f'separator: expected a token below {vocabulary}, or -1 for none, got '
      f'{separator}.'
    )
  tokens = _read('file', locate_file(directory, file), dtype, vocabulary)
  needed, rest = length + 1, ''
  if test_file:
    path = locate_file(directory, test_file, field='test_file')
    test = _read('test_file', path, dtype, vocabulary)[: test_tokens + 1]
    if len(test) < 2:
      raise ValueError(
        f'test_file: expected at least 2 tokens, got {len(test)} in {path}.'
      )
  else:
    needed += test_tokens
    rest = f' and config.data.tokens.test_tokens, {test_tokens}'
  if len(tokens) < needed:
    raise ValueError(
      f'file: expected at least {needed} tokens, for a row of {length}{rest}, '
      f'got {len(tokens)} in {file}.'
    )
  if not test_file:
    cut = len(tokens) - test_tokens - 1
    tokens, test = tokens[: cut + 1], tokens[cut:]
  whole = (len(tokens) - 1) // length * length
  return Dataset(
    train=token_rows.split(tokens[: whole + 1], length=length),
    test=token_rows.split(test, length=length),
    num_classes=vocabulary,
    separator=None if separator < 0 else separator,
    bytes_per_token=bytes_per_token or None,
  )


def _read(
  field: str, path: pathlib.Path, dtype: str, vocabulary: int
) -> np.ndarray:
  """Returns a file's tokens, all of them in the vocabulary."""
  found = _DTYPES[dtype]
  size = path.stat().st_size
  if size % found.itemsize:
    raise ValueError(
      f'{field}: expected whole tokens of {found.itemsize} bytes (dtype '
      f'{dtype!r}), got {size} bytes in {path}.'
    )
  if not size:  # Cannot be mapped.
    return np.zeros(0, found)
  tokens = np.memmap(path, found, 'r')
  other = _find_other_kind(tokens[:_SAMPLED])
  if other:
    raise ValueError(
      f'{field}: expected tokens alone, without a header, of '
      f'{found.itemsize} bytes (config.data.tokens.dtype {dtype!r}), got '
      f'{path}, which seems to be {other}.'
    )
  starts = range(0, len(tokens), _CHUNK)
  for start in starts if vocabulary < 1 << 8 * found.itemsize else ():
    chunk = tokens[start : start + _CHUNK]
    if chunk.max() >= vocabulary:
      place = int(np.argmax(chunk >= vocabulary))
      raise ValueError(
        f'{field}: expected tokens below config.data.tokens.vocabulary, '
        f'{vocabulary}, got {chunk[place]} at token {start + place} of {path}.'
      )
  return tokens


def _find_other_kind(tokens: np.ndarray) -> str:
  """Returns what a file seems to be if not one of these tokens; else ''."""
  content = tokens.tobytes()
  for start, kind in _FORMATS.items():
    if content.startswith(start):
      return kind
  if len(tokens) < _FEWEST:
    return ''
  if _is_text(content):
    return "a text (config.data.name 'text' reads it byte by byte)"
  for factor in (4, 2):  # Small integers of a wider type begin with zeros.
    size = tokens.itemsize * factor
    whole = tokens[: len(tokens) // factor * factor].reshape(-1, factor)
    if size <= 8 and whole[:, 0].any() and not whole[:, 1:].any():
      return (
        f'one of integers of {size} bytes, as of each {factor} tokens all but '
        'the first are 0'
      )
  return ''


def _is_text(content: bytes) -> bool:
  """Returns whether bytes are the beginning of a text in UTF-8."""
  try:
    text = codecs.getincrementaldecoder('utf-8')().decode(content)
  except UnicodeDecodeError:
    return False
  return all(letter.isprintable() or letter in '\t\n\f\r' for letter in text)
