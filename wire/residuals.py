"""Residuals of workers by parameter, for workers that take their place.

A codec that does not send all of a gradient has a residual for each server's
share.  By parameter it can be taken over with other numbers of workers and of
servers.  It will still be sent, so exactly one worker has to take it over.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from wire.codec import State
from wire.flat import Flat

# Float32 arrays by name, each shaped like the parameter that its name ends
# with.  Of several arrays for each parameter the kind comes first: 'kind:name'.
Residuals = dict[str, np.ndarray]


def by_parameter(flat: Flat, states: Sequence[State]) -> Residuals:
  """Returns a worker's residual, of the states of its codecs by server."""
  residuals = jax.device_get([state.residual for state in states])
  wholes = jax.tree.map(lambda *parts: np.concatenate(parts), *residuals)
  found = {}
  for kind, whole in _paths(wholes):
    start = 0
    for name, leaf in _paths(flat.params):
      part = whole[start : start + leaf.size]
      found[_full_name(kind, name)] = part.reshape(leaf.shape)
      start += leaf.size
  return found


def from_tree(tree: Any) -> Residuals:
  """Returns the arrays of a tree by name."""
  return {name: np.asarray(leaf) for name, leaf in _paths(tree)}


def l1_norms(residuals: Residuals) -> dict[str, float]:
  """Returns the sum of the absolute numbers of each array."""
  return {
    name: float(np.abs(array, dtype=np.float64).sum())
    for name, array in residuals.items()
  }


def take_over(
  flat: Flat,
  states: Sequence[State],
  others: Sequence[Mapping[str, np.ndarray]],
) -> list[State]:
  """Returns states whose residual is the sum of other workers' residuals.

  Args:
    flat: Layout of the servers that there are now.
    states: First states, by server, whose residual is replaced.
    others: Residuals from `by_parameter`; without any the states stay as they
      are.

  Raises:
    ValueError: If they belong to other parameters, or to another wire.
  """
  names = by_parameter(flat, states)
  for other in others:
    if other.keys() != names.keys():
      raise ValueError(
        f'wire: expected residuals of {sorted(names)}, got {sorted(other)}.'
      )
  if not others:
    return list(states)
  ends = np.cumsum([size for size, _ in flat.sizes])[:-1]
  leaves_by_server = [jax.tree.leaves(state.residual) for state in states]
  for number, (kind, _) in enumerate(_paths(states[0].residual)):
    whole = np.concatenate(
      [
        np.sum(
          [other[_full_name(kind, name)] for other in others], axis=0
        ).ravel()
        for name, _ in _paths(flat.params)
      ]
    )
    parts = np.split(whole, ends)
    for leaves, part in zip(leaves_by_server, parts, strict=True):
      leaves[number] = jax.device_put(part)
  return [
    state._replace(
      residual=jax.tree.unflatten(jax.tree.structure(state.residual), leaves)
    )
    for state, leaves in zip(states, leaves_by_server, strict=True)
  ]


def _paths(tree: Any) -> list[tuple[str, Any]]:
  """Returns the leaves of a tree with their names."""
  return [
    (jax.tree_util.keystr(path, simple=True, separator='/'), leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  ]


def _full_name(kind: str, name: str) -> str:
  return f'{kind}:{name}' if kind else name
