"""Images of any kind, in a folder for each class.

The layout is that of torchvision's `ImageFolder`.
"""

import numpy as np

from configs import declared
from data import image_folders, statistics
from data.dataset import Dataset
from data.files import test_folder

_SUFFIXES = ('.png', '.jpg', '.jpeg')
_MEASURED = 1000  # Training images of which mean and deviation are taken.


@declared.check_arguments('data.folder')
def make(*, directory: str | None, folder: str, pixels: int) -> Dataset:
  """Returns lazily decoded images, uint8 [N, pixels, pixels, 3].

  The central square of an image is resized.  Mean and deviation are those of
  1,000 training images, at equal distances from the first to the last.

  Args:
    directory: Folder of `folder`; None if there is none.
    folder: Name of a folder with train/CLASS/*.png and test/CLASS/*.png, or
      val/ in place of test/; .jpg and .jpeg, too.
    pixels: Height and width to which images are resized.

  Raises:
    ValueError: As in `image_folders.read`.
  """
  train, test, num_classes = image_folders.read(
    directory,
    folder,
    test_folder(directory, folder),
    pixels=pixels,
    shown=1.0,
    suffixes=_SUFFIXES,
  )
  count = min(_MEASURED, len(train.inputs))
  rows = np.linspace(0, len(train.inputs) - 1, count).astype(int)
  mean, std = statistics.of_channels(train.inputs[rows])
  return Dataset(train, test, num_classes, mean, std)
