"""Clusters of well-known shapes, with exact capacities.

Workers are 'w0', 'w1' and so on, switches 's0', 's1'.  All capacities are in
1e9 bytes per second: integers, fractions, or floats and strings, which stand
for the decimals they show.
"""

import itertools
import random
from collections.abc import Iterable, Sequence
from fractions import Fraction

from topology import cluster

Capacity = int | float | str | Fraction


def full_mesh(workers: int, GBps: Capacity) -> cluster.Cluster:
  """Returns workers of which every ordered pair has a link of its own.

  Args:
    workers: Number of them, at least 1.
    GBps: Capacity of each link.

  Raises:
    ValueError: If there is no worker or the capacity is not positive.
  """
  names = _names('w', workers)
  pairs = [(a, b) for a in names for b in names if a != b]
  return _of(names, (), ((a, b, GBps) for a, b in pairs))


def ring(
  workers: int, GBps: Capacity, *, both_ways: bool = True
) -> cluster.Cluster:
  """Returns workers each linked to the next, the last to the first.

  Args:
    workers: Number of them, at least 1; between two, parallel links add.
    GBps: Capacity of each link.
    both_ways: Whether each is linked to the one before it too.

  Raises:
    ValueError: If there is no worker or the capacity is not positive.
  """
  names = _names('w', workers)
  pairs = [(names[i - 1], names[i]) for i in range(workers) if workers > 1]
  return _of(names, (), _directed(pairs, GBps, both_ways))


def line(workers: int, GBps: Capacity) -> cluster.Cluster:
  """Returns workers each linked, both ways, to the next, the last to none.

  Args:
    workers: Number of them, at least 1.
    GBps: Capacity of each link.

  Raises:
    ValueError: If there is no worker or the capacity is not positive.
  """
  names = _names('w', workers)
  pairs = itertools.pairwise(names)
  return _of(names, (), _directed(pairs, GBps, True))


def star(
  up_GBps: Sequence[Capacity], down_GBps: Sequence[Capacity] | None = None
) -> cluster.Cluster:
  """Returns workers around one switch, 's0'.

  Args:
    up_GBps: Per worker, the capacity of its link to the switch.
    down_GBps: Per worker, that of the link back; the same if not given.

  Raises:
    ValueError: If there is no worker, the lengths differ or a capacity is not
      positive.
  """
  down_GBps = up_GBps if down_GBps is None else down_GBps
  if len(up_GBps) != len(down_GBps):
    raise ValueError(
      f'Expected as many down as up, got {len(down_GBps)}, {len(up_GBps)}.'
    )
  names = _names('w', len(up_GBps))
  up = [(w, 's0', c) for w, c in zip(names, up_GBps, strict=True)]
  down = [('s0', w, c) for w, c in zip(names, down_GBps, strict=True)]
  return _of(names, ('s0',), up + down)


def tree(fanouts: Sequence[int], GBps: Sequence[Capacity]) -> cluster.Cluster:
  """Returns workers at the leaves of a tree of switches.

  Links carry their capacity each way.  A level is oversubscribed where its
  switches have more capacity below them than above.

  Args:
    fanouts: Per level from the root down, the children of each switch.
    GBps: Per level from the root down, the capacity of each link to a child.

  Raises:
    ValueError: If there is no level, the lengths differ, a fan-out is below 1
      or a capacity is not positive.

  Example:
    >>> len(tree([4, 4], [10, 10]).workers)
    16
  """
  if not fanouts or len(fanouts) != len(GBps) or min(fanouts) < 1:
    raise ValueError(f'Expected levels, got {list(fanouts)}, {list(GBps)}.')
  above, links, made = ['s0'], [], 1
  for depth, (fanout, capacity) in enumerate(zip(fanouts, GBps, strict=True)):
    leaves = depth == len(fanouts) - 1
    count = len(above) * fanout
    below = _names('w', count) if leaves else _names('s', count, made)
    made += count
    pairs = [(above[i // fanout], node) for i, node in enumerate(below)]
    links += _directed(pairs, capacity, True)
    above = below
  switches = _names('s', made - len(above))
  return _of(above, switches, links)


def torus(sides: Sequence[int], GBps: Capacity) -> cluster.Cluster:
  """Returns workers on a grid whose lines are rings, linked both ways.

  Args:
    sides: Workers along each dimension, at least 1; between two, the links
      there and around are parallel and add.
    GBps: Capacity of each link.

  Raises:
    ValueError: If there is no dimension, a side is below 1 or the capacity is
      not positive.

  Example:
    >>> len(torus([3, 3], 25).links)
    36
  """
  if not sides or min(sides) < 1:
    raise ValueError(f'Expected sides of at least 1, got {list(sides)}.')
  places = list(itertools.product(*(range(side) for side in sides)))
  name = {place: f'w{i}' for i, place in enumerate(places)}
  pairs = []
  for place in places:
    for d, side in enumerate(sides):
      if side > 1:
        beside = (*place[:d], (place[d] + 1) % side, *place[d + 1 :])
        pairs.append((name[place], name[beside]))
  return _of(list(name.values()), (), _directed(pairs, GBps, True))


def fat_tree(ports: int, GBps: Capacity) -> cluster.Cluster:
  """Returns the fat-tree of Al-Fares et al., SIGCOMM 2008, links both ways.

  Of k ports per switch: k pods of k / 2 edge and k / 2 aggregation switches,
  with k / 2 workers at each edge switch, and (k / 2)^2 core switches.

  Args:
    ports: k, even and at least 2.
    GBps: Capacity of each link.

  Raises:
    ValueError: If the ports are wrong or the capacity is not positive.
  """
  if ports < 2 or ports % 2:
    raise ValueError(f'ports: expected even and at least 2, got {ports}.')
  half = ports // 2
  names = _names('w', ports * half * half)
  cores = _names('s', half * half)
  edges = _names('s', ports * half, len(cores))
  tops = _names('s', ports * half, len(cores) + len(edges))
  pairs = [(name, edges[i // half]) for i, name in enumerate(names)]
  for pod in range(ports):
    for i in range(half):
      top = tops[pod * half + i]
      pairs += [(edges[pod * half + j], top) for j in range(half)]
      pairs += [(top, cores[i * half + j]) for j in range(half)]
  return _of(names, cores + edges + tops, _directed(pairs, GBps, True))


def bcube(ports: int, levels: int, GBps: Capacity) -> cluster.Cluster:
  """Returns the BCube of Guo et al., SIGCOMM 2009, links both ways.

  Workers are numbers of so many digits to the base of the ports; on each level
  those that differ in one digit only share a switch.

  Args:
    ports: Of each switch, at least 1.
    levels: Digits, at least 1, which are the ports of each worker.
    GBps: Capacity of each link.

  Raises:
    ValueError: If a number is below 1 or the capacity is not positive.
  """
  if ports < 1 or levels < 1:
    raise ValueError(f'Expected at least 1, got {ports}, {levels}.')
  names, pairs = _names('w', ports**levels), []
  switches = _names('s', levels * ports ** (levels - 1))
  for level in range(levels):
    base = ports**level
    for i, name in enumerate(names):
      # The number without its digit of this level.
      group = i // (base * ports) * base + i % base
      pairs.append((name, switches[level * ports ** (levels - 1) + group]))
  return _of(names, switches, _directed(pairs, GBps, True))


def dgx_a100(
  boxes: int, *, box_GBps: Capacity = 300, rail_GBps: Capacity = 25
) -> cluster.Cluster:
  """Returns boxes of 8 workers around a switch, joined by two rails.

  Args:
    boxes: Number of them, at least 1; a single one has no rails.
    box_GBps: Capacity of a worker's links to and from the switch of its box.
    rail_GBps: That of its links to and from a switch that it shares with every
      other worker of every box.

  Raises:
    ValueError: If there is no box or a capacity is not positive.
  """
  names = _names('w', 8 * boxes)
  inner = [(name, f's{i // 8}') for i, name in enumerate(names)]
  rails = [(name, f's{boxes + i % 2}') for i, name in enumerate(names)]
  links = _directed(inner, box_GBps, True)
  links += _directed(rails, rail_GBps, True) if boxes > 1 else []
  return _of(names, _names('s', boxes + 2 * (boxes > 1)), links)


def random_mesh(
  workers: int,
  seed: int,
  *,
  density: float = 1.0,
  symmetric: bool = False,
  low_GBps: int = 1,
  high_GBps: int = 50,
) -> cluster.Cluster:
  """Returns workers with links of random capacity, without switches.

  Each pair is linked with the given probability; neighbors on the ring of all
  workers always are, so that the cluster is connected.

  Args:
    workers: Number of them, at least 1.
    seed: The same seed gives the same cluster.
    density: Probability of a link, 0 to 1.
    symmetric: Whether both directions of a pair are the same.
    low_GBps: Smallest capacity, an integer of at least 1.
    high_GBps: Largest capacity; all integers between are equally likely.

  Raises:
    ValueError: If an argument is out of its range.
  """
  if not 0 <= density <= 1 or not 1 <= low_GBps <= high_GBps:
    raise ValueError(
      'Expected a density of 0 to 1 and 1 <= low_GBps <= high_GBps, got '
      f'{density}, {low_GBps}, {high_GBps}.'
    )
  rng = random.Random(seed)
  names = _names('w', workers)
  links = []
  for i in range(workers):
    for j in range(i + 1, workers):
      beside = j - i in (1, workers - 1)
      there, back = (
        rng.randint(low_GBps, high_GBps)
        if rng.random() < density or beside
        else 0
        for _ in range(2)
      )
      back = there if symmetric else back
      links += [(names[i], names[j], there), (names[j], names[i], back)]
  return _of(names, (), links)


def _names(prefix: str, count: int, start: int = 0) -> list[str]:
  return [f'{prefix}{i}' for i in range(start, start + count)]


def _directed(
  pairs: Iterable[tuple[str, str]], GBps: Capacity, both_ways: bool
) -> list[tuple[str, str, Capacity]]:
  there = [(a, b, GBps) for a, b in pairs]
  return there + [(b, a, GBps) for a, b, _ in there if both_ways]


def _of(
  workers: Sequence[str],
  switches: Sequence[str],
  links: Iterable[tuple[str, str, Capacity]],
) -> cluster.Cluster:
  return cluster.Cluster(
    (*workers, *switches),
    tuple(workers),
    tuple(cluster.Link(*link) for link in links),
  )
