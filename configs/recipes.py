"""Settings that the recipes for CIFAR-10 and ImageNet share; no experiment.

All run ElasticBSP on four workers, the slowest three times slower, with 10 %
jitter: config.cluster as in configs/fields/cluster.py.  Compute times, there
and here, are assumptions.

Learning rates and batches are those of one worker.  As
config.optimizer.reduction is 'sum', a barrier of four pushes of 32 examples at
rate r is one step of 128 examples at rate 4r.
"""

import ml_collections

from configs import default

_LINK_BPS = 1.25e9  # 10 Gbit/s.


def cifar10(model: str, variant: str) -> ml_collections.ConfigDict:
  """Returns a recipe for CIFAR-10 without the settings of its model.

  Images are mirrored and shifted by up to four pixels, as in section 4.2 of He
  et al., CVPR 2016.  Variant 'small' takes minutes on two CPU cores: the
  default batches of 4 x 16, SGD without momentum unless a recipe sets it, half
  an epoch of warm-up, then half a cosine.  Variant 'full' follows that section,
  for a GPU: batches of 4 x 32, momentum 0.9, a tenth of the rate from 32,000
  and from 48,000 of 64,000 steps of 128 examples, which are epochs 82, 123 and
  164.  One epoch of warm-up was added.

  Args:
    model: Name of a module of models/.
    variant: 'small' or 'full'.

  Raises:
    ValueError: If `variant` is neither.
  """
  if variant not in ('small', 'full'):
    raise ValueError(f"variant: expected 'small' or 'full', got {variant!r}.")
  config = _elastic(model)
  config.data.name = 'cifar10'
  config.data.crop_padding = 4
  if variant == 'small':
    config.time_to = (0.5, 0.6, 0.7)
    config.schedule.name = 'cosine'
    config.schedule.warmup_epochs = 0.5
    return config
  config.epochs = 164.0
  config.time_to = (0.7, 0.8, 0.9)
  config.batching.worker_batch = 32
  _set_gpus(config, fixed_s=0.005, per_example_s=0.00015)
  _set_steps(config, (82.0, 123.0), warmup_epochs=1.0)
  return config


def imagenet(model: str, *, per_example_s: float) -> ml_collections.ConfigDict:
  """Returns a recipe for ImageNet without the settings of its model.

  Batches of 4 x 64, momentum 0.9, 90 epochs after Goyal et al., 'Accurate,
  Large Minibatch SGD' (2017): five of warm-up, a tenth of the rate from epochs
  30, 60 and 80.  `set_imagenet` sets the images.

  Args:
    model: Name of a module of models/.
    per_example_s: Compute time per example of the fastest worker, seconds.
  """
  config = _elastic(model)
  config.epochs = 90.0
  config.time_to = (0.5, 0.6, 0.7)
  config.batching.worker_batch = 64
  set_imagenet(config)
  _set_gpus(config, fixed_s=0.01, per_example_s=per_example_s)
  _set_steps(config, (30.0, 60.0, 80.0), warmup_epochs=5.0)
  return config


def set_imagenet(config: ml_collections.ConfigDict) -> None:
  """Sets ImageNet, with mirrored crops of at least 8 % of an image.

  Crops are taken from the part that evaluation uses, the middle of a
  photograph.  Evaluation also reports top-5 accuracy.
  """
  config.data.name = 'imagenet'
  config.data.crop_area = 0.08
  config.data.flip = True
  config.eval_top = 5


def synchronous(
  workers: int, *, per_example_s: float, link_Bps: float
) -> ml_collections.ConfigDict:
  """Returns BSP on equal GPUs with constant compute times.

  Args:
    per_example_s: Compute time per example, seconds.
    link_Bps: Bandwidth of each worker in each direction, bytes per second.
  """
  config = default.get_config()
  config.sync.name = 'bsp'
  config.cluster.workers = workers
  config.cluster.speed.name = 'constant'
  config.cluster.speed.slowdown = (1.0,)
  config.cluster.speed.fixed_s = 0.0
  config.cluster.speed.per_example_s = per_example_s
  config.cluster.network.worker_up_Bps = (link_Bps,)
  config.cluster.network.worker_down_Bps = (link_Bps,)
  return config


def _elastic(model: str) -> ml_collections.ConfigDict:
  config = default.get_config()
  config.sync.name = 'elastic'
  config.model.name = model
  config.data.flip = True
  return config


def _set_gpus(
  config: ml_collections.ConfigDict, *, fixed_s: float, per_example_s: float
) -> None:
  config.cluster.speed.fixed_s = fixed_s
  config.cluster.speed.per_example_s = per_example_s
  for host in ('worker', 'server'):
    for link in ('up', 'down'):
      config.cluster.network[f'{host}_{link}_Bps'] = (_LINK_BPS,)


def _set_steps(
  config: ml_collections.ConfigDict,
  epochs: tuple[float, ...],
  *,
  warmup_epochs: float,
) -> None:
  config.optimizer.sgd.momentum = 0.9
  config.schedule.name = 'step'
  config.schedule.warmup_epochs = warmup_epochs
  config.schedule.step.epochs = epochs
