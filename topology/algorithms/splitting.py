"""Switches replaced by links between workers that stand for paths.

Edge splitting: capacity of a link into a switch and of one out of it is
exchanged for a link that bypasses it, as far as every worker can still receive
all data.  Where no switch has more capacity out than in, this ends with no
capacity left out of any switch (Bang-Jensen, Frank and Jackson, "Preserving and
increasing local edge-connectivity in mixed graphs", 1995); used for collectives
in ForestColl (Zhao et al., arXiv 2402.06787, 2024).
"""

from collections.abc import Sequence

from topology.algorithms import flow, stopping, weighted

Path = tuple[tuple[int, ...], int]  # A path of nodes, and its units.


def bypass(
  nodes: int,
  workers: Sequence[int],
  links: Sequence[tuple[int, int, int]],
  units: Sequence[int],
  stop: stopping.Stop = stopping.never,
) -> dict[tuple[int, int], list[Path]]:
  """Returns links between workers that replace all switches, as paths.

  With a source that feeds `units` to each worker, every worker can still
  receive the units of all.  A flow that shows this is kept for each worker, and
  repaired after each exchange: for N workers, O(N) shortest paths for each pair
  of links into and out of a switch, most of which need none.

  Args:
    nodes: Number of nodes.
    workers: Indices of the N workers among them.
    links: (src, dst, capacity), integers.
    units: Integers [N], amount that each worker has to send to all.
    stop: Asked before each maximum flow and each exchange.

  Returns:
    Per pair of linked workers, paths from one to the other through switches
    only, with units that add up to the capacity of the link.

  Raises:
    ValueError: If some worker cannot receive all, or if a switch cannot be
      bypassed because it has more capacity out than in.
  """
  splitter = _Splitter(nodes, workers, links, units, stop)
  for switch in sorted(set(range(nodes)).difference(workers)):
    splitter.remove(switch)
  return splitter.paths


class _Splitter:
  """State of edge splitting: the paths that each link stands for."""

  def __init__(
    self,
    nodes: int,
    workers: Sequence[int],
    links: Sequence[tuple[int, int, int]],
    units: Sequence[int],
    stop: stopping.Stop,
  ) -> None:
    self._stop = stop
    self.paths: dict[tuple[int, int], list[Path]] = {
      (src, dst): [((src, dst), capacity)] for src, dst, capacity in links
    }
    fed = [(nodes, w, count) for w, count in zip(workers, units, strict=True)]
    network = flow.network(nodes + 1, [*links, *fed])
    self._flows = []
    wanted = sum(units)
    for worker in workers:
      stopping.check(stop)
      residual = flow.copy(network)
      if flow.augment(residual, nodes, worker, wanted) < wanted:
        raise ValueError(f'Expected {wanted} units into node {worker}.')
      self._flows.append(residual)

  def remove(self, switch: int) -> None:
    """Splits all links out of `switch`, then drops those into it."""
    sources = [u for u, w in self.paths if w == switch]
    sinks = [t for w, t in self.paths if w == switch]
    entering = sum(self._capacity(u, switch) for u in sources)
    pairs = [(u, t) for t in sinks for u in sources]
    # Evenly at first, for links between many pairs and so for flat trees;
    # then the rest; last the flow that would return to its own source.
    for u, t in pairs:
      if u != t:
        room = self._capacity(u, switch) * self._capacity(switch, t)
        self._split(u, switch, t, -(-room // entering))
    for u, t in sorted(pairs, key=lambda pair: pair[0] == pair[1]):
      self._split(u, switch, t, self._capacity(u, switch))
    for t in sinks:
      if self._capacity(switch, t):
        raise ValueError(f'Expected a balanced switch, got node {switch}.')
    for u in sources:
      self.paths.pop((u, switch), None)
    for residual in self._flows:
      for other in residual[switch]:
        del residual[other][switch]
      residual[switch] = {}

  def _capacity(self, src: int, dst: int) -> int:
    return sum(units for _, units in self.paths.get((src, dst), ()))

  def _split(self, u: int, w: int, t: int, limit: int) -> None:
    amount = min(limit, self._capacity(u, w), self._capacity(w, t))
    if not amount:
      return
    stopping.check(self._stop)
    for i, residual in enumerate(self._flows):
      _exchange(residual, u, w, t, amount)
      if residual[u][w] >= 0 and residual[w][t] >= 0:
        continue
      lost = _repair(residual, u, w, t)
      if lost:
        # Each cut loses what is split, or nothing: so much less is right.
        amount -= lost
        for changed in self._flows[: i + 1]:
          _exchange(changed, u, w, t, -lost)
          _repair(changed, u, w, t)
        if not amount:
          return
    first = take(self.paths, (u, w), amount)
    second = take(self.paths, (w, t), amount)
    if u != t:
      self.paths.setdefault((u, t), []).extend(
        (_joined(a, b), units)
        for (a, b), units in weighted.align(first, second)
      )


def take(
  paths: dict[tuple[int, int], list[Path]], ends: tuple[int, int], units: int
) -> list[Path]:
  """Removes paths with `units` from a link between workers; returns them.

  The link is dropped once nothing of it is left.
  """
  taken, have = [], paths[ends]
  while units:
    path, left = have.pop()
    used = min(left, units)
    taken.append((path, used))
    units -= used
    if left > used:
      have.append((path, left - used))
  if not have:
    del paths[ends]
  return taken


def _joined(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
  """Returns two paths as one, without cycles."""
  path: list[int] = []
  for node in (*first, *second[1:]):
    if node in path:
      del path[path.index(node) :]
    path.append(node)
  return tuple(path)


def _exchange(
  residual: flow.Residual, u: int, w: int, t: int, amount: int
) -> None:
  residual[u][w] -= amount
  residual[w][t] -= amount
  if u != t:
    residual[u][t] = residual[u].get(t, 0) + amount
    residual[t].setdefault(u, 0)


def _repair(residual: flow.Residual, u: int, w: int, t: int) -> int:
  """Moves flow off links above capacity; returns the flow without a way."""
  over = min(-residual[u][w], -residual[w][t])
  if over > 0:
    flow.push(residual, (t, w, u), over)
    if u != t:
      flow.push(residual, (u, t), over)
  lost = 0
  for src, dst in ((u, w), (w, t), (u, t)):
    over = -residual[src].get(dst, 0)
    if over > 0:
      moved = flow.detour(residual, src, dst, over)
      flow.push(residual, (dst, src), moved)
      lost += over - moved
  return lost
