"""VGG16 at 1/8 width with R2SP: workers continue in turns, evenly spaced.

Scheme: Chen et al., INFOCOM 2019.  Model: Simonyan and Zisserman, ICLR 2015.
Four virtual workers, the slowest three times slower, 10 % jitter.

python main.py --config=configs/vgg16_r2sp.py           (digits)
python main.py --config=configs/vgg16_r2sp.py:cifar10   (needs its archive)

Reached on digits, seed 0: 97.2 % after 177 virtual seconds, 90 % at 35.4,
waiting 35 %; under a minute on two cores.
"""

import ml_collections

from configs import vgg16_bsp


def get_config(variant: str = 'digits') -> ml_collections.ConfigDict:
  """Returns the config that trains VGG16 with R2SP on a data set.

  Args:
    variant: Name of the data set, a module of `data`; an unknown one is refused
      when the run is built.
  """
  config = vgg16_bsp.get_config(variant)
  config.sync.name = 'r2sp'
  return config
