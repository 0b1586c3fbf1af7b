"""Whether replicas are the same: one short word for all that one holds."""

from typing import Any

import jax
import numpy as np
import xxhash


def digest(state: Any) -> str:
  """Returns a word that tells a state from any other, to the last bit.

  It is the hash (XXH3, 128 bits) of each leaf's place in the tree, type, shape
  and bytes, and the same in every process.

  Args:
    state: Pytree of arrays and numbers, as `Learner.state` returns it.
  """
  found = xxhash.xxh3_128()
  leaves, _ = jax.tree.flatten_with_path(state)
  numbers = jax.device_get([leaf for _, leaf in leaves])
  for (path, _), number in zip(leaves, numbers, strict=True):
    array = np.ascontiguousarray(number)
    key = jax.tree_util.keystr(path)
    found.update(f'{key} {array.dtype} {np.shape(number)};'.encode())
    found.update(array.reshape(-1).view(np.uint8))
  return found.hexdigest()
