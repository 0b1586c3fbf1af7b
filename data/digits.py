"""Handwritten digits from scikit-learn, enlarged to 32x32 pixels.

1,797 images of 8x8 pixels (Alpaydin and Kaynak, 'Optical Recognition of
Handwritten Digits', UCI, 1998).  They need no download and a small network
learns them in seconds.
"""

import importlib.util
import pathlib

import numpy as np

from configs import declared
from data.dataset import Dataset, Split

_FILE = 'datasets/data/digits.csv.gz'
_PIXELS = 32
_FOLDS = 5


@declared.check_arguments('data.digits')
def make(*, directory: str | None, fold: int, validation: bool) -> Dataset:
  """Returns 1,437 training and 360 test digits, float32 [N, 32, 32, 1].

  Every fifth example of each class is for testing, so that the split is
  stratified and the same in all runs.  The five folds together test all 1,797;
  the last three have 359.  With `validation` the fold itself is left out: the
  next one is for testing and the other three are for training, so that settings
  can be chosen without looking at the fold.

  Args:
    directory: Unused, as the digits come with scikit-learn.
    fold: Index of the fifth that is for testing, 0 to 4.
    validation: Whether the fold is left out.

  Raises:
    ValueError: If there is no such fold.
  """
  del directory
  rows = np.loadtxt(_path(), delimiter=',')
  images = rows[:, :-1].reshape(-1, 8, 8)
  inputs = _enlarge(images / images.max())[..., np.newaxis]
  targets = rows[:, -1].astype(np.int32)
  by_class = np.argsort(targets, kind='stable')
  test = np.zeros(len(targets), bool)
  test[by_class[fold::_FOLDS]] = True
  train = ~test
  if validation:
    test[:] = False
    test[by_class[(fold + 1) % _FOLDS :: _FOLDS]] = True
    train &= ~test
  known = inputs[train]
  return Dataset(
    train=Split(known, targets[train]),
    test=Split(inputs[test], targets[test]),
    num_classes=10,
    mean=(float(known.mean()),),
    std=(float(known.std()),),
  )


def _path() -> pathlib.Path:
  # Every process of a run reads it: importing scikit-learn takes a second.
  package = importlib.util.find_spec('sklearn')
  if package is None or not package.submodule_search_locations:
    raise ModuleNotFoundError('Expected the package scikit-learn, got none.')
  return pathlib.Path(package.submodule_search_locations[0], _FILE)


def _enlarge(images: np.ndarray) -> np.ndarray:
  """Interpolates images, [N, P, P], bilinearly, by one matrix per axis."""
  pixels = images.shape[1]
  centres = (np.arange(_PIXELS) + 0.5) * pixels / _PIXELS - 0.5
  centres = np.clip(centres, 0, pixels - 1)  # Repeats the border outwards.
  distance = np.abs(centres[:, np.newaxis] - np.arange(pixels))
  weights = np.maximum(0, 1 - distance)
  enlarged: np.ndarray = weights @ images @ weights.T
  return enlarged.astype(np.float32)
