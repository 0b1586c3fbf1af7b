"""AlexNet of three convolutions on CIFAR-10 with ElasticBSP.

Scheme: Zhao et al., ICDM 2019.  The model stands for the 'downsized AlexNet' of
that paper: models/alexnet.py lists its known properties.  Group normalisation
was added: after 0.3 epochs at rate 0.03 accuracy was 34.8 % with it, 32.6 %
without.  configs/recipes.py describes cluster, augmentation, batches and
schedules.

python main.py --config=configs/cifar10_alexnet.py        (two CPU cores)
python main.py --config=configs/cifar10_alexnet.py:full   (needs a GPU)

Reached on CIFAR-10 (JPEG q75), seed 0, by the first command with
--config.data.cifar10.file=cifar10_jpeg.npz: 70.6 % in 6 epochs, 551 virtual
seconds, 50 % at 184, 60 % at 276 and 70 % at 551, waiting 6 %; nine minutes on
one core.

The long recipe, whose network is the same, was not run here.
"""

import ml_collections

from configs import recipes


def get_config(variant: str = 'small') -> ml_collections.ConfigDict:
  """Returns the recipe for two CPU cores, 'small', or for a GPU, 'full'.

  Raises:
    ValueError: If `variant` is neither.
  """
  config = recipes.cifar10('alexnet', variant)
  config.model.alexnet.norm = 'group'
  config.model.alexnet.dropout = 0.0
  config.optimizer.sgd.weight_decay = 5e-4
  if variant == 'small':
    config.epochs = 6.0
    config.optimizer.learning_rate = 0.03
  else:
    config.optimizer.learning_rate = 0.0025
  return config
