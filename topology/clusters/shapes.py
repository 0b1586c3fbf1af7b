"""Networks of well-known shapes, of any size.

Workers are 'w0', 'w1' and so on, switches 's0', 's1'.  `GBps` is the capacity
of each link in each direction, in 1e9 bytes per second: an integer, a fraction,
or a float or string, which stands for the decimal it shows.  Parallel links
add.  All builders raise ValueError, which names the argument, for numbers that
are too small and capacities that are not positive.
"""

import itertools
from collections.abc import Sequence

from topology.clusters import parts
from topology.clusters.cluster import Cluster
from topology.clusters.parts import Capacity


def full_mesh(workers: int, GBps: Capacity) -> Cluster:
  """Returns workers of which every ordered pair has a link of its own.

  Args:
    workers: Number of workers, at least 1.
    GBps: Capacity of each link in each direction, 1e9 bytes per second.
  """
  names = parts.make_names('w', parts.check_integer(workers, 'workers'))
  return parts.make_cluster(
    names, (), parts.make_links(itertools.combinations(names, 2), GBps)
  )


def ring(workers: int, GBps: Capacity, *, both_ways: bool = True) -> Cluster:
  """Returns workers each linked to the next, the last to the first.

  Args:
    workers: Number of workers, at least 1.
    GBps: Capacity of each link in each direction, 1e9 bytes per second.
    both_ways: Whether links go both ways, or only to the next worker.
  """
  names = parts.make_names('w', parts.check_integer(workers, 'workers'))
  pairs = [(names[i - 1], names[i]) for i in range(workers) if workers > 1]
  links = parts.make_links(pairs, GBps)
  return parts.make_cluster(names, (), links if both_ways else links[::2])


def line(workers: int, GBps: Capacity) -> Cluster:
  """Returns workers in a line, each linked both ways to the next.

  Args:
    workers: Number of workers, at least 1.
    GBps: Capacity of each link in each direction, 1e9 bytes per second.
  """
  names = parts.make_names('w', parts.check_integer(workers, 'workers'))
  return parts.make_cluster(
    names, (), parts.make_links(itertools.pairwise(names), GBps)
  )


def star(
  up_GBps: Sequence[Capacity], down_GBps: Sequence[Capacity] | None = None
) -> Cluster:
  """Returns workers around one switch, 's0'.

  `up_GBps` has the capacity of each worker's link to the switch, `down_GBps`
  that of the link back; None: the same.
  """
  up = parts.check_list(up_GBps, 'up_GBps', parts.check_capacity)
  down = up
  if down_GBps is not None:
    down = parts.check_list(down_GBps, 'down_GBps', parts.check_capacity)
  if len(up) != len(down):
    raise ValueError(
      f'down_GBps: expected as many as up, {len(up)}, got {len(down)}.'
    )
  names = parts.make_names('w', len(up))
  links = [(w, 's0', c) for w, c in zip(names, up, strict=True)]
  links += [('s0', w, c) for w, c in zip(names, down, strict=True)]
  return parts.make_cluster(names, ('s0',), links)


def tree(
  fanouts: Sequence[int], GBps: Sequence[Capacity | Sequence[Capacity]]
) -> Cluster:
  """Returns workers at the leaves of a tree of switches.

  A level is oversubscribed where its switches have more capacity below them
  than above.

  Args:
    fanouts: Per level from the root down, the children of each switch.
    GBps: Per level from the root down, the capacity of each link to a child,
      or a list of one for each child of that level, from the first switch on.

  Example:
    >>> len(tree([4, 4], [10, 10]).workers)
    16
    >>> tree([2, 1], [[10, 20], 5]).links[3].GBps
    Fraction(20, 1)
  """
  counts = parts.check_list(fanouts, 'fanouts', parts.check_integer)
  levels = parts.check_list(GBps, 'GBps')
  if len(counts) != len(levels):
    raise ValueError(
      f'GBps: expected one per level, {len(counts)}, got {len(levels)}.'
    )
  above, links, nodes = ['s0'], [], 1
  for depth, (fanout, level) in enumerate(zip(counts, levels, strict=True), 1):
    count = len(above) * fanout
    leaves = depth == len(counts)
    below = (
      parts.make_names('w', count)
      if leaves
      else parts.make_names('s', count, nodes)
    )
    nodes += count
    each = level if isinstance(level, list | tuple) else [level] * count
    if len(each) != count:
      raise ValueError(
        f'GBps: expected one per child, {count}, got {len(each)}.'
      )
    for i, (node, capacity) in enumerate(zip(below, each, strict=True)):
      links += parts.make_links([(above[i // fanout], node)], capacity)
    above = below
  return parts.make_cluster(
    above, parts.make_names('s', nodes - len(above)), links
  )


def torus(sides: Sequence[int], GBps: Capacity) -> Cluster:
  """Returns workers on a grid whose lines are rings, linked both ways.

  `sides` has the number of workers along each dimension, at least 1.  On a side
  of 2, the link to the neighbor and the link around are parallel.

  Args:
    GBps: Capacity of each link in each direction, 1e9 bytes per second.

  Example:
    >>> len(torus([3, 3], 25).links)
    36
  """
  sides = parts.check_list(sides, 'sides', parts.check_integer)
  places = list(itertools.product(*(range(side) for side in sides)))
  name = {place: f'w{i}' for i, place in enumerate(places)}
  pairs = []
  for place in places:
    for d, side in enumerate(sides):
      if side > 1:
        beside = (*place[:d], (place[d] + 1) % side, *place[d + 1 :])
        pairs.append((name[place], name[beside]))
  return parts.make_cluster(
    list(name.values()), (), parts.make_links(pairs, GBps)
  )


def hypercube(dimensions: int, GBps: Capacity) -> Cluster:
  """Returns 2^dimensions workers, linked both ways where one bit differs.

  It is a torus of sides 2 without its parallel links.

  Args:
    dimensions: Number of bits of a worker's index, at least 0.
    GBps: Capacity of each link in each direction, 1e9 bytes per second.
  """
  names = parts.make_names(
    'w', 2 ** parts.check_integer(dimensions, 'dimensions', 0)
  )
  pairs = [
    (names[i], names[i | 1 << d])
    for i in range(len(names))
    for d in range(dimensions)
    if not i >> d & 1
  ]
  return parts.make_cluster(names, (), parts.make_links(pairs, GBps))


def fat_tree(ports: int, GBps: Capacity) -> Cluster:
  """Returns the fat-tree of Al-Fares et al., SIGCOMM 2008, links both ways.

  Of k ports per switch, an even number: k pods of k / 2 edge and k / 2
  aggregation switches, with k / 2 workers at each edge switch, and (k / 2)^2
  core switches.

  Args:
    ports: Ports of a switch, k: an even number.
    GBps: Capacity of each link in each direction, 1e9 bytes per second.
  """
  if parts.check_integer(ports, 'ports', 2) % 2:
    raise ValueError(f'ports: expected an even number, got {ports}.')
  half = ports // 2
  names = parts.make_names('w', ports * half * half)
  cores = parts.make_names('s', half * half)
  edges = parts.make_names('s', ports * half, len(cores))
  tops = parts.make_names('s', ports * half, len(cores) + len(edges))
  pairs = [(name, edges[i // half]) for i, name in enumerate(names)]
  for pod in range(ports):
    for i in range(half):
      top = tops[pod * half + i]
      pairs += [(edges[pod * half + j], top) for j in range(half)]
      pairs += [(top, cores[i * half + j]) for j in range(half)]
  return parts.make_cluster(
    names, cores + edges + tops, parts.make_links(pairs, GBps)
  )


def bcube(ports: int, levels: int, GBps: Capacity) -> Cluster:
  """Returns the BCube of Guo et al., SIGCOMM 2009, links both ways.

  A worker's number has `levels` digits to the base `ports`, of which level 0 is
  the last.  A switch of a level joins the `ports` workers whose numbers differ
  in the digit of that level alone.

  Args:
    ports: Workers at each switch, at least 1.
    levels: Switches at each worker, at least 1.
    GBps: Capacity of each link in each direction.
  """
  parts.check_integer(ports, 'ports')
  names, pairs = (
    parts.make_names('w', ports ** parts.check_integer(levels, 'levels')),
    [],
  )
  switches = parts.make_names('s', levels * ports ** (levels - 1))
  for level in range(levels):
    base = ports**level
    for i, name in enumerate(names):
      # The number without its digit of this level.
      group = i // (base * ports) * base + i % base
      pairs.append((name, switches[level * ports ** (levels - 1) + group]))
  return parts.make_cluster(names, switches, parts.make_links(pairs, GBps))


def dcell(ports: int, levels: int, GBps: Capacity) -> Cluster:
  """Returns the DCell of Guo et al., SIGCOMM 2008, links both ways.

  At level 0, workers around a switch.  A cell of level k consists of t + 1
  cells of level k - 1, where t is the number of workers of one.  In each pair
  of these cells, i < j, worker j - 1 of cell i and worker i of cell j are
  linked, so that each worker has one link of each level.  Level k has t (t + 1)
  workers.

  Args:
    ports: Workers of a cell of level 0.
    levels: Level of the whole, at least 0.
    GBps: Capacity of each link in each direction, 1e9 bytes per second.

  Example:
    >>> len(dcell(3, 1, 10).workers)
    12
  """
  workers = parts.check_integer(ports, 'ports')
  pairs: list[tuple[int, int]] = []
  for _ in range(parts.check_integer(levels, 'levels', 0)):
    cells = range(workers + 1)
    starts = [cell * workers for cell in cells]
    pairs = [(first + a, first + b) for first in starts for a, b in pairs]
    pairs += [
      (starts[i] + j - 1, starts[j] + i)
      for i, j in itertools.combinations(cells, 2)
    ]
    workers *= len(cells)
  names = parts.make_names('w', workers)
  switches = parts.make_names('s', workers // ports)
  ends = [(name, switches[i // ports]) for i, name in enumerate(names)]
  ends += [(names[a], names[b]) for a, b in pairs]
  return parts.make_cluster(names, switches, parts.make_links(ends, GBps))


def wan(
  sites: Sequence[int],
  GBps: Capacity,
  links: Sequence[tuple[int, int, Capacity]],
) -> Cluster:
  """Returns sites, each a full mesh, joined by links between some workers.

  Args:
    sites: Number of workers of each site; workers are numbered from the first
      site on.
    GBps: Capacity of links within a site.
    links: Links between sites: numbers of two workers, capacity each way.

  Example:
    >>> two = wan([4, 4], 25, [(3, 4, 1)])
    >>> [link.GBps for link in two.links if {*link[:2]} == {'w3', 'w4'}]
    [Fraction(1, 1), Fraction(1, 1)]
  """
  sizes = parts.check_list(sites, 'sites', parts.check_integer)
  site_of = [site for site, size in enumerate(sizes) for _ in range(size)]
  names = parts.make_names('w', len(site_of))
  inside = [
    (names[i], names[j])
    for i, j in itertools.combinations(range(len(names)), 2)
    if site_of[i] == site_of[j]
  ]
  all_links = parts.make_links(inside, GBps)
  for link in parts.check_list(links, 'links'):
    a, b, capacity = _between(link, site_of)
    all_links += parts.make_links([(names[a], names[b])], capacity, 'links')
  return parts.make_cluster(names, (), all_links)


def _between(link: object, site_of: Sequence[int]) -> tuple[int, int, Capacity]:
  """Returns a link's two workers, in different sites, and its capacity."""
  row = parts.check_list(link, 'links')
  if len(row) != 3:
    raise ValueError(f'links: expected (worker, worker, GBps), got {row!r}.')
  ends = [parts.check_integer(end, 'links', 0) for end in row[:2]]
  if max(ends) >= len(site_of) or site_of[ends[0]] == site_of[ends[1]]:
    raise ValueError(
      f'links: expected two of {len(site_of)} workers in different sites, got '
      f'{ends}.'
    )
  return ends[0], ends[1], row[2]
