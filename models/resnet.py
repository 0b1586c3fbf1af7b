"""Residual networks of 20, 32, 50 or 110 weight layers, at any width.

He et al., 'Deep Residual Learning for Image Recognition' (CVPR 2016).  Depths
20, 32 and 110 are the networks of its section 4.2 for CIFAR: 6n + 2 layers in
three stages of two-layer blocks whose shortcuts have no parameters (option A).
Depth 50 is the bottleneck network of its table 1 for ImageNet, which work on
distributed training names ResNet-50 on CIFAR too.  (6n + 2 is 50 for n = 8,
but that network is not offered.)  As is now common, its blocks halve the image
in the 3x3 rather than in the first 1x1 convolution.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from configs import declared
from models import gradients, sizes
from models import norm as norms
from models.initializers import FLOAT32, dense, he_normal

# Channels and number of blocks of each stage.
_STAGES = {
  20: ((16, 3), (32, 3), (64, 3)),
  32: ((16, 5), (32, 5), (64, 5)),
  50: ((64, 3), (128, 4), (256, 6), (512, 3)),
  110: ((16, 18), (32, 18), (64, 18)),
}
_BOTTLENECK = 50
_EXPANSION = 4  # Outputs of a bottleneck block per inner channel.


@declared.check_arguments('model.resnet')
def make(
  *,
  input_shape: tuple[int, int, int],
  num_classes: int,
  seed: int,
  depth: int,
  width: float,
  norm: str,
  dtype: np.dtype = FLOAT32,
) -> nnx.Module:
  """Returns a residual network.

  Its state is parameters alone, and batch statistics if `norm` is 'batch'.
  Without normalisation the last kernel of each of the N blocks starts
  sqrt(N) times smaller, which keeps the variance of the sum of all blocks
  bounded: it would double with every block.

  Args:
    input_shape: Height, width and channels.  32 x 32 pixels meet a 3x3
      convolution; 224 x 224 pixels, for depth 50 only, the published 7x7 one
      and a pooling, which leave 56 x 56.
    num_classes: Number of logits.
    seed: Seed of the initial parameters.
    depth: Weight layers: 20, 32, 50 or 110.
    width: Factor of all channels; each is at least 1.
    norm: 'group', 'batch' or 'none'; the published one is 'batch'.
    dtype: Dtype that layers compute in.

  Raises:
    ValueError: If an argument is out of range.
  """
  _check(input_shape, num_classes, depth)
  return ResNet(
    stages=tuple((sizes.scaled(size, width), n) for size, n in _STAGES[depth]),
    bottleneck=depth == _BOTTLENECK,
    input_shape=input_shape,
    num_classes=num_classes,
    norm=norm,
    dtype=dtype,
    rngs=nnx.Rngs(seed),
  )


class ResNet(nnx.Module):
  """A stem, stages of residual blocks, and one dense layer."""

  def __init__(
    self,
    *,
    stages: tuple[tuple[int, int], ...],
    bottleneck: bool,
    input_shape: tuple[int, int, int],
    num_classes: int,
    norm: str,
    dtype: np.dtype,
    rngs: nnx.Rngs,
  ):
    pixels, _, features = input_shape
    self.large = pixels > 32
    kernel, strides = ((7, 7), 2) if self.large else ((3, 3), 1)
    self.stem = norms.Conv(
      features,
      stages[0][0],
      kernel,
      strides=strides,
      padding=kernel[0] // 2,
      norm=norm,
      dtype=dtype,
      rngs=rngs,
    )
    common: dict[str, Any] = {
      'norm': norm,
      'dtype': dtype,
      'gain': 1 / math.sqrt(sum(n for _, n in stages)),
      'rngs': rngs,
    }
    block = _bottleneck if bottleneck else _basic
    self.blocks: nnx.List[_Block] = nnx.List()
    features = self.stem.features
    for stage, (channels, blocks) in enumerate(stages):
      for i in range(blocks):
        strides = 2 if stage > 0 and i == 0 else 1
        self.blocks.append(block(features, channels, strides, **common))
        features = self.blocks[-1].features
    self.logits = dense(features, num_classes, rngs, dtype)

  def __call__(
    self, inputs: jax.Array, *, rngs: nnx.Rngs | None = None
  ) -> jax.Array:
    """Returns logits, [B, num_classes].

    Args:
      inputs: Float32 [B, H, W, C], standardised.
      rngs: Any in training, None in evaluation; nothing is drawn from it.
    """
    train = rngs is not None
    x = nnx.relu(self.stem(inputs, train=train))
    if self.large:
      x = gradients.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
    for block in self.blocks:
      x = block(x, train=train)
    return self.logits(x.mean(axis=(1, 2)))


class _Block(nnx.Module):
  """Convolutions whose result is added to a shortcut of their input."""

  def __init__(self, shortcut: nnx.Module, convs: list[norms.Conv]):
    self.shortcut = shortcut
    self.convs = nnx.List(convs)
    self.features = convs[-1].features

  def __call__(self, inputs: jax.Array, *, train: bool) -> jax.Array:
    *hidden, last = self.convs
    x = inputs
    for conv in hidden:
      x = nnx.relu(conv(x, train=train))
    x = last(x, train=train) + self.shortcut(inputs, train=train)
    return nnx.relu(x)


class _Subsample(nnx.Module):
  """Option A: every `strides`-th pixel, and zeros as the new channels."""

  def __init__(self, strides: int, new: int):
    self.strides = strides
    self.new = new

  def __call__(self, inputs: jax.Array, *, train: bool) -> jax.Array:
    del train
    x = inputs[:, :: self.strides, :: self.strides]
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, self.new)))


def _basic(
  features: int, channels: int, strides: int, *, gain: float, **common: Any
) -> _Block:
  first = norms.Conv(
    features, channels, (3, 3), strides=strides, padding=1, **common
  )
  last = _last_conv(channels, channels, (3, 3), gain, **common)
  return _Block(_Subsample(strides, channels - features), [first, last])


def _bottleneck(
  features: int, channels: int, strides: int, *, gain: float, **common: Any
) -> _Block:
  out = channels * _EXPANSION
  shortcut: nnx.Module
  if strides == 1 and features == out:
    shortcut = _Subsample(1, 0)
  else:
    shortcut = norms.Conv(features, out, (1, 1), strides=strides, **common)
  convs = [
    norms.Conv(features, channels, (1, 1), **common),
    norms.Conv(
      channels, channels, (3, 3), strides=strides, padding=1, **common
    ),
    _last_conv(channels, out, (1, 1), gain, **common),
  ]
  return _Block(shortcut, convs)


def _last_conv(
  features: int,
  out: int,
  kernel: tuple[int, int],
  gain: float,
  *,
  norm: str,
  **common: Any,
) -> norms.Conv:
  def init(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return he_normal(key, shape, dtype) * (gain if norm == 'none' else 1)

  return norms.Conv(
    features, out, kernel, norm=norm, kernel_init=init, **common
  )


def _check(
  input_shape: tuple[int, int, int], num_classes: int, depth: int
) -> None:
  accepted = (32, 224) if depth == _BOTTLENECK else (32,)
  if tuple(input_shape[:2]) not in [(pixels, pixels) for pixels in accepted]:
    expected = ' or '.join(f'{pixels} x {pixels}' for pixels in accepted)
    raise ValueError(
      f'input_shape: expected {expected} pixels, got {input_shape}.'
    )
  sizes.check_classes(num_classes)
