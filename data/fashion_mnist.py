"""Fashion-MNIST: 70,000 grey images of clothes in ten classes.

From Xiao, Rasul and Vollgraf, 'Fashion-MNIST: a Novel Image Dataset for
Benchmarking Machine Learning Algorithms' (2017).  Reads the four IDX files,
gzipped or not; those of MNIST have the same names and the same format.
"""

import gzip
import math
import pathlib
import zlib

import numpy as np

from data.dataset import Dataset, Split
from data.files import locate_folder

_NUM_CLASSES = 10
_PIXELS = 28
_MARGIN = 2  # Five poolings halve 32 pixels down to one, but not 28.
_MEAN = (0.2190,)  # Mean of the training images with their margins.
_STD = (0.3318,)
_UINT8 = 0x800  # The magic number is this plus the number of dimensions.


def make(*, directory: str | None, folder: str) -> Dataset:
  """Returns the images as uint8 [N, 32, 32, 1], with margins of zeros.

  Args:
    directory: Folder of `folder`; None if there is none.
    folder: Name of a folder with train-images-idx3-ubyte,
      train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
      t10k-labels-idx1-ubyte, with or without the ending .gz.

  Raises:
    ValueError: If a file is missing, or does not have that format.
  """
  path = locate_folder(directory, folder)
  return Dataset(
    train=_split(path, 'train'),
    test=_split(path, 't10k'),
    num_classes=_NUM_CLASSES,
    mean=_MEAN,
    std=_STD,
  )


def _split(folder: pathlib.Path, name: str) -> Split:
  images = _read(folder / f'{name}-images-idx3-ubyte', (_PIXELS, _PIXELS))
  targets = _read(folder / f'{name}-labels-idx1-ubyte', ())
  if not 0 < len(images) == len(targets):
    raise ValueError(
      f'folder: expected as many images as labels in {folder}, at least one, '
      f'got {len(images)} and {len(targets)} in {name}.'
    )
  if targets.max() >= _NUM_CLASSES:
    raise ValueError(
      f'folder: expected labels 0 to {_NUM_CLASSES - 1} in {folder}, got '
      f'{targets.max()} in {name}.'
    )
  margin = (_MARGIN, _MARGIN)
  padded = np.pad(images, ((0, 0), margin, margin))
  return Split(padded[..., np.newaxis], targets.astype(np.int32))


def _read(path: pathlib.Path, item: tuple[int, ...]) -> np.ndarray:
  """Returns an IDX file's items, uint8 [N, *item]."""
  content = _content(path)
  dimensions = 1 + len(item)
  header = 4 * (1 + dimensions)
  if len(content) < header:
    raise ValueError(
      f'folder: expected a header of {header} bytes in {path}, got '
      f'{len(content)}.'
    )
  magic, *shape = np.frombuffer(content[:header], '>u4').tolist()
  if magic != _UINT8 + dimensions:
    raise ValueError(
      f'folder: expected magic number {_UINT8 + dimensions} in {path}, got '
      f'{magic}.'
    )
  if tuple(shape[1:]) != item:
    raise ValueError(
      f'folder: expected {item} items in {path}, got {tuple(shape[1:])}.'
    )
  if len(content) != header + math.prod(shape):
    raise ValueError(
      f'folder: expected {shape[0]} items in {path}, as its header says, '
      f'{math.prod(shape)} bytes, got {len(content) - header}.'
    )
  return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _content(path: pathlib.Path) -> bytes:
  zipped = path.with_name(f'{path.name}.gz')
  if path.is_file():
    return path.read_bytes()
  if not zipped.is_file():
    raise ValueError(
      f'folder: expected {path.name} or {zipped.name}, got {path.parent}, '
      'which lacks both.'
    )
  try:
    return gzip.decompress(zipped.read_bytes())
  except (OSError, EOFError, zlib.error) as error:
    raise ValueError(
      f'folder: expected a gzipped file, got {zipped}: {error}.'
    ) from error
