"""Forests of a given number of trees of the same weight, as rounds need them.

Such forests are slower than the best: a link that can carry a few trees and a
half carries a few, and one that is too thin for a single tree is not used.
"""

import collections

from topology.clusters.cluster import Cluster
from topology.forests import trees
from topology.packing import approximate, growing
from topology.packing.arrays import Arrays

_AIMS = (1.0, 0.9, 0.8, 0.6)  # Of the rate without units.
_PASSES = 3  # How often each tree is grown anew ...
_MOST = 256  # ... as long as there are no more trees than this in all.


def equal_units(
  cluster: Cluster, forest: trees.Forest, units: int
) -> trees.Forest:
  """Returns a forest of trees of one unit each, or of some units.

  Trees grown hop by hop (`packing.growing`), each again when the others are
  known, aiming at different rates; and the weights of `forest` rounded to
  units: the fastest of them.  A heuristic, deterministic.

  Args:
    cluster: That of the forest.
    forest: Tells the collective, the rate to come near to, bound and proof.
    units: The number of units; in an allgather or reduce-scatter a multiple of
      the number of workers, so many for each.

  Raises:
    ValueError: If the units are less than 1 or no multiple of the workers.
  """
  one_way = forest.collective != 'allreduce'
  workers = len(cluster.workers) if one_way else 1
  if units < 1 or units % workers:
    multiple = f' and a multiple of {workers}' if one_way else ''
    raise ValueError(f'units: expected at least 1{multiple}, got {units}.')
  if not forest.trees:
    return forest
  if forest.collective == 'reduce_scatter':
    back = equal_units(cluster.reversed(), trees.backwards(forest), units)
    return trees.backwards(back)
  arrays = Arrays(cluster, paired=not one_way and cluster.symmetric)
  rate = float(forest.rate_Bps or 0) / 1e9
  roots = arrays.workers * (units // workers) if one_way else None
  attempts = [_rounded(forest, units // workers)]
  for aim in _AIMS:
    grown = _grown(arrays, units, aim * rate, roots)
    counts = collections.Counter(grown).items()
    attempts.append(
      [approximate.column(cluster, arrays, *counted) for counted in counts]
    )
  fitted = [trees.fitted(cluster, columns, forest) for columns in attempts]
  return max(fitted, key=lambda found: found.rate_Bps or 0)


def _grown(
  arrays: Arrays, units: int, GBps: float, roots: list[int] | None
) -> list[growing.Grown]:
  """Trees of one unit, each grown anew now and then beside all others."""
  grower = growing.Grower(arrays, GBps / units)

  def new(place: int) -> growing.Grown:
    return grower.both() if roots is None else grower.down(roots[place])

  grown = [new(place) for place in range(units)]
  table = approximate.loads(arrays, grown)
  best, least = list(grown), (table.sum(1) / arrays.capacity).max()
  for place in range(min(units * _PASSES, _MOST)):
    place %= units
    grower.remove(grown[place])
    grown[place] = new(place)
    table[:, place] = approximate.loads(arrays, grown[place : place + 1])[:, 0]
    fullest = (table.sum(1) / arrays.capacity).max()
    if fullest < least:
      best, least = list(grown), fullest
  return best


def _rounded(forest: trees.Forest, units: int) -> list[trees.Column]:
  """Trees with so many units, of each root unless it is an allreduce.

  Shares are rounded by largest remainder.
  """
  own: dict[str, list[trees.Tree]] = {}
  for tree in forest.trees:
    root = '' if forest.collective == 'allreduce' else tree.root
    own.setdefault(root, []).append(tree)
  columns = []
  for group in own.values():
    total = sum(tree.share for tree in group)
    exact = [tree.share / total * units for tree in group]
    whole = [int(part) for part in exact]
    order = sorted(range(len(group)), key=lambda k: whole[k] - exact[k])
    for k in order[: units - sum(whole)]:
      whole[k] += 1
    columns += [
      trees.Column(tree.root, n, tree.up, tree.down)
      for tree, n in zip(group, whole, strict=True)
      if n
    ]
  return columns
