"""Link prices as certificates of an upper bound on the rate of an allreduce.

An allreduce is a set of columns, each a root, a tree up to it and a tree down
from it, of hops from worker to worker through switches.  For any prices of
links, the columns together cost at most the value of all links, capacity times
price.  So their rate is at most that value over the cost of the cheapest
column.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from topology.algorithms import cheapest_trees, stopping, weighted
from topology.clusters.cluster import Cluster, Ends


class Prices(NamedTuple):
  """Certificate of a bound on an allreduce, which `prove_rate` computes.

  Attributes:
    links: (src, dst, price) of the links with a positive price, in the order of
      the cluster's links.  Only the ratios of prices count.
  """

  links: tuple[tuple[str, str, Fraction], ...]


def prove_rate(
  cluster: Cluster, prices: Prices, stop: stopping.Stop = stopping.never
) -> Fraction:
  """Returns a rate, in GB/s, that no allreduce can exceed, by `prices`.

  If all links are alike in both directions, the mean price of both directions
  proves as much or more, and the cheapest column is twice a minimum spanning
  tree: O(m log m) for m links.  Otherwise it is the cheapest tree up and the
  cheapest tree down with the same root, for the cheapest of all roots: O(n^2)
  for n workers, after O((n + s)^2) for each of s switches.

  Args:
    stop: Function that returns True to raise `Stopped`, called regularly.

  Raises:
    ValueError: If the prices prove no bound: one is negative, of no link, or of
      a link that has a price already, or a column is free.
  """
  return prove_rate_of_units(cluster, _units(cluster, prices, stop), stop)


def prove_rate_of_units(
  cluster: Cluster, units: Sequence[int], stop: stopping.Stop = stopping.never
) -> Fraction:
  """Returns the bound of `prove_rate`, by integer prices of all links.

  Args:
    units: Price of each link, in the order of the cluster's links.
    stop: Function that returns True to raise `Stopped`, called regularly.
  """
  graph = cluster.graph
  links = stopping.iterate(graph.links, stop)
  priced = [
    (src, dst, price) for (src, dst, _), price in zip(links, units, strict=True)
  ]
  if cluster.symmetric:
    each = stopping.iterate(priced, stop)
    price_of = {(src, dst): price for src, dst, price in each}
    # Both directions together: twice their mean, for a tree up and down.
    each = stopping.iterate(priced, stop)
    both = [(a, b, price + price_of[b, a]) for a, b, price in each if a < b]
    cost = cheapest_trees.spanning_tree(graph.worker, both)
    stopping.check(stop)
  else:
    hops = cheapest_trees.hops(graph.worker, priced, stop)
    up = cheapest_trees.arborescences(hops.T, stop)
    down = cheapest_trees.arborescences(hops, stop)
    cost = min(map(sum, zip(up, down, strict=True)))
  if not cost:
    raise ValueError('Expected a price for every column, got one that is free.')
  capacities = (capacity for _, _, capacity in graph.links)
  worth = sum(p * c for p, c in zip(units, capacities, strict=True))
  return Fraction(worth, cost * graph.scale)


def _units(
  cluster: Cluster, prices: Prices, stop: stopping.Stop
) -> Sequence[int]:
  """Returns the price of each link, as integers of the same ratios."""
  price_of: dict[Ends, Fraction] = {}
  links = stopping.iterate(cluster.links, stop)
  ends = {(src, dst) for src, dst, _ in links}
  for src, dst, price in stopping.iterate(prices.links, stop):
    if (src, dst) not in ends:
      raise ValueError(f'Expected prices of links, got {src} to {dst}.')
    if (src, dst) in price_of:
      raise ValueError(f'Expected one price a link, got {src} to {dst} twice.')
    if not isinstance(price, Fraction | int) or price < 0:
      raise ValueError(
        f'{src} to {dst}: expected a fraction of at least 0, got {price!r}.'
      )
    price_of[src, dst] = price
  if not any(price_of.values()):
    raise ValueError('Expected a positive price, got none.')
  scale = weighted.scale(*price_of.values())
  whole = {
    ends: weighted.multiple(price, scale.numerator) // scale.denominator
    for ends, price in stopping.iterate(price_of.items(), stop)
  }
  links = stopping.iterate(cluster.links, stop)
  return [whole.get((src, dst), 0) for src, dst, _ in links]
