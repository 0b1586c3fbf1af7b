"""A causal transformer that predicts the next token.

The decoder in its current form: rotary positions (Su et al., 'RoFormer', 2021),
RMSNorm before each branch (Zhang and Sennrich, 'Root Mean Square Layer
Normalization', 2019), dense branches with SwiGLU (Shazeer, 'GLU Variants
Improve Transformer', 2020), no biases, and one table for embeddings and logits
(Press and Wolf, 'Using the Output Embedding to Improve Language Models', 2017).

Several documents may share a row: no position attends to another document.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from configs import declared
from models import gradients, sizes
from models.initializers import FLOAT32, linear

_ROTARY_BASE = 10_000.0  # Of the wavelengths of rotary positions.
_EMBEDDING_STD = 0.02  # As in GPT-2: initial logits of norms of 1 are small.
_MULTIPLE = 8  # Of the hidden units: matrix units prefer such widths.
# Tokens [B, T], or a pair of them and of the numbers of their documents.
Inputs = jax.Array | tuple[jax.Array, jax.Array]


class Size(NamedTuple):
  """Size of a transformer.

  Attributes:
    layers: Pairs of an attention and a dense branch.
    width: Units per token.
    heads: Heads of each attention.
  """

  layers: int
  width: int
  heads: int


# By name.  '10M' and '30M' have about as many parameters with a vocabulary of
# bytes; '124M' with that of GPT-2, whose smallest model has its size.
SIZES = {
  'tiny': Size(2, 64, 2),
  '10M': Size(6, 384, 6),
  '30M': Size(6, 640, 10),
  '124M': Size(12, 768, 12),
}


@declared.check_arguments('model.transformer')
def make(
  *,
  input_shape: tuple[int],
  num_classes: int,
  seed: int,
  size: str,
  layers: int = 0,
  width: int = 0,
  heads: int = 0,
  dropout: float,
  dtype: np.dtype = FLOAT32,
) -> nnx.Module:
  """Returns a transformer whose only state is its parameters.

  Args:
    input_shape: The number of tokens of a row.  No parameter depends on it.
    num_classes: Size of the vocabulary, whose tokens count from 0.
    seed: Seed of the initial parameters.
    size: Name of one of `SIZES`.
    layers: Number of layers; 0 for that of `size`.
    width: Units per token, a multiple of twice the heads; 0 for that of
      `size`.
    heads: Heads of each attention; 0 for that of `size`.
    dropout: Probability that training drops a unit of the embedding or of what
      a branch adds.
    dtype: Dtype that layers compute in.

  Raises:
    ValueError: If an argument is out of range.
  """
  if len(input_shape) != 1 or input_shape[0] < 1:
    raise ValueError(
      f'input_shape: expected a number of tokens, got {input_shape}.'
    )
  sizes.check_classes(num_classes)
  return Transformer(
    vocabulary=num_classes,
    size=_find_size(size, layers, width, heads),
    dropout=dropout,
    dtype=dtype,
    rngs=nnx.Rngs(seed),
  )


class Transformer(nnx.Module):
  """An embedding, layers of two residual branches each, and a norm."""

  def __init__(
    self,
    *,
    vocabulary: int,
    size: Size,
    dropout: float,
    dtype: np.dtype,
    rngs: nnx.Rngs,
  ):
    init = nnx.initializers.normal(_EMBEDDING_STD)
    self.tokens = nnx.Embed(
      vocabulary, size.width, embedding_init=init, dtype=dtype, rngs=rngs
    )
    self.dropout = nnx.Dropout(dropout)
    self.layers = nnx.List(
      _Layer(size, rngs, dtype) for _ in range(size.layers)
    )
    self.norm = _norm(size.width, rngs)
    self.dtype = dtype

  def __call__(
    self, inputs: Inputs, *, rngs: nnx.Rngs | None = None
  ) -> jax.Array:
    """Returns logits of each next token, [B, T, vocabulary].

    Those at t depend on the tokens of the same document up to and including t.

    Args:
      inputs: Int [B, T], tokens of one document per row; or a pair of tokens
        and of the number of each one's document, int [B, T] both.
      rngs: Random streams, of which `dropout` is used; None in evaluation.
    """
    tokens, documents = inputs if isinstance(inputs, tuple) else (inputs, None)
    drop = functools.partial(
      self.dropout, deterministic=rngs is None, rngs=rngs
    )
    mask = None
    if documents is not None:
      mask = documents[:, None, :, None] == documents[:, None, None, :]
    table = self.tokens.embedding[...]
    x = drop(gradients.embed(table, tokens, self.dtype))
    for layer in self.layers:
      x = layer(x, mask, drop)
    x = self.norm(x).astype(self.dtype)
    return jnp.einsum('btc,vc->btv', x, table.astype(self.dtype))


class _Layer(nnx.Module):
  def __init__(self, size: Size, rngs: nnx.Rngs, dtype: np.dtype):
    width, hidden = size.width, hidden_units(size.width)
    # The variance of a sum of 2 L branches is then that of one.
    gain = 1 / math.sqrt(2 * size.layers)
    self.heads = size.heads
    self.attention_norm = _norm(width, rngs)
    self.queries_keys_values = linear(width, 3 * width, rngs, dtype)
    self.mix = linear(width, width, rngs, dtype, gain=gain)
    self.dense_norm = _norm(width, rngs)
    self.gate_and_up = linear(width, 2 * hidden, rngs, dtype)
    self.down = linear(hidden, width, rngs, dtype, gain=gain)

  def __call__(
    self,
    x: jax.Array,
    mask: jax.Array | None,
    drop: Callable[[jax.Array], jax.Array],
  ) -> jax.Array:
    x = x + drop(self._attend(self.attention_norm(x), mask))
    gate, up = jnp.split(self.gate_and_up(self.dense_norm(x)), 2, axis=-1)
    return x + drop(self.down(nnx.silu(gate) * up))

  def _attend(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
    given = self.queries_keys_values(x)
    if given.dtype == jnp.float16:
      # XLA has no products of float16 summed in float32 on CPUs.
      given = given.astype(jnp.float32)
    query, key, value = (
      part.reshape(*x.shape[:-1], self.heads, -1)
      for part in jnp.split(given, 3, axis=-1)
    )
    # Scores and their softmax are float32.
    mixed = jax.nn.dot_product_attention(
      rotate(query), rotate(key), value, mask=mask, is_causal=True
    )
    return self.mix(mixed.reshape(x.shape))


def rotate(x: jax.Array) -> jax.Array:
  """Returns queries or keys turned by angles in proportion to their positions.

  Units d and d + D/2 are the coordinates of a point, which position t turns by
  t / 10000^(2 d / D).  A product of a query and a key then depends on the
  distance of their positions alone.  Angles are float32.

  Args:
    x: Float [B, T, heads, D], D even.
  """
  length, half = x.shape[1], x.shape[-1] // 2
  speeds = _ROTARY_BASE ** (-np.arange(half) / half)
  angles = np.arange(length)[:, None] * speeds
  cos, sin = (
    jnp.asarray(of(angles)[None, :, None], np.float32)
    for of in (np.cos, np.sin)
  )
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  turned = [first * cos - second * sin, second * cos + first * sin]
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def hidden_units(width: int) -> int:
  """Returns the hidden units of a dense branch: 8/3 of the width, rounded up.

  Three matrices then have as many numbers as the two of a branch of 4 times the
  width without a gate.
  """
  return -(-8 * width // (3 * _MULTIPLE)) * _MULTIPLE


def _norm(width: int, rngs: nnx.Rngs) -> nnx.RMSNorm:
  return nnx.RMSNorm(width, epsilon=1e-6, dtype=jnp.float32, rngs=rngs)


def _find_size(name: str, layers: int, width: int, heads: int) -> Size:
  own = {'layers': layers, 'width': width, 'heads': heads}
  size = SIZES[name]._replace(**{k: v for k, v in own.items() if v})
  if size.width % (2 * size.heads):
    raise ValueError(
      f'width: expected a multiple of twice the heads, {2 * size.heads}, got '
      f'{size.width}.'
    )
  return size
