"""Positions of the nodes of a cluster in a figure."""

import collections
from collections.abc import Mapping, Sequence

import networkx as nx
import numpy as np

from topology.clusters.cluster import Cluster

_NEAREST = 0.75  # Least distance of nodes, where neighbors have distance 1.
_PUSHES = 30  # Rounds in which nodes are moved to this distance.
_ROWS_BELOW = 2  # Most rows of switches below the workers.

Positions = dict[str, np.ndarray]


def find(cluster: Cluster) -> Positions:
  """Returns a position [2] of each node; neighbors are about 1 apart.

  Switches whose links join one layer to the next only are in rows: workers,
  above them the switches next to them, and so on up; switches that share
  workers with others, such as rails across boxes, in rows below.  Other
  clusters are on a circle if each worker is linked to two others or to most;
  else distances are in proportion to the numbers of links between nodes.
  """
  graph = nx.Graph((src, dst) for src, dst, _ in cluster.links)
  graph.add_nodes_from(cluster.nodes)
  if cluster.switches:
    rows = _find_rows(cluster, graph)
    if rows is not None:
      return _place_in_rows(cluster, graph, rows)
  else:
    degrees = [degree for _, degree in graph.degree]
    if max(degrees) <= 2 or np.mean(degrees) > len(degrees) / 2:
      return circle(cluster.workers)
  return _spread(cluster, graph)


def circle(nodes: Sequence[str]) -> Positions:
  """Returns positions on a circle: the first on top, the others clockwise."""
  angles = 2 * np.pi * np.arange(len(nodes)) / len(nodes)
  radius = max(len(nodes) / (2 * np.pi), 1.0) if len(nodes) > 1 else 0.0
  points = radius * np.stack([np.sin(angles), np.cos(angles)], axis=1)
  return dict(zip(nodes, points, strict=True))


def _find_rows(cluster: Cluster, graph: nx.Graph) -> dict[str, int] | None:
  """Returns the row of each node, 0 for workers; None if rows do not fit."""
  layers = enumerate(nx.bfs_layers(graph, cluster.workers))
  level = {node: number for number, layer in layers for node in layer}
  if len(level) < len(cluster.nodes):
    return None  # Some switches have no path to a worker.
  if any(level[src] == level[dst] for src, dst in graph.edges):
    return None
  row = dict(level)
  groups: list[set[str]] = []  # The workers below the switches of each row.
  for switch in cluster.switches:
    if level[switch] > 1:
      continue
    workers = {node for node in graph[switch] if level[node] == 0}
    free = (k for k, group in enumerate(groups) if not group & workers)
    place = next(free, len(groups))
    if place == len(groups):
      groups.append(set())
    groups[place] |= workers
    row[switch] = -place or 1
  fits = len(groups) == 1 or (
    max(level.values()) == 1 and len(groups) <= _ROWS_BELOW + 1
  )
  return row if fits else None


def _place_in_rows(
  cluster: Cluster, graph: nx.Graph, rows: Mapping[str, int]
) -> Positions:
  """Returns positions in rows, switches in the order of their neighbors."""
  counts = collections.Counter(rows.values())
  width = max(counts.values())
  order = sorted(set(rows.values()), key=abs)
  height = max(width / (3.5 * max(len(order) - 1, 1)), 1.2)
  across: dict[str, float] = {}
  for row in order:
    nodes = [node for node in cluster.nodes if rows[node] == row]
    if row:
      inner = {
        node: [across[other] for other in graph[node] if other in across]
        for node in nodes
      }
      nodes.sort(key=lambda node: float(np.mean(inner[node])))
    step = width / len(nodes)
    across |= {node: (k + 0.5) * step for k, node in enumerate(nodes)}
  return {
    node: np.array([across[node], height * rows[node]])
    for node in cluster.nodes
  }


def _spread(cluster: Cluster, graph: nx.Graph) -> Positions:
  """Returns positions at distances of the numbers of links between nodes."""
  far = len(graph)  # Distance of nodes without a path.
  lengths = dict(nx.all_pairs_shortest_path_length(graph))
  distances = {
    node: {other: lengths[node].get(other, far) for other in graph}
    for node in graph
  }
  found = nx.kamada_kawai_layout(graph, distances, circle(cluster.nodes))
  points: np.ndarray = np.array([found[node] for node in cluster.nodes])
  apart = _distances(points)
  points = points / np.median(apart.min(axis=1))
  for _ in range(_PUSHES):
    apart = _distances(points)
    short = np.maximum(_NEAREST - apart, 0) / np.maximum(apart, 1e-9)
    ways = points[:, None] - points[None]
    points = points + (ways * short[..., None]).sum(axis=1) / 2
  return dict(zip(cluster.nodes, points, strict=True))


def _distances(points: np.ndarray) -> np.ndarray:
  """Returns the distances of nodes, [N, N]; inf from a node to itself."""
  apart: np.ndarray = np.linalg.norm(points[:, None] - points[None], axis=2)
  np.fill_diagonal(apart, np.inf)
  return apart
