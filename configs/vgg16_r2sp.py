"""VGG16 with R2SP: workers go on in turns, evenly spaced.

python main.py --config=configs/vgg16_r2sp.py           (digits)
python main.py --config=configs/vgg16_r2sp.py:cifar10   (needs its archive)
"""

import ml_collections

from configs import vgg16_bsp


def get_config(variant: str = 'digits') -> ml_collections.ConfigDict:
  """Returns the experiment on one of the data sets digits and cifar10."""
  config = vgg16_bsp.get_config(variant)
  config.sync.name = 'r2sp'
  return config
