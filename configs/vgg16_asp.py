"""VGG16 with ASP: nobody waits.

python main.py --config=configs/vgg16_asp.py           (digits)
python main.py --config=configs/vgg16_asp.py:cifar10   (needs its archive)
"""

import ml_collections

from configs import vgg16_bsp


def get_config(variant: str = 'digits') -> ml_collections.ConfigDict:
  """Returns the experiment on one of the data sets digits and cifar10."""
  config = vgg16_bsp.get_config(variant)
  config.sync.name = 'asp'
  return config
