"""CIFAR-10: 60,000 colour images of 32x32 pixels in ten classes.

From Krizhevsky, 'Learning Multiple Layers of Features from Tiny Images'
(2009).  Reads the official archive for Python, or an .npz file of JPEG images.
"""

import concurrent.futures
import io
import pathlib
import zipfile
from collections.abc import Mapping

import numpy as np
from PIL import Image

from data.dataset import Dataset, Split
from data.files import locate_file, read_archive

ARCHIVE_MD5 = 'c58f30108f718f92721af3b95e74349a'
_MEMBERS = (*(f'data_batch_{i}' for i in range(1, 6)), 'test_batch')
_NUM_CLASSES = 10
_SHAPE = (32, 32, 3)
_MEAN = (0.4914, 0.4822, 0.4465)  # Mean of the official training images.
_STD = (0.2470, 0.2435, 0.2616)
_CHUNK = 1000  # Images that one task of the thread pool decodes.


def make(
  *, directory: str | None, file: str = 'cifar-10-python.tar.gz'
) -> Dataset:
  """Returns the images as uint8 [N, 32, 32, 3], red, green and blue.

  The archive's md5 is checked before any of it is unpickled, and nothing is
  unpacked to disk.  An .npz file holds for each split, `train` and `test`,
  bytes `SPLIT_head` and `SPLIT_buf` and integers `SPLIT_len` and `SPLIT_y`:
  image i is the JPEG file that starts with `head` and continues with the next
  `len[i]` bytes of `buf`, and `y[i]` is its class.

  Args:
    directory: Folder of the file; None if there is none.
    file: The official archive, .tar.gz, or JPEG images, .npz.

  Raises:
    ValueError: If `file` is missing, or does not have that format.
  """
  readers = {'.tar.gz': _read_archive, '.npz': _read_npz}
  suffix = next((suffix for suffix in readers if file.endswith(suffix)), None)
  if suffix is None:
    raise ValueError(
      f'file: expected one ending in .tar.gz or .npz, got {file!r}.'
    )
  train, test = readers[suffix](locate_file(directory, file))
  return Dataset(
    train=train, test=test, num_classes=_NUM_CLASSES, mean=_MEAN, std=_STD
  )


def _read_archive(path: pathlib.Path) -> tuple[Split, Split]:
  *train, test = read_archive(
    path, md5=ARCHIVE_MD5, members=_MEMBERS, labels=b'labels'
  )
  return (
    Split(*(np.concatenate(arrays) for arrays in zip(*train, strict=True))),
    test,
  )


def _read_npz(path: pathlib.Path) -> tuple[Split, Split]:
  try:
    with np.load(path) as arrays:
      return _decode(arrays, 'train'), _decode(arrays, 'test')
  except (EOFError, OSError, zipfile.BadZipFile) as error:
    raise ValueError(f'file: expected an .npz file, {path}: {error}') from error


def _decode(arrays: Mapping[str, np.ndarray], split: str) -> Split:
  names = [f'{split}_{part}' for part in ('head', 'buf', 'len', 'y')]
  missing = [name for name in names if name not in arrays]
  if missing:
    raise ValueError(f'file: expected arrays {names}, got none for {missing}.')
  head, buffer, lengths, targets = (arrays[name] for name in names)
  total = lengths.sum(dtype=int)
  if len(lengths) != len(targets) or total != len(buffer):
    raise ValueError(
      f'file: expected one {split}_len per {split}_y, adding up to the '
      f'{len(buffer)} bytes of {split}_buf, got {len(lengths)} for '
      f'{len(targets)}, adding up to {total}.'
    )
  if targets.min() < 0 or targets.max() >= _NUM_CLASSES:
    raise ValueError(
      f'file: expected classes 0 to {_NUM_CLASSES - 1} in {split}_y, got '
      f'{targets.min()} to {targets.max()}.'
    )
  ends = np.cumsum(lengths, dtype=int)
  starts = ends - lengths
  bounds = list(zip(starts.tolist(), ends.tolist(), strict=True))
  inputs = _images(head.tobytes(), buffer.tobytes(), bounds)
  return Split(inputs, targets.astype(np.int32))


def _images(
  head: bytes, buffer: bytes, bounds: list[tuple[int, int]]
) -> np.ndarray:
  """Decodes in threads: Pillow releases Python's lock while it decodes."""

  def decode(chunk: list[tuple[int, int]]) -> list[np.ndarray]:
    return [_image(head + buffer[start:stop]) for start, stop in chunk]

  chunks = [bounds[i : i + _CHUNK] for i in range(0, len(bounds), _CHUNK)]
  with concurrent.futures.ThreadPoolExecutor() as pool:
    return np.concatenate(list(pool.map(decode, chunks)))


def _image(encoded: bytes) -> np.ndarray:
  try:
    image = np.asarray(Image.open(io.BytesIO(encoded), formats=['JPEG']))
  except OSError as error:
    raise ValueError(f'file: expected JPEG images, got: {error}.') from error
  if image.shape != _SHAPE:
    raise ValueError(f'file: expected {_SHAPE} images, got {image.shape}.')
  return image
