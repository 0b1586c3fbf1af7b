"""ImageNet, or any photographs sorted into folders by class.

From Russakovsky et al., 'ImageNet Large Scale Visual Recognition Challenge'
(IJCV, 2015).
"""

from configs import declared
from data import image_folders
from data.dataset import Dataset

_MEAN = (0.485, 0.456, 0.406)  # Mean of the official training images.
_STD = (0.229, 0.224, 0.225)
_SUFFIXES = ('.jpeg', '.jpg')  # One official file is a PNG all the same.
_SHOWN = 224 / 256  # Share of the shorter side that the crop shows.


@declared.check_arguments('data.imagenet')
def make(*, directory: str | None, folder: str, pixels: int) -> Dataset:
  """Returns lazily decoded images, uint8 [N, pixels, pixels, 3].

  An image's shorter side is resized to 8/7 of `pixels`, 256 for 224, and the
  centre is cropped.  Both are one step, which resizes only the centre.

  Args:
    directory: Folder of `folder`; None if there is none.
    folder: Name of a folder with train/CLASS/*.JPEG and val/CLASS/*.JPEG.
    pixels: Height and width of the cropped images.

  Raises:
    ValueError: As in `image_folders.read`.
  """
  train, test, num_classes = image_folders.read(
    directory,
    folder,
    'val',
    pixels=pixels,
    shown=_SHOWN,
    suffixes=_SUFFIXES,
  )
  return Dataset(train, test, num_classes, _MEAN, _STD)
