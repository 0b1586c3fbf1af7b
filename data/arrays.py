"""Examples from a file of named arrays, as `numpy.savez` writes it."""

import pathlib
import zipfile

import numpy as np

from data import statistics
from data.dataset import PADDING, Dataset, Split
from data.files import locate_file


def make(*, directory: str | None, file: str) -> Dataset:
  """Returns the examples of an .npz file.

  It has arrays `train_inputs`, `train_targets`, `test_inputs`, `test_targets`.
  Inputs are bytes (uint8) or floats [N, ..., C], which are standardised by
  channel, or token ids, other integers [N, T].  Integer targets are classes
  from 0, [N], or with token ids the next token at each position, [N, T], where
  -1 does not count.  Floats are targets of any shape for a loss of your own.
  The number of classes is the largest class, or token, plus 1.  Floats become
  float32; integers other than bytes become int32.

  Args:
    directory: Folder of the file; None if there is none.
    file: Name of the file in it.

  Raises:
    ValueError: If the file is missing, or lacks an array, or if one has another
      type or shape.
  """
  path = locate_file(directory, file)
  names = [
    f'{split}_{part}'
    for split in ('train', 'test')
    for part in ('inputs', 'targets')
  ]
  found = _read(path, names)
  inputs = {name: _inputs(name, found[name]) for name in names[::2]}
  targets = {name: _targets(name, found[name]) for name in names[1::2]}
  known, other = inputs.values()
  _check_equal('test_inputs', 'train_inputs', known, other)
  _check_equal('test_targets', 'train_targets', *targets.values())
  train, test = map(Split, inputs.values(), targets.values())
  classes = [each for each in targets.values() if each.dtype == np.int32]
  mean: tuple[float, ...] = ()
  std: tuple[float, ...] = ()
  if known.dtype != np.int32:
    mean, std = statistics.of_channels(known)
  elif len(train.targets.shape) == 2:  # The next token at each position.
    classes += inputs.values()
  count = max((int(each.max(initial=-1)) + 1 for each in classes), default=0)
  return Dataset(train, test, count, mean, std)


def _read(path: pathlib.Path, names: list[str]) -> dict[str, np.ndarray]:
  try:
    if not zipfile.is_zipfile(path):
      raise ValueError('it is no archive')
    with np.load(path) as arrays:
      missing = [name for name in names if name not in arrays]
      if missing:
        raise ValueError(f'it has {sorted(arrays)}, without {missing}')
      return {name: arrays[name] for name in names}
  except (EOFError, OSError, ValueError, zipfile.BadZipFile) as error:
    raise ValueError(
      f'file: expected an .npz file of the arrays {names}, got {path}: {error}.'
    ) from error


def _inputs(name: str, array: np.ndarray) -> np.ndarray:
  kind, is_bytes = array.dtype.kind, array.dtype == np.uint8
  if array.ndim < 2 or not array.size:
    expected = 'an array of at least one example [N, ..., C]'
  elif kind == 'f':
    return _to_float32(name, array)
  elif is_bytes:
    return array
  elif kind in 'iu' and array.ndim == 2:
    return _to_int32(name, array, 0)
  else:
    expected = 'uint8 or floats, or integers [N, T] for token ids'
  raise ValueError(
    f'file: expected {expected} in {name}, got {array.dtype} {array.shape}.'
  )


def _targets(name: str, array: np.ndarray) -> np.ndarray:
  if array.ndim and array.dtype.kind == 'f':
    return _to_float32(name, array)
  if array.ndim in (1, 2) and array.dtype.kind in 'iu':
    return _to_int32(name, array, PADDING if array.ndim == 2 else 0)
  raise ValueError(
    f'file: expected integers [N] or [N, T], or floats, in {name}, got '
    f'{array.dtype} {array.shape}.'
  )


def _to_float32(name: str, array: np.ndarray) -> np.ndarray:
  wrong = ~np.isfinite(array)
  if wrong.any():
    raise ValueError(
      f'file: expected finite numbers in {name}, got {array[wrong][0]}.'
    )
  return array.astype(np.float32, copy=False)


def _to_int32(name: str, array: np.ndarray, least: int) -> np.ndarray:
  wrong = (array < least) | (array >= np.iinfo(np.int32).max)
  if wrong.any():
    raise ValueError(
      f'file: expected integers from {least} in {name}, got {array[wrong][0]}.'
    )
  return array.astype(np.int32, copy=False)


def _check_equal(
  name: str, before: str, known: np.ndarray, other: np.ndarray
) -> None:
  """Checks that examples of both splits have the same type and shape."""
  expected = known.dtype, known.shape[1:]
  if (other.dtype, other.shape[1:]) != expected:
    raise ValueError(
      f'file: expected {known.dtype} {known.shape[1:]} for each example of '
      f'{name}, as in {before}, got {other.dtype} {other.shape[1:]}.'
    )
