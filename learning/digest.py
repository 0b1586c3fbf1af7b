"""Digest of a learner's state, for comparing replicas."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import xxhash

_STEP = 1 << 26


def digest(state: Any, step: Callable[[], None] = lambda: None) -> str:
  """Returns the hash (XXH3, 128 bits) of a state, as hexadecimal text.

  The hash covers each leaf's path in the tree, type, shape and bytes, so that
  states which differ in any bit have different digests.  All processes compute
  the same digest of the same state.

  Args:
    state: Pytree of arrays and numbers, as `Learner.state` returns it.
    step: Called after each array, and after each 64 MiB of one.
  """
  found = xxhash.xxh3_128()
  leaves, _ = jax.tree.flatten_with_path(state)
  numbers = jax.device_get([leaf for _, leaf in leaves])
  for (path, _), number in zip(leaves, numbers, strict=True):
    array = np.ascontiguousarray(number)
    key = jax.tree_util.keystr(path)
    found.update(f'{key} {array.dtype} {np.shape(number)};'.encode())
    data = array.reshape(-1).view(np.uint8).data
    for start in range(0, len(data), _STEP):
      found.update(data[start : start + _STEP])
      step()
  return found.hexdigest()
