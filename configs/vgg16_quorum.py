"""VGG16 at 1/8 width with a quorum: rounds of at least `minimum` pushes.

Scheme: sync/quorum.py.  Model: Simonyan and Zisserman, ICLR 2015.  Four virtual
workers, the slowest three times slower, 10 % jitter.

python main.py --config=configs/vgg16_quorum.py           (digits)
python main.py --config=configs/vgg16_quorum.py:cifar10   (needs its archive)

Reached on digits, seed 0: 97.8 % after 150 virtual seconds, 90 % at 22.6,
waiting 22 %; under a minute on two cores.
"""

import ml_collections

from configs import vgg16_bsp


def get_config(variant: str = 'digits') -> ml_collections.ConfigDict:
  """Returns the config that trains VGG16 with the quorum scheme on a data set.

  Args:
    variant: Name of the data set, a module of `data`; an unknown one is refused
      when the run is built.
  """
  config = vgg16_bsp.get_config(variant)
  config.sync.name = 'quorum'
  return config
