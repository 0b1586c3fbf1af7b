"""Seven schemes on whole CIFAR-10 and Fashion-MNIST: full scale, not run yet.

Three networks at sizes that two CPU cores can train, three seeds, with the
recipes of configs/cifar10_*.py; configs/tuned.py has the schemes and the
cluster.  Each variant is a sweep of 21 runs, which the same command resumes:

python sweep.py --config=configs/sweeps/full_scale.py:cifar10_alexnet
  --out=runs/full/cifar10_alexnet

variant                  epochs  budget, CPU hours
cifar10_alexnet               6  3.2
cifar10_resnet20              6  5.0
cifar10_vgg16                12  4.2
fashion_mnist_alexnet         4  2.5
fashion_mnist_resnet20        4  4.0
fashion_mnist_vgg16           6  2.5

Budgets are 21 times one run, from the minutes of the recipes on one core: 21.4
hours in all.  Rates are those of the recipes for one worker, and not tuned for
each scheme, as these data sets have no split for validation.  ResNet-20 has
half its width, VGG16 an eighth.  A file cifar10_jpeg.npz takes
--config.data.cifar10.file=cifar10_jpeg.npz.
"""

import ml_collections

from configs import (
  cifar10_alexnet,
  cifar10_resnet32,
  cifar10_vgg16,
  tuned,
)

GRID = f'{tuned.schemes_grid()}; seed = 0, 1, 2'
_RECIPES = {
  'alexnet': cifar10_alexnet,
  'resnet20': cifar10_resnet32,
  'vgg16': cifar10_vgg16,
}
_FASHION_EPOCHS = {'alexnet': 4.0, 'resnet20': 4.0, 'vgg16': 6.0}
VARIANTS = tuple(
  f'{data}_{network}'
  for data in ('cifar10', 'fashion_mnist')
  for network in _RECIPES
)


def get_config(variant: str) -> ml_collections.ConfigDict:
  """Returns what the runs of a variant share.

  Args:
    variant: One of `VARIANTS`, such as 'cifar10_vgg16'.

  Raises:
    ValueError: If there is no such variant.
  """
  if variant not in VARIANTS:
    raise ValueError(f'variant: expected one of {VARIANTS}, got {variant!r}.')
  data, _, network = variant.rpartition('_')
  config = _RECIPES[network].get_config('small')
  if network == 'resnet20':
    config.model.resnet.depth = 20
  if data == 'fashion_mnist':
    config.data.name = data
    config.epochs = _FASHION_EPOCHS[network]
    config.time_to = (0.8, 0.85, 0.9)
  config.cluster.speed.slowdown = (1.0, 1.5, 2.0, 3.0)
  config.outputs.timeline = False
  config.outputs.board = False
  return config
