"""Computes positions of the nodes of a cluster in a picture."""

import collections
from collections.abc import Mapping, Sequence

import numpy as np

from topology.clusters.cluster import Cluster

_ROUNDS = 100  # Rounds of the stress layout, after which nodes hardly move.
_NEAREST = 0.75  # Least distance of nodes, where neighbors have distance 1.
_PUSHES = 30  # Rounds in which nodes are moved to this distance.
_SHARED = 3  # Most rows of switches next to the workers.

Places = dict[str, np.ndarray]


def places(cluster: Cluster) -> Places:
  """Returns a position [2] for each node.

  Workers without switches are on a circle, if each is linked to two others or
  to most.  If there are switches and links only join one layer to the next,
  nodes are in rows: workers, above them the switches next to them, and so on
  up; switches that share workers with others, such as rails across boxes, in
  rows below.  Else distances are as near as possible to the numbers of links
  between nodes (stress majorization: Gansner, Koren and North, "Graph drawing
  by stress majorization", 2004).  The same cluster gives the same places.  A
  unit is about as far as neighbors should be from each other.
  """
  if len(cluster.nodes) == 1:
    return {cluster.nodes[0]: np.zeros(2)}
  neighbors = _neighbors(cluster)
  if cluster.switches:
    rows = _rows(cluster, neighbors)
    if rows is not None:
      return _in_rows(cluster, neighbors, rows)
  else:
    degrees = [len(others) for others in neighbors.values()]
    if max(degrees) <= 2 or np.mean(degrees) > len(degrees) / 2:
      return circle(cluster.workers)
  return _spread(cluster, neighbors)


def _neighbors(cluster: Cluster) -> dict[str, list[str]]:
  """Returns the neighbors of each node, by links of either direction."""
  neighbors: dict[str, dict[str, None]] = {node: {} for node in cluster.nodes}
  for src, dst, _ in cluster.links:
    neighbors[src][dst] = neighbors[dst][src] = None
  return {node: list(others) for node, others in neighbors.items()}


def circle(nodes: Sequence[str]) -> Places:
  """Returns positions on a circle: the first on top, the others clockwise."""
  angles = 2 * np.pi * np.arange(len(nodes)) / len(nodes)
  radius = max(len(nodes) / (2 * np.pi), 1.0)
  points = radius * np.stack([np.sin(angles), np.cos(angles)], axis=1)
  return dict(zip(nodes, points, strict=True))


def _distances(
  neighbors: Mapping[str, Sequence[str]], starts: Sequence[str]
) -> dict[str, int]:
  """Returns the number of links from the nearest of `starts` to each node."""
  distance = dict.fromkeys(starts, 0)
  queue = collections.deque(starts)
  while queue:
    node = queue.popleft()
    for other in neighbors[node]:
      if other not in distance:
        distance[other] = distance[node] + 1
        queue.append(other)
  return distance


def _rows(
  cluster: Cluster, neighbors: Mapping[str, Sequence[str]]
) -> dict[str, int] | None:
  """Returns the row of each node, 0 for workers; None if rows do not fit."""
  level = _distances(neighbors, cluster.workers)
  if len(level) < len(cluster.nodes):
    return None  # Some switches have no path to a worker.
  if any(level[src] == level[dst] for src, dst, _ in cluster.links):
    return None
  top = max(level.values())
  groups: list[set[str]] = []  # The workers below the switches of each row.
  row = dict(level)
  for switch in cluster.switches:
    if level[switch] > 1:
      continue
    below = {n for n in neighbors[switch] if level[n] == 0}
    shared = [bool(group & below) for group in groups]
    place = shared.index(False) if False in shared else len(groups)
    if place == len(groups):
      groups.append(set())
    groups[place] |= below
    row[switch] = 1 if place == 0 else -place
  few = len(groups) == 1 or (top == 1 and len(groups) <= _SHARED)
  return row if few else None


def _in_rows(
  cluster: Cluster,
  neighbors: Mapping[str, Sequence[str]],
  rows: Mapping[str, int],
) -> Places:
  """Returns positions in rows, with switches above their neighbors' middle."""
  across = {worker: float(i) for i, worker in enumerate(cluster.workers)}
  width = max(collections.Counter(rows.values()).values())
  stretch = (width - 1) / max(len(cluster.workers) - 1, 1)
  across = {worker: x * stretch for worker, x in across.items()}
  order = sorted(set(rows.values()) - {0}, key=abs)
  for row in order:
    nodes = [node for node in cluster.nodes if rows[node] == row]
    middles = {
      node: float(
        np.mean(
          [across[n] for n in neighbors[node] if abs(rows[n]) < abs(row)]
          or [width / 2]
        )
      )
      for node in nodes
    }
    nodes.sort(key=middles.__getitem__)
    xs = _apart([middles[node] for node in nodes], width)
    across.update(zip(nodes, xs, strict=True))
  height = max(width / (3.5 * max(len(order), 1)), 1.2)
  return {
    node: np.array([across[node], height * rows[node]])
    for node in cluster.nodes
  }


def _apart(positions: Sequence[float], width: int) -> list[float]:
  """Returns sorted positions, moved apart if they are too close."""
  count = len(positions)
  gap = 0.7 * width / count
  if count == 1 or min(np.diff(positions)) >= gap:
    return list(positions)
  middle = (count - 1) / 2
  center = float(np.mean(positions))
  step = (width - 1) / count
  return [center + step * (i - middle) for i in range(count)]


def _spread(cluster: Cluster, neighbors: Mapping[str, Sequence[str]]) -> Places:
  nodes = cluster.nodes
  far = len(nodes)  # Distance of nodes without a path.
  distances = np.array(
    [
      [row.get(other, far) for other in nodes]
      for row in (_distances(neighbors, [node]) for node in nodes)
    ],
    dtype=float,
  )
  points = np.random.default_rng(0).normal(size=(len(nodes), 2))
  points += np.stack([*circle(nodes).values()])
  weights = 1 / (distances + np.eye(len(nodes))) ** 2
  np.fill_diagonal(weights, 0)
  laplacian = np.diag(weights.sum(axis=1)) - weights
  inverse = np.linalg.pinv(laplacian)
  for _ in range(_ROUNDS):
    points = inverse @ _pull(points, weights * distances)
  points = _push_apart(points * _unit(points))
  return dict(zip(nodes, points, strict=True))


def _pull(points: np.ndarray, pull: np.ndarray) -> np.ndarray:
  """Returns the right-hand side of a step of stress majorization."""
  apart = np.linalg.norm(points[:, None] - points[None], axis=2)
  ratio = pull / np.maximum(apart, 1e-9)
  np.fill_diagonal(ratio, 0)
  result: np.ndarray = ratio.sum(axis=1)[:, None] * points - ratio @ points
  return result


def _unit(points: np.ndarray) -> float:
  """Returns the factor that makes the median distance to the nearest node 1."""
  apart = np.linalg.norm(points[:, None] - points[None], axis=2)
  np.fill_diagonal(apart, np.inf)
  return 1 / float(np.median(apart.min(axis=1)))


def _push_apart(points: np.ndarray) -> np.ndarray:
  """Returns points moved apart to a minimal distance."""
  for _ in range(_PUSHES):
    way = points[:, None] - points[None]
    apart = np.linalg.norm(way, axis=2)
    np.fill_diagonal(apart, np.inf)
    short = np.maximum(_NEAREST - apart, 0) / np.maximum(apart, 1e-9)
    points = points + (way * short[..., None]).sum(axis=1) / 2
  return points
