"""CIFAR-100: 60,000 colour images of 32x32 pixels in a hundred classes.

From Krizhevsky, 'Learning Multiple Layers of Features from Tiny Images'
(2009).  Reads the official archive for Python.
"""

from data.dataset import Dataset
from data.files import locate_file, read_archive

ARCHIVE_MD5 = 'eb9058c3a382ffc7106e4002c42a8d85'
_MEAN = (0.5071, 0.4865, 0.4409)  # Mean of the official training images.
_STD = (0.2673, 0.2564, 0.2762)


def make(*, directory: str | None, file: str) -> Dataset:
  """Returns the images as uint8 [N, 32, 32, 3], red, green and blue.

  The targets are the hundred fine classes, not the twenty coarse ones.  The
  archive's md5 is checked before any of it is unpickled, and nothing is
  unpacked to disk.

  Args:
    directory: Folder of the file; None if there is none.
    file: The official archive, cifar-100-python.tar.gz.

  Raises:
    ValueError: If `file` is missing, or is not the official archive.
  """
  train, test = read_archive(
    locate_file(directory, file),
    md5=ARCHIVE_MD5,
    members=('train', 'test'),
    labels=b'fine_labels',
  )
  return Dataset(train=train, test=test, num_classes=100, mean=_MEAN, std=_STD)
