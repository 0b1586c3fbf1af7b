"""Reference layers in float64 with NumPy, after the papers, for tests.

Each function takes a layer of the model, for its variables, and the inputs.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np


def f64(variable: Any) -> np.ndarray:
  """Returns the values of a variable."""
  return np.asarray(variable[...], np.float64)


def conv(
  layer: Any, x: np.ndarray, strides: int = 1, padding: int | None = None
) -> np.ndarray:
  """Returns the result of a norm.Conv in evaluation, with explicit padding."""
  kernel = f64(layer.conv.kernel)
  size = kernel.shape[0]
  padding = size // 2 if padding is None else padding
  x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
  windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (1, 2))
  windows = windows[:, ::strides, ::strides]
  x = np.einsum('bhwcij,ijco->bhwo', windows, kernel, optimize=True)
  if layer.conv.bias is not None:
    return x + f64(layer.conv.bias)
  return norm(layer.norm, x)


def norm(layer: Any, x: np.ndarray) -> np.ndarray:
  """Returns batch normalisation in evaluation, or group normalisation."""
  if 'mean' in vars(layer):
    mean, var = f64(layer.mean), f64(layer.var)
  else:
    groups = x.reshape(*x.shape[:3], layer.num_groups, -1)
    mean, var = (
      np.repeat(moment(groups, axis=(1, 2, 4)), groups.shape[-1], axis=1)
      for moment in (np.mean, np.var)
    )
    mean, var = mean[:, None, None], var[:, None, None]
  x = (x - mean) / np.sqrt(var + 1e-5)
  return x * f64(layer.scale) + f64(layer.bias)


def dense(layer: Any, x: np.ndarray) -> np.ndarray:
  """Returns the result of a linear layer with bias."""
  return x @ f64(layer.kernel) + f64(layer.bias)


def relu(x: np.ndarray) -> np.ndarray:
  """Returns the positive part."""
  return np.maximum(x, 0)


def pool(reduce: Callable[..., np.ndarray], x: np.ndarray) -> np.ndarray:
  """Returns reduced 3x3 windows with stride 2; the last may cross the edge."""
  size = math.ceil((x.shape[1] - 3) / 2) + 1
  pooled = np.empty((len(x), size, size, x.shape[-1]))
  for i, j in itertools.product(range(size), repeat=2):
    window = x[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
    pooled[:, i, j] = reduce(window, axis=(1, 2))
  return pooled


def rms_norm(layer: Any, x: np.ndarray) -> np.ndarray:
  """Returns each position divided by the root mean square of its units."""
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * f64(layer.scale)


def attention(
  layer: Any, x: np.ndarray, heads: int, documents: np.ndarray
) -> np.ndarray:
  """Returns causal self-attention with rotary positions, by head and by query.

  Rotations are products with complex numbers of modulus 1.

  Args:
    layer: Layer of the model.
    x: Float64 [B, T, width].
    heads: Number of heads.
    documents: Int [B, T], numbers of the positions' documents.
  """
  normal = rms_norm(layer.attention_norm, x)
  parts = np.split(normal @ f64(layer.queries_keys_values.kernel), 3, -1)
  mixed = np.zeros_like(x)
  size = x.shape[-1] // heads
  speeds = 1 / 10_000 ** (2 * np.arange(size // 2) / size)
  turns = np.exp(1j * np.arange(x.shape[1])[:, None] * speeds)
  for example, head in itertools.product(range(len(x)), range(heads)):
    units = slice(head * size, (head + 1) * size)
    query, key, value = (part[example][:, units] for part in parts)
    query, key = (
      (each[:, : size // 2] + 1j * each[:, size // 2 :]) * turns
      for each in (query, key)
    )
    for t in range(len(query)):
      scores = (key[: t + 1].conj() @ query[t]).real / math.sqrt(size)
      weight = np.exp(scores) * (
        documents[example, : t + 1] == documents[example, t]
      )
      mixed[example, t, units] = weight @ value[: t + 1] / weight.sum()
  return mixed @ f64(layer.mix.kernel)


def swiglu(layer: Any, x: np.ndarray) -> np.ndarray:
  """Returns a dense branch whose gate is x / (1 + e^-x)."""
  both = rms_norm(layer.dense_norm, x) @ f64(layer.gate_and_up.kernel)
  gate, up = np.split(both, 2, -1)
  return (gate / (1 + np.exp(-gate)) * up) @ f64(layer.down.kernel)
