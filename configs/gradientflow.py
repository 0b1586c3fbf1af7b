"""GradientFlow's runs: AlexNet and ResNet-50 on ImageNet, 64 and 512 GPUs.

Sun et al., 'Optimizing Network Performance for Distributed DNN Training on GPU
Clusters: ImageNet/AlexNet Training in 1.5 Minutes', 2019: ring allreduce, mixed
precision, lazy allreduce and overlap; without its sparse communication.

python main.py --config=configs/gradientflow.py:alexnet_512
python main.py --config=configs/gradientflow.py:alexnet_64
python main.py --config=configs/gradientflow.py:resnet50_512
python main.py --config=configs/gradientflow.py:resnet50_64
python main.py --config=configs/gradientflow.py:alexnet_512_time
python main.py --config=configs/gradientflow.py:alexnet_64_time
python main.py --config=configs/gradientflow.py:resnet50_512_time
python main.py --config=configs/gradientflow.py:resnet50_64_time

The first four train models.  They were not run, as they need ImageNet and as
many GPUs, with config.cluster.runtime='distributed'.  Variants that end in
_time simulate twenty of the same iterations without a model.

Published: 95 epochs of AlexNet in 1.5 minutes on 512 GPUs, 410.2 times as fast
as one GPU, which gives 3,297 images per second on one; 56 Gbit/s; float16
payloads of float32 parameters; a gradient buffer sent in buckets.  Recalled,
not verified: 128 examples per GPU for AlexNet and 64 for ResNet-50, LARS, hosts
of 8 GPUs.  Assumed here: 340 images per second for ResNet-50 on one GPU, the
order of magnitude of a V100 at that time; 2 microseconds between GPUs; buckets
of 8 MB, sent one after the other, each with an overhead of 10 microseconds and
the latency of the ring; times of gradients computed from layer shapes
(cluster/speed/rooflines.py); learning rates, warm-up and decay of You et al.,
'Large Batch Training of Convolutional Networks' (2017), not tuned; batch
normalisation in AlexNet, as published.

Measured in November 2026: alexnet_512_time takes 58.7 ms per iteration, 1.12
million images per second, 339 times those of one GPU; resnet50_512_time takes
197 ms, 488 times.  With config.route.bucket_bytes='auto' 365 and 495 times.
Sparse chunks and hosts: python reproduce.py gradientflow_gpus.

Each worker has a link of 56 Gbit/s.  In a ring through one host after another,
a host's link carries the traffic of one of its GPUs, and links inside a host
are faster: the rate is the same.
"""

import ml_collections

from configs import recipes

_LINK_BPS = 56e9 / 8
_LATENCY_S = 1e-6  # Latency of a worker's link: half of that to another worker.
_LAUNCH_S = 10e-6  # Overhead of an allreduce.
_BUCKET_BYTES = 8e6  # In float32; half as many bytes are sent.
# By model: seconds per example, batch of a GPU, bytes of parameters, epochs.
_MODELS = {
  'alexnet': (1 / 3297, 128, 4 * 61_101_992, 95.0),
  'resnet50': (1 / 340, 64, 4 * 25_557_032, 90.0),
}
_EXAMPLES = 1_281_167
_SIMULATED = 20  # Iterations.


def get_config(variant: str = 'alexnet_512_time') -> ml_collections.ConfigDict:
  """Returns the recipe that `variant` names.

  Args:
    variant: MODEL_GPUS or MODEL_GPUS_time, with 'alexnet' or 'resnet50' and 64
      or 512.

  Raises:
    ValueError: If there is no such recipe.
  """
  known = [
    f'{model}_{gpus}{kind}'
    for model in _MODELS
    for gpus in (64, 512)
    for kind in ('', '_time')
  ]
  if variant not in known:
    raise ValueError(f'variant: expected one of {known}, got {variant!r}.')
  model, gpus, *timed = variant.split('_')
  config = _cluster(model, int(gpus))
  if timed:
    batch = config.cluster.workers * config.batching.worker_batch
    config.epochs = _SIMULATED * batch / _EXAMPLES
    own = config.batching.worker_batch
    config.cluster.speed.layers = f'roofline({model}, {own})'
    config.model.name = 'none'
    config.model.none.size_bytes = _MODELS[model][2]
    config.model.none.num_train = _EXAMPLES
    return config
  config.precision.dtype = 'float16'
  config.precision.loss_scaling = 'dynamic'
  config.epochs = _MODELS[model][3]
  _learn(config, model)
  return config


def _cluster(model: str, gpus: int) -> ml_collections.ConfigDict:
  """Returns the config of cluster, batches and routes, without a model."""
  per_example_s, batch, *_ = _MODELS[model]
  config = recipes.synchronous(
    gpus, per_example_s=per_example_s, link_Bps=_LINK_BPS
  )
  config.batching.worker_batch = batch
  config.cluster.network.worker_latency_s = (_LATENCY_S,)
  config.cluster.network.range_s = _LAUNCH_S + 4 * (gpus - 1) * _LATENCY_S
  config.wire.dense.dtype = 'float16'
  config.route.name = 'ring'
  config.route.bucket_bytes = _BUCKET_BYTES
  return config


def _learn(config: ml_collections.ConfigDict, model: str) -> None:
  """Sets model, data, optimizer and schedule."""
  recipes.set_imagenet(config)
  config.batching.micro_batch = config.batching.worker_batch
  if model == 'alexnet':
    config.model.name = 'alexnet'
    config.model.alexnet.norm = 'batch'
  else:
    config.model.name = 'resnet'
    config.model.resnet.depth = 50
    config.model.resnet.norm = 'batch'
  batch = config.cluster.workers * config.batching.worker_batch
  config.optimizer.name = 'lars'
  config.optimizer.reduction = 'mean'
  config.optimizer.lars.skip_vectors = True
  config.optimizer.lars.weight_decay = 5e-4 if model == 'alexnet' else 1e-4
  # Proportional to the root of the batch, from rate 8 at 8,192 examples.
  config.optimizer.learning_rate = 8.0 * (batch / 8192) ** 0.5
  config.schedule.name = 'cosine'
  config.schedule.warmup_epochs = 5.0
