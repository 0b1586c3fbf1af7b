"""Inception-v3, at any width.

Szegedy et al., 'Rethinking the Inception Architecture for Computer Vision'
(CVPR 2016), with the layers of the released network, from which the paper's
table 1 differs in details.  The auxiliary classifier, a second output that is
used in training only, is left out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from configs import declared
from models import gradients, sizes
from models import norm as norms
from models.initializers import FLOAT32, dense

_SMALLEST = 75  # Pixels that leave one at the end.

# Function from the number of a layer's input channels to the layer, a module
# with the number of its output channels as `features`.
_Make = Callable[[int], Any]


@declared.check_arguments('model.inception_v3')
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
  """Returns an Inception-v3.

  Its state is parameters alone, and batch statistics if `norm` is 'batch'.

  Args:
    input_shape: Height, width and channels.  The published one is 299 x 299
      pixels; height and width are at least 75.
    num_classes: Number of logits.
    seed: Seed of the initial parameters.
    width: Factor of all channels; each is at least 1.
    norm: 'group', 'batch' or 'none'; the published one is 'batch'.
    dropout: Probability that training drops an input of the dense layer; 0.2
      in the released network.
    dtype: Dtype that layers compute in.

  Raises:
    ValueError: If an argument is out of range.
  """
  _check(input_shape, num_classes)
  return InceptionV3(
    features=input_shape[-1],
    num_classes=num_classes,
    width=width,
    norm=norm,
    dropout=dropout,
    dtype=dtype,
    rngs=nnx.Rngs(seed),
  )


class InceptionV3(nnx.Module):
  """A stem of convolutions, eleven mixed layers, and one dense layer."""

  def __init__(
    self,
    *,
    features: int,
    num_classes: int,
    width: float,
    norm: str,
    dropout: float,
    dtype: np.dtype,
    rngs: nnx.Rngs,
  ):
    def conv(
      out: int,
      rows: int,
      columns: int | None = None,
      *,
      strides: int = 1,
      padding: str = 'SAME',
    ) -> Callable[[int], _Conv]:
      return lambda features: _Conv(
        features,
        max(1, round(out * width)),
        (rows, columns or rows),
        strides=strides,
        padding=padding,
        norm=norm,
        dtype=dtype,
        rngs=rngs,
      )

    self.layers = _Chain(features, [*_stem(conv), *_mixed(conv)])
    self.dropout = nnx.Dropout(dropout)
    self.logits = dense(self.layers.features, num_classes, rngs, dtype)

  def __call__(
    self, inputs: jax.Array, *, rngs: nnx.Rngs | None = None
  ) -> jax.Array:
    """Returns logits, [B, num_classes].

    Args:
      inputs: Float32 [B, H, W, C], standardised.
      rngs: Random streams, of which `dropout` is used; None in evaluation.
    """
    x = self.layers(inputs, train=rngs is not None).mean(axis=(1, 2))
    x = self.dropout(x, deterministic=rngs is None, rngs=rngs)
    return self.logits(x)


class _Conv(norms.Conv):
  """A convolution, its normalisation, and a ReLU."""

  def __call__(self, inputs: jax.Array, *, train: bool) -> jax.Array:
    return nnx.relu(super().__call__(inputs, train=train))


class _Pool(nnx.Module):
  def __init__(self, features: int):
    self.features = features


class _Halve(_Pool):
  def __call__(self, inputs: jax.Array, *, train: bool) -> jax.Array:
    del train
    return gradients.max_pool(inputs, (3, 3), strides=(2, 2))


class _Smooth(_Pool):
  def __call__(self, inputs: jax.Array, *, train: bool) -> jax.Array:
    del train
    outputs: jax.Array = nnx.avg_pool(
      inputs, (3, 3), padding='SAME', count_include_pad=False
    )
    return outputs


class _Chain(nnx.Module):
  """Layers, one after the other."""

  def __init__(self, features: int, makes: Sequence[_Make]):
    self.layers: nnx.List[Any] = nnx.List()
    for make_layer in makes:
      layer = make_layer(features)
      self.layers.append(layer)
      features = layer.features
    self.features = features

  def __call__(self, inputs: jax.Array, *, train: bool) -> jax.Array:
    x = inputs
    for layer in self.layers:
      x = layer(x, train=train)
    return x


class _Fork(nnx.Module):
  """Chains side by side on the same inputs; their channels are joined."""

  def __init__(self, features: int, branches: Sequence[Sequence[_Make]]):
    self.branches = nnx.List(_Chain(features, makes) for makes in branches)
    self.features = sum(branch.features for branch in self.branches)

  def __call__(self, inputs: jax.Array, *, train: bool) -> jax.Array:
    outputs = [branch(inputs, train=train) for branch in self.branches]
    return jnp.concatenate(outputs, axis=-1)


def _fork(*branches: Sequence[_Make]) -> _Make:
  return lambda features: _Fork(features, branches)


def _stem(conv: Callable[..., _Make]) -> list[_Make]:
  """299 x 299 pixels become 35 x 35."""
  return [
    conv(32, 3, strides=2, padding='VALID'),
    conv(32, 3, padding='VALID'),
    conv(64, 3),
    _Halve,
    conv(80, 1),
    conv(192, 3, padding='VALID'),
    _Halve,
  ]


def _mixed(conv: Callable[..., _Make]) -> list[_Make]:
  """35 x 35 pixels become 17 x 17, and these 8 x 8."""
  return [
    *(_square(conv, pooled) for pooled in (32, 64, 64)),
    _fork(
      [conv(384, 3, strides=2, padding='VALID')],
      [
        conv(64, 1),
        conv(96, 3),
        conv(96, 3, strides=2, padding='VALID'),
      ],
      [_Halve],
    ),
    *(_factored(conv, inner) for inner in (128, 160, 160, 192)),
    _fork(
      [conv(192, 1), conv(320, 3, strides=2, padding='VALID')],
      [
        conv(192, 1),
        conv(192, 1, 7),
        conv(192, 7, 1),
        conv(192, 3, strides=2, padding='VALID'),
      ],
      [_Halve],
    ),
    *(_expanded(conv) for _ in range(2)),
  ]


def _square(conv: Callable[..., _Make], pooled: int) -> _Make:
  """The paper's figure 5, though with one 5x5 convolution."""
  return _fork(
    [conv(64, 1)],
    [conv(48, 1), conv(64, 5)],
    [conv(64, 1), conv(96, 3), conv(96, 3)],
    [_Smooth, conv(pooled, 1)],
  )


def _factored(conv: Callable[..., _Make], inner: int) -> _Make:
  """The paper's figure 6: 7x7 convolutions as pairs of 1x7 and 7x1."""
  return _fork(
    [conv(192, 1)],
    [conv(inner, 1), conv(inner, 1, 7), conv(192, 7, 1)],
    [
      conv(inner, 1),
      conv(inner, 7, 1),
      conv(inner, 1, 7),
      conv(inner, 7, 1),
      conv(192, 1, 7),
    ],
    [_Smooth, conv(192, 1)],
  )


def _expanded(conv: Callable[..., _Make]) -> _Make:
  """The paper's figure 7: 1x3 and 3x1 convolutions side by side."""
  both = _fork([conv(384, 1, 3)], [conv(384, 3, 1)])
  return _fork(
    [conv(320, 1)],
    [conv(384, 1), both],
    [conv(448, 1), conv(384, 3), both],
    [_Smooth, conv(192, 1)],
  )


def _check(input_shape: tuple[int, int, int], num_classes: int) -> None:
  if len(input_shape) != 3 or min(input_shape[:2]) < _SMALLEST:
    raise ValueError(
      f'input_shape: expected at least {_SMALLEST} x {_SMALLEST} pixels, got '
      f'{input_shape}.'
    )
  sizes.check_classes(num_classes)
