"""Difference between replicas of a learner, and the bound of rounding.

All replicas apply bit-identical sums, so they drift apart only by the rounding
of the update itself, which depends on the processor: XLA fuses multiplications
and additions where the processor can, and the order of its reductions, such as
a gradient's norm, depends on the vector width.
"""

import math
from typing import Any

import jax
import numpy as np

BOUND = 1e-3
"""Largest relative difference that counts as rounding.

An update errs by a few units in the last place of what it adds and of the
parameter that it adds to: at most about 2^-22, or 2.4e-7, of their norms.
Momentum keeps an error for 1/(1 - beta) updates.  As sums are the same on all
replicas, nothing feeds errors back, and they add up as a random walk: 10,000
updates between two checks give 2.4e-7 x 100 x 10 = 2.4e-4.  After 1,000
updates, 2.1e-7 at most was seen (AVX beside AVX2, November 2026).  So a
larger difference is no rounding.  A smaller one may be damage as well; its
replica receives the reference state in both cases, so that mistaking one for
the other costs nothing.
"""

_BLOCK = 1 << 16  # Numbers that are compared at a time, to stay in the cache.


def relative_difference(state: Any, reference: Any) -> float:
  """Returns the relative difference of a learner's state from a reference.

  Args:
    state: Mapping of pytrees, as `Learner.state` returns it.
    reference: State of the reference replica, in the same form.

  Returns:
    The norm of the difference over the norm of the reference, the largest over
    the mapping's items (parameters, statistics, optimizer state).  Norms are
    Euclidean, over all floating-point numbers of an item.  The result is
    infinite if trees, shapes, dtypes or numbers that are not floating-point
    differ, or if the difference is not finite.
  """
  if state.keys() != reference.keys():
    return math.inf
  return max(
    (_item_difference(state[name], reference[name]) for name in reference),
    default=0.0,
  )


def _item_difference(state: Any, reference: Any) -> float:
  structure: object = jax.tree.structure(state)
  if structure != jax.tree.structure(reference):
    return math.inf
  distance = norm = 0.0  # Squared.
  for leaf, reference_leaf in zip(
    jax.tree.leaves(state), jax.tree.leaves(reference), strict=True
  ):
    own, its = np.asarray(leaf), np.asarray(reference_leaf)
    if (own.dtype, own.shape) != (its.dtype, its.shape):
      return math.inf
    if own.dtype.kind != 'f' and own.dtype.name != 'bfloat16':
      if not np.array_equal(own, its):
        return math.inf
      continue
    own, its = own.reshape(-1), its.reshape(-1)
    for start in range(0, own.size, _BLOCK):
      part = slice(start, start + _BLOCK)
      with np.errstate(over='ignore', invalid='ignore'):
        exact = its[part].astype(np.float64)
        error = own[part].astype(np.float64) - exact
        # Not BLAS, whose threads would compete with those of the gradients.
        distance += float(np.einsum('i,i', error, error))
        norm += float(np.einsum('i,i', exact, exact))
  if distance == 0:
    return 0.0
  ratio = math.sqrt(distance / norm) if norm else math.inf
  return ratio if math.isfinite(ratio) else math.inf
