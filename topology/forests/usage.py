"""Utilisation of links, and the links that limit a forest."""

import math
from fractions import Fraction

from topology.bounds.cuts import Cut
from topology.clusters.cluster import Cluster, Ends
from topology.forests import compact
from topology.forests.trees import Forest


def fractions_used(cluster: Cluster, forest: Forest) -> dict[Ends, Fraction]:
  """Returns load / capacity of each link, in the cluster's order.

  The loads are those at the rate of the forest; links without traffic have 0.
  """
  load_Bps = forest.loads_Bps
  return {
    ends: load_Bps.get(ends, Fraction(0)) / capacity_Bps
    for ends, capacity_Bps in cluster.capacity_Bps.items()
  }


def rates_between(forest: Forest) -> dict[Ends, Fraction]:
  """Returns the bytes per second that each worker sends to each other worker.

  Keys are pairs of ids (sender, receiver); pairs without traffic are left out.
  """
  scale = math.lcm(*(tree.weight_Bps.denominator for tree in forest.trees))
  carried = compact.sum_over_hops(
    forest, (int(tree.weight_Bps * scale) for tree in forest.trees)
  )
  rates: dict[Ends, int] = {}
  for hop, units in carried.items():
    ends = hop[0], hop[-1]
    rates[ends] = rates.get(ends, 0) + units
  return {ends: Fraction(units, scale) for ends, units in rates.items()}


def bottleneck(cluster: Cluster, forest: Forest) -> tuple[Ends, ...]:
  """Returns the links that limit the forest, in the cluster's order.

  They are the links of the cut if a cut proves the bound, else the full links.
  """
  used = fractions_used(cluster, forest)
  if isinstance(forest.certificate, Cut):
    cut = set(forest.certificate.links)
    if forest.collective == 'reduce_scatter':  # A cut of the reversed cluster.
      cut = {(dst, src) for src, dst in cut}
    return tuple(ends for ends in used if ends in cut)
  return tuple(ends for ends, part in used.items() if part >= 1)
