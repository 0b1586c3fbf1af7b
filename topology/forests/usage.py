"""Computes the utilisation of links, and the links that limit a forest."""

from fractions import Fraction

from topology.bounds.cuts import Cut
from topology.clusters.cluster import Cluster, Ends
from topology.forests import trees
from topology.forests.trees import Forest


def fractions_used(cluster: Cluster, forest: Forest) -> dict[Ends, Fraction]:
  """Returns, per link of the cluster in its order, load / capacity."""
  load_Bps = forest.loads_Bps
  return {
    ends: load_Bps.get(ends, Fraction(0)) / capacity_Bps
    for ends, capacity_Bps in cluster.capacity_Bps.items()
  }


def rates_between(forest: Forest) -> dict[Ends, Fraction]:
  """Returns the rate of each pair of workers, bytes per second.

  By their ids, whatever links are between them; those alone that do send.
  """
  return trees.loads(
    (tree.weight_Bps, [(hop[0], hop[-1]) for hop in (*tree.up, *tree.down)])
    for tree in forest.trees
  )


def bottleneck(cluster: Cluster, forest: Forest) -> tuple[Ends, ...]:
  """Returns the links that limit the forest, in the cluster's order.

  Those of the cut if a cut proves its bound, else the links that are full.
  """
  used = fractions_used(cluster, forest)
  if isinstance(forest.certificate, Cut):
    cut = set(forest.certificate.links)
    if forest.collective == 'reduce_scatter':  # A cut of the reversed cluster.
      cut = {(dst, src) for src, dst in cut}
    return tuple(ends for ends in used if ends in cut)
  return tuple(ends for ends, part in used.items() if part >= 1)
