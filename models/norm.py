"""Normalisation by name: over groups of channels, over the batch, or none.

Every layer is called as layer(inputs, train=...), so that a model passes
`rngs is not None` on without knowing the kind of its layers.  Only 'batch'
differs in training, and only 'batch' has state that is not a parameter.

Under every scheme, 'batch' normalises with the statistics of the worker's own
micro-batch; they are not synchronised before they are used.  They travel with
the gradient, and the running statistics of the parameter store, which only
evaluation reads, move towards the mean of those in an update.  Under BSP that
is the mean of n batches of one version; asynchronous schemes mix batches of
several versions, as they mix gradients.

Means and variances, and computations with them, are float32 whatever the dtype
of the model.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.initializers import he_normal

_MAX_GROUPS = 32
_EPSILON = 1e-5  # Added to the variance, in every kind.


def make(kind: str, features: int, rngs: nnx.Rngs) -> nnx.Module:
  """Returns a layer that is called as layer(inputs [B, ..., C], train=...).

  'group': Wu and He, 'Group Normalization' (2018), for each example alone.  It
    has as many groups as divide the channels, 32 at most: up to 32 channels
    have a group each, and an image of one pixel is then reduced to the bias.
  'batch': Ioffe and Szegedy, 'Batch Normalization' (2015).  Training writes
    the mean and the (biased) variance of this very batch to the layer's
    `nnx.BatchStat`s; averaging over batches is left to the caller.  Evaluation
    reads them; they start as 0 and 1.
  'none': Inputs pass unchanged.

  Args:
    kind: 'group', 'batch' or 'none'.
    features: Channels, the last axis of the inputs.
    rngs: Unused: scales start as 1, biases as 0.

  Raises:
    ValueError: If there is no such kind.
  """
  if kind not in _KINDS:
    raise ValueError(
      f"norm: expected 'group', 'batch' or 'none', got {kind!r}."
    )
  return _KINDS[kind](features, rngs)


class Conv(nnx.Module):
  """A convolution and its normalisation, before any nonlinearity.

  The convolution has a bias only if the normalisation has none.

  Attributes:
    features: Number of channels of the outputs.
  """

  def __init__(
    self,
    features: int,
    out: int,
    kernel: tuple[int, int],
    *,
    norm: str,
    dtype: np.dtype,
    rngs: nnx.Rngs,
    strides: int = 1,
    padding: str | int = 'SAME',
    kernel_init: Callable[..., jax.Array] = he_normal,
  ):
    self.features, self.dtype = out, dtype
    self.norm = make(norm, out, rngs)
    self.conv = nnx.Conv(
      features,
      out,
      kernel,
      strides=strides,
      padding=padding,
      use_bias=norm == 'none',
      kernel_init=kernel_init,
      dtype=dtype,
      rngs=rngs,
    )

  def __call__(self, inputs: jax.Array, *, train: bool) -> jax.Array:
    """Returns [B, H, W, features]."""
    outputs: jax.Array = self.norm(self.conv(inputs), train=train)
    return outputs.astype(self.dtype)


class _Group(nnx.GroupNorm):
  def __init__(self, features: int, rngs: nnx.Rngs):
    groups = max(g for g in range(1, _MAX_GROUPS + 1) if features % g == 0)
    super().__init__(
      features, groups, epsilon=_EPSILON, dtype=jnp.float32, rngs=rngs
    )

  # Its layers are called alike, with other arguments than Flax's.
  def __call__(  # type: ignore[override]
    self, inputs: jax.Array, *, train: bool
  ) -> jax.Array:
    del train
    outputs: jax.Array = super().__call__(inputs)
    return outputs


class _Batch(nnx.BatchNorm):
  def __init__(self, features: int, rngs: nnx.Rngs):
    # The fast variance is a difference of large numbers.
    super().__init__(
      features,
      momentum=0.0,
      epsilon=_EPSILON,
      use_fast_variance=False,
      dtype=jnp.float32,
      rngs=rngs,
    )

  def __call__(  # type: ignore[override]
    self, inputs: jax.Array, *, train: bool
  ) -> jax.Array:
    outputs: jax.Array = super().__call__(inputs, use_running_average=not train)
    return outputs


class _Identity(nnx.Module):
  def __init__(self, features: int, rngs: nnx.Rngs):
    del features, rngs

  def __call__(self, inputs: jax.Array, *, train: bool) -> jax.Array:
    del train
    return inputs


_KINDS = {'group': _Group, 'batch': _Batch, 'none': _Identity}
