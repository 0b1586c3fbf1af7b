"""Handwritten digits that come inside scikit-learn, enlarged to 32x32.

1,797 images of 8x8 pixels (Alpaydin and Kaynak, 'Optical Recognition of
Handwritten Digits', UCI, 1998).  They need no download and a small network
learns them in seconds.
"""

import importlib.util
import pathlib

import numpy as np

from data.dataset import Dataset, Split

_FILE = 'datasets/data/digits.csv.gz'
_PIXELS = 32
_FOLDS = 5


def make(*, directory: str | None, fold: int) -> Dataset:
  """Returns 1,437 training and 360 test digits, float32 [N, 32, 32, 1].

  Every fifth example of each class is for testing, so the split is stratified
  and the same in all runs.  All 1,797 are tested over the five folds, of which
  the last three have 359.

  Args:
    directory: Unused: the digits need no file.
    fold: Which fifth is for testing, from 0 to 4.

  Raises:
    ValueError: If there is no such fold.
  """
  del directory
  if not 0 <= fold < _FOLDS:
    raise ValueError(f'fold: expected 0 to {_FOLDS - 1}, got {fold}.')
  rows = np.loadtxt(_path(), delimiter=',')
  images = rows[:, :-1].reshape(-1, 8, 8)
  inputs = _enlarge(images / images.max())[..., np.newaxis]
  targets = rows[:, -1].astype(np.int32)
  by_class = np.argsort(targets, kind='stable')
  test = np.zeros(len(targets), bool)
  test[by_class[fold::_FOLDS]] = True
  train = Split(inputs[~test], targets[~test])
  return Dataset(
    train=train,
    test=Split(inputs[test], targets[test]),
    num_classes=10,
    mean=(float(train.inputs.mean()),),
    std=(float(train.inputs.std()),),
  )


def _path() -> pathlib.Path:
  # Every process of a run reads it: importing scikit-learn takes a second.
  package = importlib.util.find_spec('sklearn')
  return pathlib.Path(package.submodule_search_locations[0], _FILE)


def _enlarge(images: np.ndarray) -> np.ndarray:
  """Bilinear interpolation of [N, P, P] images, as one matrix per axis."""
  pixels = images.shape[1]
  centres = (np.arange(_PIXELS) + 0.5) * pixels / _PIXELS - 0.5
  centres = np.clip(centres, 0, pixels - 1)  # Repeats the border outwards.
  distance = np.abs(centres[:, np.newaxis] - np.arange(pixels))
  weights = np.maximum(0, 1 - distance)
  return (weights @ images @ weights.T).astype(np.float32)
