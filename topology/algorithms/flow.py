"""Maximum flows between nodes 0 to n - 1, in integers.

A residual network is a list that holds, per node, a dict from neighbor to the
capacity that is left; a link and its reverse are always both present.  A flow
is kept only as the change it has made, so that it can be continued after the
capacities have changed.
"""

import itertools
from collections.abc import Iterable, Sequence

Residual = list[dict[int, int]]


def network(nodes: int, links: Iterable[tuple[int, int, int]]) -> Residual:
  """Returns the residual network without flow of links (src, dst, capacity).

  Parallel links add; the order of the links decides among equal flows.
  """
  residual: Residual = [{} for _ in range(nodes)]
  for src, dst, capacity in links:
    residual[src][dst] = residual[src].get(dst, 0) + capacity
    residual[dst].setdefault(src, 0)
  return residual


def copy(residual: Residual) -> Residual:
  """Returns a copy that shares nothing with `residual`."""
  return [dict(row) for row in residual]


def push(residual: Residual, path: Sequence[int], amount: int) -> None:
  """Adds flow along a path, given by its nodes, without a check of capacity.

  Args:
    residual: Network, which is changed in place.
    path: Nodes from the source to the sink, of which neighbors are linked.
    amount: Flow that is added to each link of the path.
  """
  for i in range(len(path) - 1):
    src, dst = path[i], path[i + 1]
    residual[src][dst] -= amount
    residual[dst][src] += amount


def augment(residual: Residual, source: int, sink: int, limit: int) -> int:
  """Adds the largest flow from source to sink that the network can carry.

  By Dinic's algorithm (1970): blocking flows along shortest paths, O(n^2 m) for
  m links, and far less on the graphs met here.  The network is changed in
  place; a link with no capacity left, or a negative one, is not used.  Returns
  the added flow, which is at most `limit`.
  """
  added = 0
  while added < limit:
    arcs = _layers(residual, source, sink)
    if not arcs:
      break
    added += _block(residual, arcs, source, sink, limit - added)
  return added


def detour(residual: Residual, source: int, sink: int, limit: int) -> int:
  """Adds flow as `augment` does, faster for small amounts.

  Path by path, each a shortest one that is searched for from both ends: O(n +
  m) for each path.  Returns the added flow, which is at most `limit`.
  """
  added = 0
  while added < limit:
    path = _path(residual, source, sink)
    if not path:
      break
    room = min(residual[a][b] for a, b in itertools.pairwise(path))
    amount = min(room, limit - added)
    push(residual, path, amount)
    added += amount
  return added


def reach(residual: Residual, source: int) -> list[int]:
  """Returns the nodes, sorted, that `source` reaches over links with room.

  After a maximum flow they are the source side of a minimum cut, the smallest
  of all.  O(n + m).
  """
  return _spread(residual, source, False)


def reach_back(residual: Residual, sink: int) -> list[int]:
  """Returns the nodes, sorted, that reach `sink` over links with room.

  After a maximum flow they are the sink side of a minimum cut, the smallest of
  all.  O(n + m).
  """
  return _spread(residual, sink, True)


def _spread(residual: Residual, start: int, back: bool) -> list[int]:
  seen, frontier = {start}, [start]
  for node in frontier:
    for other, room in residual[node].items():
      if other not in seen and (residual[other][node] if back else room) > 0:
        seen.add(other)
        frontier.append(other)
  return sorted(frontier)


def _path(residual: Residual, source: int, sink: int) -> list[int] | None:
  """Returns the nodes of a shortest path with spare capacity, or None."""
  steps, ends = ({source: source}, {sink: sink}), [[source], [sink]]
  while all(ends):
    # A step from the end with fewer nodes to continue from.
    back = len(ends[0]) > len(ends[1])
    known, met, deeper = steps[back], steps[not back], []
    for node in ends[back]:
      for other, room in residual[node].items():
        if other in known or (residual[other][node] if back else room) <= 0:
          continue
        known[other] = node
        if other in met:
          first, last = (_through(step, other) for step in steps)
          return first[::-1] + last[1:]
        deeper.append(other)
    ends[back] = deeper
  return None


def _through(step: dict[int, int], node: int) -> list[int]:
  """Returns the nodes from `node` to the end of its steps."""
  path = [node]
  while step[node] != node:
    node = step[node]
    path.append(node)
  return path


def _layers(
  residual: Residual, source: int, sink: int
) -> list[list[int]] | None:
  """Returns each node's neighbors one step further from the source, or None."""
  level = [-1] * len(residual)
  level[source] = 0
  arcs: list[list[int]] = [[] for _ in residual]
  frontier = [source]
  while frontier and level[sink] < 0:
    deeper = []
    for node in frontier:
      depth = level[node] + 1
      for other, room in residual[node].items():
        if room > 0:
          if level[other] < 0:
            level[other] = depth
            deeper.append(other)
          if level[other] == depth:
            arcs[node].append(other)
    frontier = deeper
  return arcs if level[sink] >= 0 else None


def _block(
  residual: Residual, arcs: list[list[int]], source: int, sink: int, limit: int
) -> int:
  """Adds flow along `arcs`, which are used up, until none gets through."""
  added = 0
  path = [source]
  while path and added < limit:
    node = path[-1]
    if node == sink:
      room = [residual[a][b] for a, b in itertools.pairwise(path)]
      amount = min(min(room), limit - added)
      push(residual, path, amount)
      added += amount
      # All before the first link that is now full can be used again.
      full = room.index(amount) if amount in room else 0
      del path[full + 1 :]
    elif not arcs[node]:
      path.pop()
      if path:
        arcs[path[-1]].pop()
    elif residual[node][arcs[node][-1]] > 0:
      path.append(arcs[node][-1])
    else:
      arcs[node].pop()
  return added
