"""Pooling, embedding and cross-entropy whose gradients need no scatter.

JAX's derivatives of these add numbers at computed positions:
`select_and_scatter` for max pooling, `scatter` for rows of an embedding and for
the logit of a class.  On GPUs such sums depend on the order of threads; with
`--xla_gpu_deterministic_ops` XLA turns them into sequential loops with one trip
for each position.  The functions here return the same values as
`nnx.max_pool`, `nnx.Embed` and
`optax.softmax_cross_entropy_with_integer_labels`, and their gradients are
comparisons, paddings, sums and one matrix product.

They are differentiated backwards; forward differentiation raises a TypeError.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_Sizes = tuple[int, ...]
_Pads = tuple[tuple[int, int], ...]


def max_pool(
  inputs: jax.Array,
  window: Sequence[int],
  strides: Sequence[int] | None = None,
  padding: str | Sequence[tuple[int, int]] = 'VALID',
) -> jax.Array:
  """Returns the maximum of each window.

  The gradient of a window goes to its first maximum in row-major order, which
  is the one that XLA's `select_and_scatter` chooses, also among NaNs.  Where
  windows overlap, their gradients are added in row-major order of the windows,
  in float32.

  Args:
    inputs: Float [..., spatial axes, C]; `window` has one size for each of the
      spatial axes.
    window: Size of a window in each spatial axis.
    strides: Distance between windows in each spatial axis; 1 if None.
    padding: 'VALID', 'SAME', or the numbers of -inf to add before and after
      each spatial axis.

  Returns:
    Float [..., numbers of windows, C], of the type of `inputs`.

  Raises:
    ValueError: If the numbers of axes do not agree.
  """
  strides = tuple(strides or (1,) * len(window))
  batch_axes = inputs.ndim - len(window) - 1
  if batch_axes < 0 or len(strides) != len(window):
    raise ValueError(
      f'window: expected as many sizes as there are strides and spatial axes, '
      f'got {tuple(window)} for strides {strides} and inputs {inputs.shape}.'
    )
  batch = (1,) * batch_axes
  sizes, steps = (*batch, *window, 1), (*batch, *strides, 1)
  if isinstance(padding, str):
    pads = jax.lax.padtype_to_pads(inputs.shape, sizes, steps, padding)
  else:
    pads = [(0, 0)] * batch_axes + [*padding, (0, 0)]
  return _max_pool(inputs, sizes, steps, tuple(map(tuple, pads)))


def embed(table: jax.Array, tokens: jax.Array, dtype: np.dtype) -> jax.Array:
  """Returns the row of each token.

  The gradient of the table is the product of the one-hot tokens and the
  cotangent, summed in float32 whatever the precision of other products.  Its
  operations and memory are those of one of the three products of an output
  layer with as many classes as the table has rows.  It is split as examples are
  split over devices.

  Args:
    table: Float32 [N, C].
    tokens: Int [...], below N; negative ones count from the end.  A token that
      is out of range gets a row of NaNs.
    dtype: Dtype of the result.

  Returns:
    [..., C].
  """
  return _embed(table, tokens, np.dtype(dtype))


def softmax_cross_entropy(logits: jax.Array, classes: jax.Array) -> jax.Array:
  """Returns the cross-entropy of each class, in nats.

  Args:
    logits: Float [..., N].
    classes: Int [...], below N; negative ones count from the end.  The loss of
      a class that is out of range is NaN.

  Returns:
    Float [...].
  """
  return _cross_entropy(logits, classes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _max_pool(
  inputs: jax.Array, sizes: _Sizes, strides: _Sizes, pads: _Pads
) -> jax.Array:
  pooled: jax.Array = jax.lax.reduce_window(
    inputs, -jnp.inf, jax.lax.max, sizes, strides, pads
  )
  return pooled


def _max_pool_forward(
  inputs: jax.Array, sizes: _Sizes, strides: _Sizes, pads: _Pads
) -> tuple[jax.Array, jax.Array]:
  return _max_pool(inputs, sizes, strides, pads), inputs


def _max_pool_backward(
  sizes: _Sizes,
  strides: _Sizes,
  pads: _Pads,
  inputs: jax.Array,
  cotangent: jax.Array,
) -> tuple[jax.Array]:
  given = inputs.dtype
  # In halves XLA is up to 20 times slower on CPUs; sums are rounded once.
  dtype = jnp.promote_types(inputs.dtype, jnp.float32)
  inputs, cotangent = inputs.astype(dtype), cotangent.astype(dtype)
  chosen = _chosen(inputs, sizes, strides, pads, cotangent.shape)
  zero = np.zeros((), dtype)
  total: Any = None
  # The first of the windows with an input has it at the last offset.
  for number, offset in reversed([*enumerate(np.ndindex(sizes))]):
    part = jnp.where(chosen == number, cotangent, zero)
    placed = jax.lax.pad(
      part,
      zero,
      [
        (first - low, length - (first - low) - (count - 1) * step - 1, step - 1)
        for first, (low, _), length, count, step in zip(
          offset, pads, inputs.shape, part.shape, strides, strict=True
        )
      ],
    )
    total = placed if total is None else total + placed
  return (total.astype(given),)


def _chosen(
  inputs: jax.Array,
  sizes: _Sizes,
  strides: _Sizes,
  pads: _Pads,
  shape: _Sizes,
) -> jax.Array:
  """Returns the offset of each window's first maximum, by its number."""
  offsets = _at_offsets(inputs, sizes, strides, pads, shape)
  most = next(offsets)
  dtype = np.min_scalar_type(np.prod(sizes))
  chosen = jnp.zeros(shape, dtype)
  for number, values in enumerate(offsets, start=1):
    stays = most >= values  # False with NaNs, as in XLA's rule.
    most = jnp.where(stays, most, values)
    chosen = jnp.where(stays, chosen, dtype.type(number))
  return chosen


def _at_offsets(
  inputs: jax.Array,
  sizes: _Sizes,
  strides: _Sizes,
  pads: _Pads,
  shape: _Sizes,
) -> Iterator[jax.Array]:
  """Yields the inputs at each offset in all windows, in row-major order."""
  lowest = np.array(-np.inf, inputs.dtype)
  padded = jax.lax.pad(inputs, lowest, [(*ends, 0) for ends in pads])
  for offset in np.ndindex(sizes):
    limits = [
      first + (count - 1) * step + 1
      for first, count, step in zip(offset, shape, strides, strict=True)
    ]
    yield jax.lax.slice(padded, offset, limits, strides)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _embed(table: jax.Array, tokens: jax.Array, dtype: np.dtype) -> jax.Array:
  return jnp.take(table.astype(dtype), tokens, axis=0)


def _embed_forward(
  table: jax.Array, tokens: jax.Array, dtype: np.dtype
) -> tuple[jax.Array, Any]:
  return _embed(table, tokens, dtype), (table, tokens)


def _embed_backward(
  dtype: np.dtype, residual: Any, cotangent: jax.Array
) -> tuple[jax.Array, None]:
  table, tokens = residual
  axes = tuple(range(tokens.ndim))
  gradient = jnp.tensordot(
    _is_class(tokens, len(table)).astype(cotangent.dtype),
    cotangent,
    axes=(axes, axes),
    precision='highest',
    preferred_element_type=jnp.float32,
  )
  return gradient.astype(table.dtype), None


@jax.custom_vjp
def _cross_entropy(logits: jax.Array, classes: jax.Array) -> jax.Array:
  return _cross_entropy_forward(logits, classes)[0]


def _cross_entropy_forward(
  logits: jax.Array, classes: jax.Array
) -> tuple[jax.Array, Any]:
  normalizer, of_normalizer = jax.vjp(
    functools.partial(jax.nn.logsumexp, axis=-1), logits
  )
  found = jnp.take_along_axis(logits, classes[..., None], axis=-1)
  return normalizer - found.squeeze(-1), (of_normalizer, classes)


def _cross_entropy_backward(
  residual: Any, cotangent: jax.Array
) -> tuple[jax.Array, None]:
  of_normalizer, classes = residual
  (logits,) = of_normalizer(cotangent)
  is_class = _is_class(classes, logits.shape[-1])
  # Subtracting from all and a selection after it round as a scatter does: a sum
  # with a selected term becomes a fused multiply-add.
  subtracted = logits - cotangent[..., None]
  return jnp.where(is_class, subtracted, logits), None


def _is_class(classes: jax.Array, count: int) -> jax.Array:
  """Returns which of `count` classes each one is, bool [..., count]."""
  positive = jnp.where(classes < 0, classes + count, classes)
  shape = (*classes.shape, count)
  numbers = jax.lax.broadcasted_iota(classes.dtype, shape, classes.ndim)
  return positive[..., None] == numbers


_max_pool.defvjp(_max_pool_forward, _max_pool_backward)
_embed.defvjp(_embed_forward, _embed_backward)
_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)
