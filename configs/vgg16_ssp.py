"""VGG16 with SSP: a lead of at most config.sync.ssp.bound.

python main.py --config=configs/vgg16_ssp.py           (digits)
python main.py --config=configs/vgg16_ssp.py:cifar10   (needs its archive)
"""

import ml_collections

from configs import vgg16_bsp


def get_config(variant: str = 'digits') -> ml_collections.ConfigDict:
  """Returns the experiment on one of the data sets digits and cifar10."""
  config = vgg16_bsp.get_config(variant)
  config.sync.name = 'ssp'
  return config
