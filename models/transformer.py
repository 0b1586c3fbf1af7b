"""A small causal transformer that predicts the next character.

The decoder of Vaswani et al., 'Attention Is All You Need' (2017), in the form
of Radford et al., 'Language Models are Unsupervised Multitask Learners'
(2019): layer normalisation before each branch, learned positions and GELU; but
the logits have a kernel of their own rather than the embedding's.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models import gradients, sizes
from models.initializers import FLOAT32, dense

_EXPANSION = 4  # Hidden units of the dense branch per unit of width.
_normal = nnx.initializers.normal(1.0)


def make(
  *,
  input_shape: tuple[int],
  num_classes: int,
  seed: int,
  layers: int,
  width: int,
  heads: int,
  dropout: float,
  dtype: np.dtype = FLOAT32,
) -> nnx.Module:
  """Returns a transformer whose only state is its parameters.

  Args:
    input_shape: The number of tokens of an input, the longest that it reads.
    num_classes: Size of the vocabulary, whose tokens count from 0.
    seed: Seed of the initial parameters.
    layers: Pairs of an attention and a dense branch.
    width: Units per token, a multiple of `heads`.
    heads: Of each attention.
    dropout: Probability that training drops a unit of the embedding or of what
      a branch adds.
    dtype: Dtype that layers compute in.

  Raises:
    ValueError: If an argument is out of range.
  """
  _check(input_shape, num_classes, dropout)
  _check_sizes(layers, width, heads)
  return Transformer(
    length=input_shape[0],
    vocabulary=num_classes,
    layers=layers,
    width=width,
    heads=heads,
    dropout=dropout,
    dtype=dtype,
    rngs=nnx.Rngs(seed),
  )


class Transformer(nnx.Module):
  """An embedding, layers of two residual branches each, and one dense layer."""

  def __init__(
    self,
    *,
    length: int,
    vocabulary: int,
    layers: int,
    width: int,
    heads: int,
    dropout: float,
    dtype: np.dtype,
    rngs: nnx.Rngs,
  ):
    """Draws the parameters."""
    self.tokens = nnx.Embed(
      vocabulary, width, embedding_init=_normal, dtype=dtype, rngs=rngs
    )
    self.positions = nnx.Param(_normal(rngs.params(), (length, width)))
    self.dropout = nnx.Dropout(dropout)
    self.layers = nnx.List(
      _Layer(width, heads, rngs, dtype) for _ in range(layers)
    )
    self.norm = nnx.LayerNorm(width, dtype=jnp.float32, rngs=rngs)
    self.logits = dense(width, vocabulary, rngs, dtype)
    self.dtype = dtype

  def __call__(
    self, inputs: jax.Array, *, rngs: nnx.Rngs | None = None
  ) -> jax.Array:
    """Returns logits of each next token, [B, T, vocabulary].

    Those at t depend on the tokens up to and including t.

    Args:
      inputs: Int [B, T], tokens; T is at most that of `input_shape`.
      rngs: Random streams, of which `dropout` is used; None in evaluation.
    """
    drop = functools.partial(
      self.dropout, deterministic=rngs is None, rngs=rngs
    )
    positions = self.positions[None, : inputs.shape[1]].astype(self.dtype)
    table = self.tokens.embedding[...]
    x = drop(gradients.embed(table, inputs, self.dtype) + positions)
    for layer in self.layers:
      x = layer(x, drop)
    return self.logits(self.norm(x))


class _Layer(nnx.Module):
  def __init__(self, width: int, heads: int, rngs: nnx.Rngs, dtype: np.dtype):
    self.heads = heads
    self.attention_norm = nnx.LayerNorm(width, dtype=jnp.float32, rngs=rngs)
    self.queries_keys_values = dense(width, 3 * width, rngs, dtype)
    self.mix = dense(width, width, rngs, dtype)
    self.dense_norm = nnx.LayerNorm(width, dtype=jnp.float32, rngs=rngs)
    self.up = dense(width, _EXPANSION * width, rngs, dtype)
    self.down = dense(_EXPANSION * width, width, rngs, dtype)

  def __call__(
    self, x: jax.Array, drop: Callable[[jax.Array], jax.Array]
  ) -> jax.Array:
    x = x + drop(self._attend(self.attention_norm(x)))
    hidden = nnx.gelu(self.up(self.dense_norm(x)))
    return x + drop(self.down(hidden))

  def _attend(self, x: jax.Array) -> jax.Array:
    given = self.queries_keys_values(x)
    if given.dtype == jnp.float16:
      # XLA has no products of float16 summed in float32 on CPUs.
      given = given.astype(jnp.float32)
    query, key, value = (
      part.reshape(*x.shape[:-1], self.heads, -1)
      for part in jnp.split(given, 3, axis=-1)
    )
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    return self.mix(mixed.reshape(x.shape))


def _check(input_shape: tuple[int], num_classes: int, dropout: float) -> None:
  if len(input_shape) != 1 or input_shape[0] < 1:
    raise ValueError(
      f'input_shape: expected a number of tokens, got {input_shape}.'
    )
  sizes.check(num_classes=num_classes, dropout=dropout)


def _check_sizes(layers: int, width: int, heads: int) -> None:
  if layers < 1:
    raise ValueError(f'layers: expected at least 1, got {layers}.')
  if heads < 1:
    raise ValueError(f'heads: expected at least 1, got {heads}.')
  if width < 1 or width % heads:
    raise ValueError(
      f'width: expected a multiple of heads, {heads}, got {width}.'
    )
