"""ResNet-32 on CIFAR-10 with ElasticBSP, at half and at full width.

Scheme: Zhao et al., ICDM 2019.  Model: He et al., CVPR 2016, normalised over
groups instead of the batch.  configs/recipes.py describes cluster,
augmentation, batches and schedules.  The short recipe takes AdamW: after 0.2
epochs, 0.05 of them warm-up, it was at 27.6 %; SGD, 0.1 of them warm-up, at
15.8 % and 18.3 % with rates 0.02 and 0.05, and without normalisation, with
rate 0.02, at 17.4 %.

python main.py --config=configs/cifar10_resnet32.py        (two CPU cores)
python main.py --config=configs/cifar10_resnet32.py:full   (needs a GPU)

Reached on CIFAR-10 (JPEG q75), seed 0, by the first command with
--config.data.cifar10.file=cifar10_jpeg.npz: 64.9 % in 6 epochs, 537 virtual
seconds, 50 % at 179, 60 % at 358, waiting 7 %; 23 minutes on one core.  Longer
runs were not tried.

Full width was not run here: it needs a GPU.  Its optimiser is that of the
paper's section 4.2, rate 0.1 for 128 examples.
"""

import ml_collections

from configs import recipes


def get_config(variant: str = 'small') -> ml_collections.ConfigDict:
  """Returns the recipe for two CPU cores, 'small', or for a GPU, 'full'.

  Raises:
    ValueError: If `variant` is neither.
  """
  config = recipes.cifar10('resnet', variant)
  config.model.resnet.depth = 32
  if variant == 'small':
    config.epochs = 6.0
    config.model.resnet.width = 0.5
    config.optimizer.name = 'adamw'
    config.optimizer.learning_rate = 0.001
  else:
    config.optimizer.learning_rate = 0.025
    config.optimizer.sgd.weight_decay = 1e-4
  return config
