"""Four networks on ImageNet with ElasticBSP: recipes for GPUs.

Scheme: Zhao et al., ICDM 2019.  Models: He et al., CVPR 2016; Szegedy et al.,
CVPR 2016; Krizhevsky, 2014; Simonyan and Zisserman, ICLR 2015.

python main.py --config=configs/imagenet.py:resnet50
python main.py --config=configs/imagenet.py:inception_v3
python main.py --config=configs/imagenet.py:alexnet
python main.py --config=configs/imagenet.py:vgg16

They were not run, as they need ImageNet, as class folders in config.data.dir,
and GPUs.  configs/recipes.py describes their common settings.  ResNet and
Inception normalise over groups instead of the batch; Inception has the rates
of ResNet instead of its own optimizer, RMSProp.

The fastest worker's 2.5 ms per example of ResNet-50, 400 per second, is the
order of magnitude of one GPU of 2017, not a measurement; the others are in
proportion to their multiplications, 5.7, 0.7 and 15.5 billion to ResNet-50's
4.1.
"""

import ml_collections

from configs import recipes

_PER_EXAMPLE_S = {
  'resnet50': 0.0025,
  'inception_v3': 0.0035,
  'alexnet': 0.0004,
  'vgg16': 0.0095,
}


def get_config(variant: str = 'resnet50') -> ml_collections.ConfigDict:
  """Returns the experiment with the network that `variant` names.

  Args:
    variant: 'resnet50', 'inception_v3', 'alexnet' or 'vgg16'.

  Raises:
    ValueError: If there is no such network.
  """
  if variant not in _PER_EXAMPLE_S:
    raise ValueError(
      f'variant: expected one of {list(_PER_EXAMPLE_S)}, got {variant!r}.'
    )
  model = {'resnet50': 'resnet', 'vgg16': 'vgg'}.get(variant, variant)
  config = recipes.imagenet(model, per_example_s=_PER_EXAMPLE_S[variant])
  # Rates 0.1 and 0.01 of steps of 256 examples.
  if model in ('resnet', 'inception_v3'):
    config.optimizer.learning_rate = 0.025
    config.optimizer.sgd.weight_decay = 1e-4
  else:
    config.optimizer.learning_rate = 0.0025
    config.optimizer.sgd.weight_decay = 5e-4
  if model == 'resnet':
    config.model.resnet.depth = 50
  elif model == 'inception_v3':
    config.data.imagenet.pixels = 299
  elif model == 'vgg':
    config.model.vgg.width = 1.0
    config.model.vgg.dropout = 0.5
  return config
