"""Random prices of links, and prices of hops by Dijkstra's algorithm."""

import random
from collections.abc import Sequence

import networkx as nx
import numpy as np

from topology.clusters.cluster import Cluster

Priced = tuple[int, int, int]


def random_prices(graph: Cluster, seed: int) -> tuple[list[bool], list[Priced]]:
  """Returns a mask of workers, and links with random prices, some of them 0."""
  rng = random.Random(seed)
  links = [(a, b, rng.randint(0, 9)) for a, b, _ in graph.graph.links]
  return list(graph.graph.worker), links


def between(
  worker: Sequence[bool], links: Sequence[Priced]
) -> dict[tuple[int, int], int]:
  """Returns the least prices between workers, over paths through switches.

  Paths do not pass through other workers.
  """
  prices = {}
  for src in np.flatnonzero(worker).tolist():
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(worker)))
    graph.add_weighted_edges_from(
      link for link in links if link[0] == src or not worker[link[0]]
    )
    lengths = nx.single_source_dijkstra_path_length(graph, src)
    for dst, length in lengths.items():
      if dst != src and worker[dst]:
        prices[src, dst] = length
  return prices
