"""What workers keep of gradients, by parameter: for who goes on in their place.

A codec that does not send all of a gradient keeps the rest, for each server's
share.  By parameter it can be taken over with other numbers of workers and of
servers: it is what others will send, so it is to be there once, with anybody.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from wire.codec import State
from wire.flat import Flat

# Float32 arrays, each shaped like the parameter that its name ends with; if
# there are several of it, what it is comes before, and a colon.
Kept = dict[str, np.ndarray]


def named(flat: Flat, states: Sequence[State]) -> Kept:
  """Returns what a worker keeps, of what it remembers for each server."""
  kept = jax.device_get([state.kept for state in states])
  wholes = jax.tree.map(lambda *parts: np.concatenate(parts), *kept)
  found = {}
  for what, whole in _paths(wholes):
    start = 0
    for name, leaf in _paths(flat.params):
      part = whole[start : start + leaf.size]
      found[_full(what, name)] = part.reshape(leaf.shape)
      start += leaf.size
  return found


def of_tree(tree: Any) -> Kept:
  """Returns the arrays of a tree by name."""
  return {name: np.asarray(leaf) for name, leaf in _paths(tree)}


def norms(kept: Kept) -> dict[str, float]:
  """Returns the sum of the absolute numbers of each array."""
  return {
    name: float(np.abs(array, dtype=np.float64).sum())
    for name, array in kept.items()
  }


def given(
  flat: Flat,
  states: Sequence[State],
  others: Sequence[Mapping[str, np.ndarray]],
) -> list[State]:
  """Returns states of who takes over what others kept, their sum.

  Args:
    flat: Of the servers of today.
    states: Of who keeps nothing so far.
    others: From `named`; may be none.

  Raises:
    ValueError: If they are of other parameters, or of another wire.
  """
  names = named(flat, states)
  for other in others:
    if other.keys() != names.keys():
      raise ValueError(
        f'wire: expected that workers kept {sorted(names)}, got '
        f'{sorted(other)}.'
      )
  if not others:
    return list(states)
  ends = np.cumsum([size for size, _ in flat.sizes])[:-1]
  taken = [jax.tree.leaves(state.kept) for state in states]
  for number, (what, _) in enumerate(_paths(states[0].kept)):
    whole = np.concatenate(
      [
        np.sum([other[_full(what, name)] for other in others], axis=0).ravel()
        for name, _ in _paths(flat.params)
      ]
    )
    for leaves, part in zip(taken, np.split(whole, ends), strict=True):
      leaves[number] = jax.device_put(part)
  return [
    state._replace(
      kept=jax.tree.unflatten(jax.tree.structure(state.kept), leaves)
    )
    for state, leaves in zip(states, taken, strict=True)
  ]


def _paths(tree: Any) -> list[tuple[str, Any]]:
  """Returns the leaves of a tree with their names."""
  return [
    (jax.tree_util.keystr(path, simple=True, separator='/'), leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  ]


def _full(what: str, name: str) -> str:
  return f'{what}:{name}' if what else name
