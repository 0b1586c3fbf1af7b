"""VGG16 with BSP on four unequal workers, the slowest 3x slower.

python main.py --config=configs/vgg16_bsp.py           (digits)
python main.py --config=configs/vgg16_bsp.py:cifar10   (needs its archive)
"""

import ml_collections

from configs import default


def get_config(variant: str = 'digits') -> ml_collections.ConfigDict:
  """Returns the experiment on one of the data sets digits and cifar10."""
  config = default.get_config()
  config.sync.name = 'bsp'
  config.data.name = variant
  return config
