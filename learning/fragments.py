"""Fragments: parts of the model that synchronise in turn, with local steps.

With H local steps and F fragments, an iteration has H / F local steps and ends
with the sum of one fragment, so that each fragment is summed every H steps.  A
worker keeps parameters of its own from one iteration to the next.  It sends the
fragment's *displacement*, the parameters of the current version minus its own,
`overlap_steps` before the end of the iteration, and goes on with these steps
while the sum is under way.  The update applies the outer optimizer to that
fragment alone.  The next iteration begins by moving the worker's own fragment
to the new version:

  own <- blend * own + (1 - blend) * version

After Douillard et al., 'Streaming DiLoCo with overlapping communication',
arXiv 2501.18512.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from configs.checks import require
from configs.sections import has_fragments, iteration_steps
from learning.layout import split_evenly

_FIELD = 'config.route.fragments'


@dataclasses.dataclass(frozen=True)
class Fragments:
  """Division of the model into fragments.

  Attributes:
    leaves: Indices of the leaves of each fragment; empty without a model.
    numbers: Number of parameters of each fragment.
    ready: Share of an iteration's computing after which its fragment is sent.
  """

  leaves: tuple[tuple[int, ...], ...]
  numbers: tuple[int, ...]
  ready: float

  @property
  def count(self) -> int:
    """Number of fragments."""
    return len(self.numbers)

  def at(self, version: int) -> int:
    """Returns the fragment that the update of a version changes."""
    return version % self.count

  def mask(self, tree: Any, fragment: int) -> Any:
    """Returns the part of an update to apply, as `Payload.arrived` has it.

    Args:
      tree: Pytree of the parameters.
      fragment: Number of the fragment.

    Returns:
      Pytree of bool, a scalar for each leaf; () for the whole model.
    """
    leaves, structure = jax.tree.flatten(tree)
    if self.count == 1 or not leaves:
      return ()
    chosen = {*self.leaves[fragment]}
    flags = [jnp.asarray(leaf in chosen) for leaf in range(len(leaves))]
    return jax.tree.unflatten(structure, flags)


def divide(
  config: ConfigDict, sizes: Sequence[int], order: Sequence[int]
) -> Fragments | None:
  """Returns the fragments of a model; None if the config has none.

  Args:
    sizes: Number of parameters of each leaf.
    order: Indices of the leaves in the order in which fragments take them.

  Raises:
    ValueError: If there are more fragments than leaves; names the field.
  """
  if not has_fragments(config):
    return None
  count = config.route.fragments
  most = f'at most {len(sizes)}, the leaves of the model'
  require(count <= len(sizes), _FIELD, most, count)
  ends = split([sizes[leaf] for leaf in order], count)
  leaves = tuple(
    tuple(order[start:end]) for start, end in itertools.pairwise([0, *ends])
  )
  numbers = tuple(sum(sizes[leaf] for leaf in each) for each in leaves)
  return Fragments(leaves, numbers, _ready(config))


def divide_evenly(config: ConfigDict, numbers: int) -> Fragments | None:
  """Returns fragments of equal size, without leaves, of `numbers` parameters.

  Raises:
    ValueError: If there are more fragments than numbers; names the field.
  """
  if not has_fragments(config):
    return None
  count = config.route.fragments
  most = f'at most {numbers}, the numbers of the model'
  require(count <= numbers, _FIELD, most, count)
  parts = tuple(split_evenly(numbers, count))
  return Fragments(((),) * count, parts, _ready(config))


def split(sizes: Sequence[int], count: int) -> list[int]:
  """Returns the ends of consecutive parts, the largest as small as possible.

  O(n log S) for n sizes of sum S, by bisection over the size of a part.

  Args:
    sizes: Sizes of the elements, at least 0.
    count: Number of parts, at most the number of elements; none is empty.

  Example:
    >>> split([5, 1, 1, 4, 3], 3)
    [2, 4, 5]
  """
  low, high = max(sizes), max(sum(sizes), 1)
  while low < high:
    limit = (low + high) // 2
    if len(_ends(sizes, count, limit)) <= count:
      high = limit
    else:
      low = limit + 1
  return _ends(sizes, count, low)


def _ends(sizes: Sequence[int], count: int, limit: int) -> list[int]:
  """Returns the ends of parts of at most `limit`; at least `count` of them."""
  ends: list[int] = []
  total = 0
  for position, each in enumerate(sizes):
    # Each part that is left takes an element at least.
    is_short = len(sizes) - position == count - len(ends) - 1
    if position and (total + each > limit or is_short):
      ends.append(position)
      total = 0
    total += each
  return [*ends, len(sizes)]


def _ready(config: ConfigDict) -> float:
  overlap_steps = int(config.route.overlap_steps)
  return 1 - overlap_steps / iteration_steps(config)
