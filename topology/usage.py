"""How full the links of a cluster are, and which of them hold it back."""

from fractions import Fraction

from topology import bounds, trees, verify
from topology import cluster as clusters

_GB = 10**9


def fractions_used(
  cluster: clusters.Cluster, forest: trees.Forest
) -> dict[trees.Ends, Fraction]:
  """Returns, per link of the cluster in its order, load / capacity."""
  load = verify.loads_Bps(forest)
  return {
    (src, dst): load.get((src, dst), Fraction(0)) / (GBps * _GB)
    for src, dst, GBps in cluster.links
  }


def bottleneck(
  cluster: clusters.Cluster, forest: trees.Forest
) -> tuple[trees.Ends, ...]:
  """Returns the links that hold the forest back, in the cluster's order.

  Those of the cut if a cut proves its bound, else the links that are full.
  """
  used = fractions_used(cluster, forest)
  if isinstance(forest.certificate, bounds.Cut):
    cut = set(forest.certificate.links)
    if forest.collective == 'reduce_scatter':  # A cut of the reversed cluster.
      cut = {(dst, src) for src, dst in cut}
    return tuple(ends for ends in used if ends in cut)
  return tuple(ends for ends, part in used.items() if part >= 1)


def depth(tree: trees.Tree) -> int:
  """Returns the most hops, one after the other, up to the root or down."""
  steps = {tree.root: 0}
  for hop in tree.down:
    steps[hop[-1]] = steps[hop[0]] + 1
  most = max(steps.values())
  steps = {tree.root: 0}
  for hop in reversed(tree.up):
    steps[hop[0]] = steps[hop[-1]] + 1
  return max(most, *steps.values())
