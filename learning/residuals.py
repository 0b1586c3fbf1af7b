"""Residuals of codecs, by parameter.

A codec that does not send all of a gradient keeps the rest, its residual, for
the next one.  Named by parameter, residuals fit runs with other numbers of
workers and servers: a worker that replaces others inherits the sum of their
residuals.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

# Float32 arrays, each of the shape of the parameter whose name its key ends
# with.
Residuals = dict[str, np.ndarray]


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
  """Returns the leaves of a pytree with their paths, joined by slashes."""
  return [
    (jax.tree_util.keystr(path, simple=True, separator='/'), leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  ]


def l1_norms(residuals: Mapping[str, Any]) -> dict[str, float]:
  """Returns the sum of absolute values of each residual, float64, by name."""
  return {
    name: float(np.abs(array, dtype=np.float64).sum())
    for name, array in residuals.items()
  }
