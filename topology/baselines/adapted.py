"""Adaptation of a forest to other workers, in time linear in its hops.

Used while a forest is packed for the remaining workers, which takes longer.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence

from topology.baselines.ways import Ways, ways_of
from topology.clusters.cluster import Cluster, Ends
from topology.forests import trees

_MOST_HOPS = 2**12  # Hops of the result, but of two trees at least.
_FEWEST_TREES = 2
_UNITS = 2**16  # Of weights: sums of integers are faster than of fractions.


def adapt_forest(
  forest: trees.Forest,
  cluster: Cluster,
  bound: trees.Forest,
  avoided: Collection[Ends] = (),
) -> trees.Forest:
  """Returns the trees of an allreduce forest, changed for other workers.

  Children of a missing worker become those of its parent.  A missing root is
  replaced by its first child.  New workers become leaves, each below another
  worker.  A worker whose hop to its parent is avoided gets another parent.
  Weights keep their ratios, rounded; of many trees only the heaviest are used,
  without those that slow down the others.

  Args:
    forest: Allreduce forest of one or more trees.
    cluster: Links among the workers of the result, which are two or more.
    bound: Forest of `cluster`, whose collective and proof are used.
    avoided: Ordered pairs (sender, receiver) that no hop may have.

  Raises:
    ValueError: If a worker cannot be reached without avoided pairs.
  """
  ways = ways_of(cluster)
  count = max(_FEWEST_TREES, _MOST_HOPS // (2 * len(cluster.workers)))
  heaviest = sorted(forest.trees, key=lambda tree: -tree.weight_Bps)[:count]
  avoided = {*avoided}
  columns = []
  for tree in heaviest:
    root = _find_root(tree, cluster)
    up = _adapt(tree.up, root, cluster, ways, avoided, is_up=True)
    down = _adapt(tree.down, root, cluster, ways, avoided, is_up=False)
    weight = max(1, round(tree.share * _UNITS))
    column = trees.Column(root, weight, up, down)
    before = {(hop[0], hop[-1]) for hop in (*tree.up, *tree.down)}
    now = {(hop[0], hop[-1]) for hop in (*up, *down)}
    columns.append((column, len(now - before)))
  return trees.fit_forest(cluster, _drop_overloading(cluster, columns), bound)


def _drop_overloading(
  cluster: Cluster, columns: Sequence[tuple[trees.Column, int]]
) -> list[trees.Column]:
  """Returns the trees without those whose new hops slow down the others."""
  # `columns` has each tree with its number of new hops, which share links with
  # hops for which these were packed.  Trees are dropped one by one: of those
  # across the fullest link, the one with the largest number of new hops.  The
  # best of these sets is used.
  capacity = {ends: float(Bps) for ends, Bps in cluster.capacity_Bps.items()}
  crossed: list[dict[Ends, float]] = []
  loads: dict[Ends, float] = {}
  for column, _ in columns:
    own: dict[Ends, float] = {}
    for hop in (*column.up, *column.down):
      for ends in itertools.pairwise(hop):
        own[ends] = own.get(ends, 0.0) + float(column.weight)
    crossed.append(own)
    for ends, load in own.items():
      loads[ends] = loads.get(ends, 0.0) + load
  left = [*range(len(columns))]
  best, best_rate = left, 0.0
  while left:
    fullest = max(loads, key=lambda ends: loads[ends] / capacity[ends])
    total = sum(float(columns[number][0].weight) for number in left)
    rate = total * capacity[fullest] / loads[fullest]
    if rate > best_rate:
      best, best_rate = [*left], rate
    across = [k for k in left if fullest in crossed[k] and columns[k][1]]
    if not across or len(left) == 1:
      break
    worst = max(across, key=lambda k: (columns[k][1], -columns[k][0].weight))
    left.remove(worst)
    for ends, load in crossed[worst].items():
      loads[ends] -= load
  return [columns[number][0] for number in best]


def _find_root(tree: trees.Tree, cluster: Cluster) -> str:
  """Returns the root, or the first remaining worker below it."""
  if tree.root in cluster.rank:
    return tree.root
  below = [hop[-1] for hop in tree.down if hop[-1] in cluster.rank]
  return below[0] if below else cluster.workers[0]


def _adapt(
  hops: Sequence[trees.Hop],
  root: str,
  cluster: Cluster,
  ways: Ways,
  avoided: Collection[Ends],
  *,
  is_up: bool,
) -> list[trees.Hop]:
  """Returns the hops of one direction of a tree, in the order of sending."""
  parents: dict[str, str] = {}
  known: dict[Ends, trees.Hop] = {}
  for hop in hops:
    child, parent = (hop[0], hop[-1]) if is_up else (hop[-1], hop[0])
    parents[child] = parent
    known[hop[0], hop[-1]] = hop

  def is_avoided(child: str, parent: str) -> bool:
    return ((child, parent) if is_up else (parent, child)) in avoided

  workers = cluster.workers
  children: dict[str, list[str]] = {worker: [] for worker in workers}
  waiting = []  # Workers without a parent.
  for number, worker in enumerate(workers):
    if worker == root:
      continue
    parent = parents.get(worker, '')
    while parent and parent not in cluster.rank:
      parent = parents.get(parent, root)
    if not parent and worker not in parents and hops:
      known_worker = workers[(number + len(workers) // 2) % len(workers)]
      parent = known_worker if known_worker in parents else root
    parent = parent or root
    if parent == worker or is_avoided(worker, parent):
      waiting.append(worker)
    else:
      children[parent].append(worker)
  order = _list_reached(root, children)
  # The subtrees that no longer hang on the root, such as those of a new root's
  # former ancestors, are hung on again.
  reached = {*order}
  waiting += _find_circles(root, workers, children, reached, waiting)
  for worker in waiting:
    parent = next((p for p in order if not is_avoided(worker, p)), '')
    if not parent:
      raise ValueError(f'Worker {worker} can reach no other one.')
    children[parent].append(worker)
    order += _list_reached(worker, children)
  pairs = [
    (worker, parent) if is_up else (parent, worker)
    for parent in order
    for worker in children[parent]
  ]
  return [
    _find_hop(pair, known, cluster, ways)
    for pair in (reversed(pairs) if is_up else pairs)
  ]


def _list_reached(
  root: str, children: Mapping[str, Sequence[str]]
) -> list[str]:
  """Returns a worker and all below it, parents before their children."""
  order = [root]
  for worker in order:
    order.extend(children[worker])
  return order


def _find_circles(
  root: str,
  workers: Sequence[str],
  children: dict[str, list[str]],
  reached: set[str],
  waiting: Sequence[str],
) -> list[str]:
  """Cuts circles of workers; returns one worker of each, now without parent."""
  del root
  seen = {*reached}
  for worker in waiting:
    seen.update(_list_reached(worker, children))
  parent_of = {
    child: parent for parent, each in children.items() for child in each
  }
  cut = []
  for worker in workers:
    if worker in seen:
      continue
    path = {worker}
    top = worker
    while parent_of[top] not in path:
      top = parent_of[top]
      path.add(top)
    children[parent_of[top]].remove(top)
    cut.append(top)
    seen.update(_list_reached(top, children))
  return cut


def _find_hop(
  pair: Ends, known: Mapping[Ends, trees.Hop], cluster: Cluster, ways: Ways
) -> trees.Hop:
  """Returns the way of a hop: the one that it had, if its links still exist."""
  hop, capacity = known.get(pair), cluster.capacity_Bps
  if hop:
    for ends in itertools.pairwise(hop):
      if ends not in capacity:
        break
    else:
      return hop
  return ways.hop(*pair)
