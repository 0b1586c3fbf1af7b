"""Normalisation by name: over groups of channels, over the batch, or none.

Every layer here is called as layer(inputs, train=...), so that a model passes
`rngs is not None` down and needs not know which kind it was built with.  Only
'batch' behaves differently in training, and only 'batch' has state that is not
a parameter.

What 'batch' means here: under every scheme a worker normalises with the
statistics of its own micro-batch, which nobody synchronises before they are
used.  They travel with the gradient, and the server's running statistics, which
evaluation alone reads, move towards the mean of those in an update.  Under BSP
that is the mean of n batches of one version; asynchronous schemes mix batches
of versions that differ by as much as their gradients are stale.

Whatever a model computes in, means and variances are float32, and so is what is
done with them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.initializers import he_normal

_MAX_GROUPS = 32
_EPSILON = 1e-5  # Of all kinds, added to the variance.


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

  The convolution has a bias only where no normalisation brings one.

  Attributes:
    features: Channels of the outputs.
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
    """Draws the kernel; `features` enter and `out` leave, in `dtype`."""
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
    return self.norm(self.conv(inputs), train=train).astype(self.dtype)


class _Group(nnx.GroupNorm):
  def __init__(self, features: int, rngs: nnx.Rngs):
    groups = max(g for g in range(1, _MAX_GROUPS + 1) if features % g == 0)
    super().__init__(
      features, groups, epsilon=_EPSILON, dtype=jnp.float32, rngs=rngs
    )

  def __call__(self, inputs: jax.Array, *, train: bool) -> jax.Array:
    del train
    return super().__call__(inputs)


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

  def __call__(self, inputs: jax.Array, *, train: bool) -> jax.Array:
    return super().__call__(inputs, use_running_average=not train)


class _Identity(nnx.Module):
  def __init__(self, features: int, rngs: nnx.Rngs):
    del features, rngs

  def __call__(self, inputs: jax.Array, *, train: bool) -> jax.Array:
    del train
    return inputs


_KINDS = {'group': _Group, 'batch': _Batch, 'none': _Identity}
