"""AlexNet for ImageNet, and a small one for CIFAR, at any width.

The large network is the single column of Krizhevsky, 'One Weird Trick for
Parallelizing Convolutional Neural Networks' (2014), without its response
normalisation.  The small one stands for the 'downsized AlexNet' of three
convolutions and two dense layers with which Zhao et al. evaluate DSSP (ICDCS
2019) and ElasticBSP (ICDM 2019).  They give no sizes: these are those of the
'quick' CIFAR network of cuda-convnet and Caffe.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from configs import declared
from models import gradients, sizes
from models import norm as norms
from models.initializers import FLOAT32, dense


class _Layer(NamedTuple):
  """A convolution, and a pooling behind its ReLU."""

  channels: int
  kernel: int
  padding: int
  strides: int = 1
  pool: Callable[[jax.Array], jax.Array] | None = None


class _Net(NamedTuple):
  """Its convolutions leave `pixels` x `pixels` for the dense layers."""

  convs: tuple[_Layer, ...]
  pixels: int
  hidden: tuple[int, ...]


_pool = functools.partial(gradients.max_pool, window=(3, 3), strides=(2, 2))
# On an even number of pixels the last window reaches over the edge, as Caffe's.
_pool_even = functools.partial(_pool, padding='SAME')
_average_even = functools.partial(
  nnx.avg_pool,
  window_shape=(3, 3),
  strides=(2, 2),
  padding='SAME',
  count_include_pad=False,
)

_NETS = {
  224: _Net(
    convs=(
      _Layer(64, kernel=11, padding=2, strides=4, pool=_pool),
      _Layer(192, kernel=5, padding=2, pool=_pool),
      _Layer(384, kernel=3, padding=1),
      _Layer(256, kernel=3, padding=1),
      _Layer(256, kernel=3, padding=1, pool=_pool),
    ),
    pixels=6,
    hidden=(4096, 4096),
  ),
  32: _Net(
    convs=(
      _Layer(32, kernel=5, padding=2, pool=_pool_even),
      _Layer(32, kernel=5, padding=2, pool=_average_even),
      _Layer(64, kernel=5, padding=2, pool=_average_even),
    ),
    pixels=4,
    hidden=(64,),
  ),
}


@declared.check_arguments('model.alexnet')
def make(
  *,
  input_shape: tuple[int, int, int],
  num_classes: int,
  seed: int,
  width: float,
  norm: str,
  dropout: float,
  dtype: np.dtype = FLOAT32,
) -> nnx.Module:
  """Returns an AlexNet.

  Its state is parameters alone, and batch statistics if `norm` is 'batch'.

  Args:
    input_shape: Height, width and channels.  224 x 224 pixels get five
      convolutions and dense layers of 4096, 4096 and `num_classes`; 32 x 32
      pixels three convolutions and dense layers of 64 and `num_classes`.
    num_classes: Number of logits.
    seed: Seed of the initial parameters.
    width: Factor of all channels and hidden widths; each is at least 1.
    norm: 'group', 'batch' or 'none', behind each convolution; 'none' is the
      usual one.
    dropout: Probability that training drops an output of a hidden dense layer;
      the published one is 0.5.
    dtype: Dtype that layers compute in.

  Raises:
    ValueError: If an argument is out of range.
  """
  _check(input_shape, num_classes)
  net = _NETS[input_shape[0]]
  return AlexNet(
    convs=tuple(
      layer._replace(channels=sizes.scaled(layer.channels, width))
      for layer in net.convs
    ),
    pixels=net.pixels,
    hidden=tuple(sizes.scaled(size, width) for size in net.hidden),
    features=input_shape[-1],
    num_classes=num_classes,
    norm=norm,
    dropout=dropout,
    dtype=dtype,
    rngs=nnx.Rngs(seed),
  )


class AlexNet(nnx.Module):
  """Convolutions, some of them pooled, and dense layers."""

  def __init__(
    self,
    *,
    convs: tuple[_Layer, ...],
    pixels: int,
    hidden: tuple[int, ...],
    features: int,
    num_classes: int,
    norm: str,
    dropout: float,
    dtype: np.dtype,
    rngs: nnx.Rngs,
  ):
    self.pools = tuple(layer.pool for layer in convs)
    self.convs: nnx.List[norms.Conv] = nnx.List()
    for channels, kernel, padding, strides, _ in convs:
      conv = norms.Conv(
        features,
        channels,
        (kernel, kernel),
        strides=strides,
        padding=padding,
        norm=norm,
        dtype=dtype,
        rngs=rngs,
      )
      self.convs.append(conv)
      features = channels
    features *= pixels**2
    self.hidden: nnx.List[nnx.Linear] = nnx.List()
    for out in hidden:
      self.hidden.append(dense(features, out, rngs, dtype))
      features = out
    self.dropout = nnx.Dropout(dropout)
    self.logits = dense(features, num_classes, rngs, dtype)

  def __call__(
    self, inputs: jax.Array, *, rngs: nnx.Rngs | None = None
  ) -> jax.Array:
    """Returns logits, [B, num_classes].

    Args:
      inputs: Float32 [B, H, W, C], standardised.
      rngs: Random streams, of which `dropout` is used; None in evaluation.
    """
    x = inputs
    for conv, pool in zip(self.convs, self.pools, strict=True):
      x = nnx.relu(conv(x, train=rngs is not None))
      x = x if pool is None else pool(x)
    x = x.reshape(len(x), -1)
    for layer in self.hidden:
      x = nnx.relu(layer(x))
      x = self.dropout(x, deterministic=rngs is None, rngs=rngs)
    return self.logits(x)


def _check(input_shape: tuple[int, int, int], num_classes: int) -> None:
  if tuple(input_shape[:2]) not in [(pixels, pixels) for pixels in _NETS]:
    raise ValueError(
      f'input_shape: expected 224 x 224 or 32 x 32 pixels, got {input_shape}.'
    )
  sizes.check_classes(num_classes)
