"""Images that are sorted into folders by class.

They stay on disk and are decoded when they are used, by threads of Grain, while
Pillow releases Python's lock.
"""

import os
import pathlib

import grain
import numpy as np
from PIL import Image

from data.dataset import Split
from data.files import locate_folder

_FORMATS = ('JPEG', 'PNG')  # Whatever a file's name says.
# Errors of Pillow for files that are truncated, corrupt, or of another kind.
_BROKEN = (OSError, SyntaxError, Image.DecompressionBombError)


def read(
  directory: str | None,
  folder: str,
  test: str,
  *,
  pixels: int,
  shown: float,
  suffixes: tuple[str, ...],
) -> tuple[Split, Split, int]:
  """Returns training split, test split and number of classes.

  Images are uint8 [N, pixels, pixels, 3].  Classes are numbered in the order of
  their folders' names; the examples are sorted by class.

  Args:
    directory: Folder of `folder`; None if there is none.
    folder: Name of a folder with train/CLASS/FILE and TEST/CLASS/FILE.
    test: Name of the folder TEST.
    pixels: Height and width of the cropped images.
    shown: Share of the shorter side that the central crop shows.
    suffixes: Ends of the names of image files, in small letters.

  Raises:
    ValueError: If a folder is missing or empty, or if both splits have not the
      same classes; and, when an image is used, if it cannot be decoded.
  """
  if pixels < 1:
    raise ValueError(f'pixels: expected at least 1, got {pixels}.')
  paths = [
    locate_folder(directory, f'{folder}/{name}') for name in ('train', test)
  ]
  classes, others = map(_classes, paths)
  differing = sorted(set(classes) ^ set(others))
  if differing or not classes:
    raise ValueError(
      f'folder: expected one folder per class in {paths[0]}, and the same in '
      f'{paths[1]}, got {len(classes)} in train and {len(differing)} that only '
      f'one of them has: {", ".join(differing[:3]) or "none"}.'
    )
  splits = []
  for path in paths:
    names, targets = _names(path, classes, suffixes)
    images = Images(path, names, pixels=pixels, shown=shown)
    splits.append(Split(images, targets))
  return splits[0], splits[1], len(classes)


class Images:
  """Image files that are indexed like an array of their pixels.

  `images[rows]` decodes the rows that NumPy would return, for an integer, a
  slice or an array.  Nothing is cached: a row is decoded whenever it is
  indexed, with the same result.

  Args:
    names: Paths of the files below `folder`.
    pixels: Height and width of the images.
    shown: Share of the shorter side that the central crop shows.

  Attributes:
    shape: (N, pixels, pixels, 3), red, green and blue.
    dtype: Uint8.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    names: list[str],
    *,
    pixels: int,
    shown: float,
  ):
    self.shape = (len(names), pixels, pixels, 3)
    self.dtype = np.dtype(np.uint8)
    # One array of bytes: a million strings would take several times as much.
    self._names = np.array([os.fsencode(name) for name in names])
    self._folder, self._shown = folder, shown

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
        f'folder: expected a JPEG or PNG image, got {path}: {error}.'
      ) from error
    side = self._shown * min(rgb.size)
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


def _names(
  folder: pathlib.Path, classes: list[str], suffixes: tuple[str, ...]
) -> tuple[list[str], np.ndarray]:
  """Returns the paths of the images below a folder, and their classes."""
  files = [_files(folder / name, suffixes) for name in classes]
  names = [
    f'{name}/{file}'
    for name, members in zip(classes, files, strict=True)
    for file in members
  ]
  sizes = [len(members) for members in files]
  return names, np.repeat(np.arange(len(classes), dtype=np.int32), sizes)


def _files(folder: pathlib.Path, suffixes: tuple[str, ...]) -> list[str]:
  names = os.listdir(folder)
  files = sorted(name for name in names if name.lower().endswith(suffixes))
  if not files:
    raise ValueError(
      f'folder: expected images ({", ".join(suffixes)}) in {folder}, got none.'
    )
  return files
