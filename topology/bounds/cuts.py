"""Cuts, which prove that no allgather is faster, for anyone to check.

In an allgather at x GB per second and worker, each set of nodes that lacks some
worker must send the data of its k workers out: the links that leave it carry at
least k x.  Where switches have more capacity out than in, a weighted set of
cuts, with prices of the switches, proves more than each cut alone.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from topology.algorithms import stopping, weighted
from topology.clusters.cluster import Cluster, Ends


class Cut(NamedTuple):
  """Proof that an allgather cannot be faster, which `prove_time` recomputes.

  Attributes:
    nodes: Ids of the bottleneck, a set of nodes that does not hold all workers,
      in the order of the cluster.
    links: The links (src, dst) that leave it.
    parts: Pairs of a weight and a set of nodes such as `nodes`.  One cut is a
      proof by itself unless a switch has more capacity out than in.
    switch_prices: Pairs of a switch and a price of at least 0, by which links
      out of the switch become cheaper and links into it dearer; none of them if
      one cut is a proof.
  """

  nodes: tuple[str, ...]
  links: tuple[Ends, ...]
  parts: tuple[tuple[Fraction, tuple[str, ...]], ...]
  switch_prices: tuple[tuple[str, Fraction], ...]


def prove_time(
  cluster: Cluster, cut: Cut, stop: stopping.Stop = stopping.never
) -> Fraction:
  """Returns the seconds per GB that are necessary, as `cut` proves.

  The price of a link is the sum of the weights of the cuts that it leaves, less
  the price of the switch that it leaves, plus that of the switch that it
  enters.  Along a hop from worker to worker the prices of switches cancel, so
  that a tree costs at least the weights of the cuts that hold its root, while
  all links together are worth price times capacity.  O(m) for each cut; `stop`
  is asked now and then.

  Raises:
    ValueError: If the cut proves nothing, for example because a set has all
      workers or none.
  """
  workers = set(cluster.workers)
  price_of = dict(cut.switch_prices)
  numbers = [*price_of.values(), *(weight for weight, _ in cut.parts)]
  if not all(isinstance(number, Fraction | int) for number in numbers):
    raise ValueError(f'Expected fractions, got {numbers}.')
  known = price_of.keys() <= set(cluster.switches)
  if not known or min(price_of.values(), default=0) < 0:
    raise ValueError(f'Expected prices of switches, got {price_of}.')
  sides = [(weight, set(nodes)) for weight, nodes in cut.parts]
  needed = Fraction(0)
  for weight, side in sides:
    if weight < 0 or workers <= side or not workers & side:
      raise ValueError(f'Expected some workers, got {weight}, {sorted(side)}.')
    needed += weight * len(workers & side)
  prices, unit = _units(cluster, cut, stop)
  capacities = (capacity for _, _, capacity in cluster.graph.links)
  worth = sum(p * c for p, c in zip(prices, capacities, strict=True))
  if not worth or not needed:
    raise ValueError('Expected a cut with links out of it, got none.')
  return needed * unit * cluster.graph.scale / worth


def link_prices(
  cluster: Cluster, cut: Cut, stop: stopping.Stop = stopping.never
) -> dict[Ends, Fraction]:
  """Returns prices of the links, at least 0, that prove the bound of `cut`."""
  prices, unit = _units(cluster, cut, stop)
  links = zip(cluster.links, prices, strict=True)
  return {(src, dst): Fraction(price, unit) for (src, dst, _), price in links}


def _units(
  cluster: Cluster, cut: Cut, stop: stopping.Stop
) -> tuple[list[int], int]:
  """Returns the price of each link, in integers, and the integer of price 1."""
  numbers = [price for _, price in cut.switch_prices]
  numbers += [weight for weight, _ in cut.parts]
  unit = math.lcm(*(number.denominator for number in numbers))
  price_of = {
    node: weighted.multiple(price, unit) for node, price in cut.switch_prices
  }
  sides = [
    (weighted.multiple(weight, unit), set(nodes)) for weight, nodes in cut.parts
  ]
  found = []
  for src, dst, _ in stopping.iterate(cluster.links, stop):
    price = price_of.get(dst, 0) - price_of.get(src, 0)
    for weight, side in sides:
      if src in side and dst not in side:
        price += weight
    found.append(max(price, 0))
  return found, unit


def leaving(cluster: Cluster, nodes: Sequence[str]) -> tuple[Ends, ...]:
  """Returns the links (src, dst) that leave a set of nodes, in their order."""
  inside = set(nodes)
  return tuple(
    (src, dst)
    for src, dst, _ in cluster.links
    if src in inside and dst not in inside
  )
