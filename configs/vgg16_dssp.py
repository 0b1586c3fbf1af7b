"""VGG16 at 1/8 width with DSSP: a bound that moves within a range.

Scheme: Zhao et al., ICDCS 2019.  Model: Simonyan and Zisserman, ICLR 2015.
Four virtual workers, the slowest three times slower, 10 % jitter.

python main.py --config=configs/vgg16_dssp.py           (digits)
python main.py --config=configs/vgg16_dssp.py:cifar10   (needs its archive)

Reached on digits, seed 0: 98.3 % after 186 virtual seconds, 90 % at 36.8,
waiting 34 %; under a minute on two cores.
"""

import ml_collections

from configs import vgg16_bsp


def get_config(variant: str = 'digits') -> ml_collections.ConfigDict:
  """Returns the experiment on the data set that `variant` names."""
  config = vgg16_bsp.get_config(variant)
  config.sync.name = 'dssp'
  return config
