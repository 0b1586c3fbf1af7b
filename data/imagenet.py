"""ImageNet, or any photographs sorted into folders by class.

From Russakovsky et al., 'ImageNet Large Scale Visual Recognition Challenge'
(IJCV, 2015).  Photographs stay on disk and are decoded when they are used, by
threads of Grain, while Pillow releases Python's lock.
"""

import os
import pathlib

import grain
import numpy as np
from PIL import Image

from data.dataset import Dataset, Split
from data.files import locate_folder

_MEAN = (0.485, 0.456, 0.406)  # Mean of the official training images.
_STD = (0.229, 0.224, 0.225)
_SUFFIXES = ('.jpeg', '.jpg')
_FORMATS = ('JPEG', 'PNG')  # One official file is a PNG in spite of its name.
# Errors of Pillow for files that are truncated, corrupt, or of another kind.
_BROKEN = (OSError, SyntaxError, Image.DecompressionBombError)
_CROPPED = 224 / 256  # Share of the shorter side that the crop shows.


def make(*, directory: str | None, folder: str, pixels: int) -> Dataset:
  """Returns lazily decoded images, uint8 [N, pixels, pixels, 3].

  An image's shorter side is resized to 8/7 of `pixels`, 256 for 224, and the
  centre is cropped.  Both are one step, which resizes only the centre.
  Classes are numbered in the order of their folders' names; the examples are
  sorted by class.

  Args:
    directory: Path of the folder that has `folder`.
    folder: Name of a folder with train/CLASS/*.JPEG and val/CLASS/*.JPEG.
    pixels: Height and width.

  Raises:
    ValueError: If a folder is missing or empty, or if train and val have not
      the same classes; and, when an image is used, if it cannot be decoded.
  """
  if pixels < 1:
    raise ValueError(f'pixels: expected at least 1, got {pixels}.')
  train = locate_folder(directory, f'{folder}/train')
  val = locate_folder(directory, f'{folder}/val')
  classes = _classes(train)
  differing = sorted(set(classes) ^ set(_classes(val)))
  if differing or not classes:
    raise ValueError(
      f'folder: expected one folder per class in {train}, and the same in '
      f'{val}, got {len(classes)} in train and {len(differing)} that only one '
      f'of them has: {", ".join(differing[:3]) or "none"}.'
    )
  return Dataset(
    train=_split(train, classes, pixels),
    test=_split(val, classes, pixels),
    num_classes=len(classes),
    mean=_MEAN,
    std=_STD,
  )


class Images:
  """Image files that are indexed like an array of their pixels.

  `images[rows]` decodes the rows that NumPy would return, for an integer, a
  slice or an array.  Nothing is cached: a row is decoded whenever it is
  indexed, with the same result.

  Attributes:
    shape: (N, pixels, pixels, 3), red, green and blue.
    dtype: Uint8.
  """

  def __init__(self, folder: pathlib.Path, names: list[str], *, pixels: int):
    """Stores the paths.

    Args:
      folder: Folder of the files.
      names: Paths of the files below it.
      pixels: Height and width of the images.
    """
    self.shape = (len(names), pixels, pixels, 3)
    self.dtype = np.dtype(np.uint8)
    # One array of bytes: a million strings would take several times as much.
    self._names = np.array([os.fsencode(name) for name in names])
    self._folder = folder

  def __len__(self) -> int:
    return len(self._names)

  def __getitem__(self, rows: int | slice | np.ndarray) -> np.ndarray:
    """Returns uint8 [..., pixels, pixels, 3].

    Raises:
      IndexError: If there is no such row.
      ValueError: If a file cannot be decoded; names it.
    """
    names = np.asarray(self._names[rows])
    images = np.empty((names.size, *self.shape[1:]), self.dtype)
    threads = os.cpu_count() or 1
    decoded = (
      grain.MapDataset.source(names.ravel().tolist())
      .map(self._decoded)
      .to_iter_dataset(
        grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
      )
    )
    for row, image in enumerate(decoded):
      images[row] = image
    return images.reshape(*names.shape, *self.shape[1:])

  def _decoded(self, name: bytes) -> np.ndarray:
    path = self._folder / os.fsdecode(name)
    try:
      with Image.open(path, formats=_FORMATS) as image:
        rgb = image.convert('RGB')
    except _BROKEN as error:
      raise ValueError(
        f'folder: expected a JPEG image, got {path}: {error}.'
      ) from error
    side = _CROPPED * min(rgb.size)
    left, top = ((length - side) / 2 for length in rgb.size)
    return np.asarray(
      rgb.resize(
        self.shape[1:3],
        Image.Resampling.BILINEAR,
        box=(left, top, left + side, top + side),
      )
    )


def _classes(folder: pathlib.Path) -> list[str]:
  return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())


def _split(folder: pathlib.Path, classes: list[str], pixels: int) -> Split:
  files = [_files(folder / name) for name in classes]
  names = [
    f'{name}/{file}'
    for name, members in zip(classes, files, strict=True)
    for file in members
  ]
  sizes = [len(members) for members in files]
  targets = np.repeat(np.arange(len(classes), dtype=np.int32), sizes)
  return Split(Images(folder, names, pixels=pixels), targets)


def _files(folder: pathlib.Path) -> list[str]:
  names = os.listdir(folder)
  files = sorted(name for name in names if name.lower().endswith(_SUFFIXES))
  if not files:
    raise ValueError(f'folder: expected JPEG images in {folder}, got none.')
  return files
