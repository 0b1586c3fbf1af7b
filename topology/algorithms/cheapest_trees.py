"""Exact costs of the cheapest trees between workers, by prices of links.

Trees consist of hops from worker to worker, through switches only; the cost of
a hop is the sum of the prices of its links.  Prices are integers of any size.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from topology.algorithms import stopping
from topology.algorithms.components import Components

Priced = tuple[int, int, int]  # Two nodes and the price of a link.


def spanning_tree(worker: Sequence[bool], links: Sequence[Priced]) -> int:
  """Returns the cost of the cheapest tree if links are used in both directions.

  Each switch belongs to its nearest worker, and hops are only those that cross
  one link between two workers' switches: among them is a cheapest tree
  (Mehlhorn, "A faster approximation algorithm for the Steiner problem in
  graphs", 1988).  O(m log m) for m links with prices of at least 0, which
  connect all workers.
  """
  distance, nearest = _nearest(worker, links)
  hops = sorted(
    (distance[a] + price + distance[b], nearest[a], nearest[b])
    for a, b, price in links
    if nearest[a] != nearest[b]
  )
  components = Components(len(worker))
  return sum(price for price, a, b in hops if components.join(a, b))


def _nearest(
  worker: Sequence[bool], links: Sequence[Priced]
) -> tuple[list[int], list[int]]:
  """Returns distance and index of each node's nearest worker; -1 for none."""
  links_of: list[list[tuple[int, int]]] = [[] for _ in worker]
  for a, b, price in links:
    links_of[a].append((b, price))
    links_of[b].append((a, price))
  nearest = [v if valid else -1 for v, valid in enumerate(worker)]
  distance = [0] * len(worker)
  queue = [(0, v) for v, valid in enumerate(worker) if valid]
  while queue:
    there, node = heapq.heappop(queue)
    if there > distance[node]:
      continue
    for other, price in links_of[node]:
      if nearest[other] < 0 or there + price < distance[other]:
        distance[other], nearest[other] = there + price, nearest[node]
        heapq.heappush(queue, (there + price, other))
  return distance, nearest


def hops(
  worker: Sequence[bool],
  links: Sequence[Priced],
  stop: stopping.Stop = stopping.never,
) -> np.ndarray:
  """Returns the price of the cheapest hop for each ordered pair of workers.

  Switch after switch is replaced by the paths through it: O(nodes^2) for each.
  Prices are at least 0; `stop` is asked at each switch.

  Returns:
    Integers [N, N] from row to column, of 64 bits if these suffice.  Where
    there is no hop, as on the diagonal, the entry exceeds N times the price of
    all links.
  """
  count = sum(worker)
  far = (count + 1) * (sum(price for _, _, price in links) + 1)
  fits = 2 * far <= np.iinfo(np.int64).max
  price = np.full((len(worker),) * 2, far, np.int64 if fits else object)
  for src, dst, value in links:
    price[src, dst] = value
  for node, valid in enumerate(worker):
    if not valid:
      stopping.check(stop)
      into = np.flatnonzero(price[:, node] < far)
      out = np.flatnonzero(price[node] < far)
      through = np.add.outer(price[into, node], price[node, out])
      pairs = np.ix_(into, out)
      price[pairs] = np.minimum(price[pairs], through)
      price[node] = price[:, node] = far
  chosen = np.flatnonzero(worker)
  between = price[np.ix_(chosen, chosen)]
  np.fill_diagonal(between, far)
  return between


def arborescences(
  price: np.ndarray, stop: stopping.Stop = stopping.never
) -> list[int]:
  """Returns, for each root, the cost of the cheapest out-tree.

  The algorithm of Chu, Liu and Edmonds, as a path that grows backwards along
  cheapest hops and contracts cycles (Gabow, Galil, Spencer and Tarjan, 1986).
  It does not depend on the root: every worker and every contracted set has the
  price of its cheapest entry, and by duality the cost of a tree is the sum of
  the prices of all sets that do not hold its root.  O(N^2) for all roots
  together.

  `price` is a result of `hops` with a hop between all workers; transposed, it
  gives the costs of trees towards the root.  `stop` is asked at each entry.
  """
  price = price.copy()
  count, far = len(price), price[0, 0]
  members = [[v] for v in range(count)]
  path = [0]
  paid, paid_around = 0, [0] * count
  while len(members[path[-1]]) < count:
    stopping.check(stop)
    head = path[-1]
    src = int(price[:, head].argmin())
    entry = int(price[src, head])
    price[:, head] -= entry
    paid += entry
    for v in members[head]:
      paid_around[v] += entry
    if src not in path:
      path.append(src)
      continue
    cycle = path[path.index(src) :]
    del path[path.index(src) + 1 :]
    price[src] = price[cycle].min(axis=0)
    price[:, src] = price[:, cycle].min(axis=1)
    price[cycle[1:]] = price[src, src] = far
    members[src] = [v for node in cycle for v in members[node]]
  return [paid - around for around in paid_around]
