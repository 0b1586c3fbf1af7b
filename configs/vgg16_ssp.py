"""VGG16 at 1/8 width with SSP: a lead of at most config.sync.ssp.bound.

Scheme: Ho et al., NIPS 2013.  Model: Simonyan and Zisserman, ICLR 2015.
Four virtual workers, the slowest three times slower, 10 % jitter.

python main.py --config=configs/vgg16_ssp.py           (digits)
python main.py --config=configs/vgg16_ssp.py:cifar10   (needs its archive)

Reached on digits, seed 0: 96.9 % after 196 virtual seconds, 90 % at 58.8,
waiting 31 %; under a minute on two cores.
"""

import ml_collections

from configs import vgg16_bsp


def get_config(variant: str = 'digits') -> ml_collections.ConfigDict:
  """Returns the config that trains VGG16 with SSP on a data set.

  Args:
    variant: Name of the data set, a module of `data`; an unknown one is refused
      when the run is built.
  """
  config = vgg16_bsp.get_config(variant)
  config.sync.name = 'ssp'
  return config
