"""VGG networks of 11, 16 or 19 weight layers, at any width.

Configurations A, D and E of Simonyan and Zisserman, 'Very Deep Convolutional
Networks for Large-Scale Image Recognition' (ICLR 2015): 3x3 convolutions and
max pooling, no batch normalisation, so a model is its parameters alone.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from configs import declared
from models import gradients, sizes
from models.initializers import FLOAT32, dense, he_normal

_CONVS_PER_BLOCK = {
  11: (1, 1, 2, 2, 2),
  16: (2, 2, 3, 3, 3),
  19: (2, 2, 4, 4, 4),
}
_CHANNELS = (64, 128, 256, 512, 512)
_HIDDEN = {224: 4096, 32: 512}  # Width of the two hidden dense layers.
_SMALL = 4  # Pixels up to which a convolution is one matrix product.


@declared.check_arguments('model.vgg')
def make(
  *,
  input_shape: tuple[int, int, int],
  num_classes: int,
  seed: int,
  depth: int,
  width: float,
  dropout: float,
  dtype: np.dtype = FLOAT32,
) -> nnx.Module:
  """Returns a VGG whose only state is its parameters.

  Args:
    input_shape: Height, width and channels.  224 x 224 pixels get the
      published head, dense layers of 4096, 4096 and `num_classes`.  32 x 32
      pixels, which five poolings reduce to one, get 512, 512 and
      `num_classes`, as is common for CIFAR.
    num_classes: Number of logits.
    seed: Seed of the initial parameters.
    depth: Weight layers: 11, 16 or 19.
    width: Factor of all channels and hidden widths; each is at least 1.
    dropout: Probability that training drops an output of a hidden dense layer;
      the published one is 0.5.
    dtype: Dtype that layers compute in.

  Raises:
    ValueError: If an argument is out of range.
  """
  _check(input_shape, num_classes)
  return VGG(
    channels=tuple(
      (sizes.scaled(channels, width),) * convs
      for channels, convs in zip(
        _CHANNELS, _CONVS_PER_BLOCK[depth], strict=True
      )
    ),
    hidden=sizes.scaled(_HIDDEN[input_shape[0]], width),
    input_shape=input_shape,
    num_classes=num_classes,
    dropout=dropout,
    dtype=dtype,
    rngs=nnx.Rngs(seed),
  )


class VGG(nnx.Module):
  """Blocks of convolutions, each halving the image, and three dense layers."""

  def __init__(
    self,
    *,
    channels: tuple[tuple[int, ...], ...],
    hidden: int,
    input_shape: tuple[int, int, int],
    num_classes: int,
    dropout: float,
    dtype: np.dtype,
    rngs: nnx.Rngs,
  ):
    height, width, features = input_shape
    self.blocks: nnx.List[nnx.List[nnx.Conv]] = nnx.List()
    for block in channels:
      convs: nnx.List[nnx.Conv] = nnx.List()
      for out in block:
        convs.append(_conv(features, out, rngs, dtype))
        features = out
      self.blocks.append(convs)
    shrink = 2 ** len(channels)
    features *= (height // shrink) * (width // shrink)
    self.hidden = nnx.List(
      [
        dense(features, hidden, rngs, dtype),
        dense(hidden, hidden, rngs, dtype),
      ]
    )
    self.dropout = nnx.Dropout(dropout)
    self.logits = dense(hidden, num_classes, rngs, dtype)

  def __call__(
    self, inputs: jax.Array, *, rngs: nnx.Rngs | None = None
  ) -> jax.Array:
    """Returns logits, [B, num_classes].

    Args:
      inputs: Float32 [B, H, W, C], standardised.
      rngs: Random streams, of which `dropout` is used; None in evaluation.
    """
    x = inputs
    for convs in self.blocks:
      for conv in convs:
        x = nnx.relu(_convolve(conv, x))
      x = gradients.max_pool(x, (2, 2), strides=(2, 2))
    x = x.reshape(len(x), -1)
    for layer in self.hidden:
      x = nnx.relu(layer(x))
      x = self.dropout(x, deterministic=rngs is None, rngs=rngs)
    return self.logits(x)


def _convolve(conv: nnx.Conv, x: jax.Array) -> jax.Array:
  """Returns `conv(x)`, rounded differently on images of few pixels."""
  # XLA's kernel gradient is slow on CPUs when the image is hardly larger than
  # the kernel; there all 3x3 patches are gathered for one matrix product.
  _, height, width, _ = x.shape
  if height > _SMALL:
    return conv(x)
  padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
  patches = jnp.concatenate(
    [
      padded[:, i : i + height, j : j + width]
      for i, j in itertools.product(range(3), repeat=2)
    ],
    axis=-1,
  )
  kernel = conv.kernel[...].astype(conv.dtype)
  flat_kernel = kernel.reshape(-1, kernel.shape[-1])
  outputs = jnp.tensordot(patches, flat_kernel, axes=1)
  if conv.bias is None:
    return outputs
  return outputs + conv.bias[...].astype(conv.dtype).reshape(1, 1, 1, -1)


def _conv(features: int, out: int, rngs: nnx.Rngs, dtype: np.dtype) -> nnx.Conv:
  return nnx.Conv(
    features, out, (3, 3), kernel_init=he_normal, dtype=dtype, rngs=rngs
  )


def _check(input_shape: tuple[int, int, int], num_classes: int) -> None:
  pixels = input_shape[:2]
  if pixels not in [(p, p) for p in _HIDDEN]:
    raise ValueError(
      f'input_shape: expected 224 x 224 or 32 x 32 pixels, got {input_shape}.'
    )
  sizes.check_classes(num_classes)
