"""Clusters as graphs: workers, switches that only forward, directed links.

Capacities are exact: integers, decimals and fractions become `Fraction`s, so
that rates and bounds computed from them can be compared for equality.
"""

import dataclasses
import decimal
import functools
import math
import numbers
import re
import reprlib
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from topology.algorithms import weighted
from topology.clusters.graph import Graph

Ends = tuple[str, str]  # Ids of a link's ends: src and dst.
_KINDS = {str: 'a string', bool: 'a bool', list | tuple: 'a list'}
# Exponents beyond those of floats take long to write out.
_EXPONENT, _LARGEST = re.compile(r'[eE]([+-]?\d+)\s*$'), 400


class Link(NamedTuple):
  """A directed link.

  Attributes:
    src: Id of the node that sends.
    dst: Id of the node that receives.
    GBps: Capacity, 1e9 bytes per second; positive.
  """

  src: str
  dst: str
  GBps: Fraction


@dataclasses.dataclass(frozen=True)
class Cluster:
  """Workers and switches with directed links between them; immutable.

  Links given twice are parallel and become one of the sum of their capacities;
  links of capacity zero are dropped.  Equal graphs therefore compare equal if
  their nodes come in the same order, in which `links` are sorted too.

  Attributes:
    nodes: Ids of all nodes.
    workers: Ids of the nodes that hold data, in the order of `nodes`.  The
      others are switches, which forward but neither copy nor add up.
    links: At most one for each ordered pair of nodes.

  Raises:
    ValueError: If there is no worker, an id is given twice, a link has an
      unknown end, the same node at both ends, or a capacity that is negative
      or not finite, or if some worker cannot reach another.
  """

  nodes: tuple[str, ...]
  workers: tuple[str, ...]
  links: tuple[Link, ...]

  def __post_init__(self) -> None:
    position = self.position
    if len(position) != len(self.nodes):
      twice = next(node for node in self.nodes if self.nodes.count(node) > 1)
      raise ValueError(f'nodes: expected distinct ids, got {twice!r} twice.')
    chosen = set(self.workers)
    if not chosen <= position.keys() or len(chosen) != len(self.workers):
      raise ValueError(f'workers: expected distinct nodes, got {self.workers}.')
    if not chosen:
      raise ValueError('workers: expected one or more, got none.')
    total: dict[Ends, Fraction] = {}
    for src, dst, value in self.links:
      _check_ends(src, dst, position)
      capacity = _capacity(value, f'{src} to {dst}')
      known = total.get((src, dst))
      total[src, dst] = capacity if known is None else known + capacity
    pairs = sorted(total, key=lambda ends: [position[end] for end in ends])
    links = tuple(Link(*ends, total[ends]) for ends in pairs if total[ends])
    # The class is frozen, and its fields are put into one canonical form.
    object.__setattr__(self, 'nodes', tuple(self.nodes))
    workers = tuple(node for node in self.nodes if node in chosen)
    object.__setattr__(self, 'workers', workers)
    object.__setattr__(self, 'links', links)
    self._check_reachable()

  @functools.cached_property
  def switches(self) -> tuple[str, ...]:
    """Ids of the nodes that are not workers, in the order of `nodes`."""
    workers = set(self.workers)
    return tuple(node for node in self.nodes if node not in workers)

  @functools.cached_property
  def position(self) -> dict[str, int]:
    """Index of each node in `nodes`."""
    return {node: v for v, node in enumerate(self.nodes)}

  @functools.cached_property
  def rank(self) -> dict[str, int]:
    """Index of each worker in `workers`."""
    return {worker: i for i, worker in enumerate(self.workers)}

  @functools.cached_property
  def capacity_Bps(self) -> dict[Ends, Fraction]:
    """Bytes per second of each link, in the order of `links`."""
    return {
      (src, dst): Fraction(GBps.numerator * 10**9, GBps.denominator)
      for src, dst, GBps in self.links
    }

  @functools.cached_property
  def graph(self) -> Graph:
    """Graph with integer capacities, scaled by the common denominator."""
    scale = math.lcm(*(GBps.denominator for _, _, GBps in self.links))
    links = tuple(
      (self.position[src], self.position[dst], weighted.multiple(GBps, scale))
      for src, dst, GBps in self.links
    )
    workers = tuple(self.position[worker] for worker in self.workers)
    own = tuple(node in self.rank for node in self.nodes)
    return Graph(len(self.nodes), workers, own, links, scale)

  @functools.cached_property
  def symmetric(self) -> bool:
    """True if every link has a reverse of the same capacity."""
    links = set(self.graph.links)
    return all((dst, src, c) in links for src, dst, c in links)

  def reversed(self) -> 'Cluster':
    """Returns the cluster with the direction of every link reversed."""
    return self._reversed

  @functools.cached_property
  def _reversed(self) -> 'Cluster':
    links = tuple(Link(dst, src, GBps) for src, dst, GBps in self.links)
    return Cluster(self.nodes, self.workers, links)

  def _check_reachable(self) -> None:
    first = self.workers[0]
    reached = _reached([link[:2] for link in self.links], first)
    reaching = _reached([link[1::-1] for link in self.links], first)
    for worker in self.workers:
      for valid, dst, src in (
        (worker in reached, worker, first),
        (worker in reaching, first, worker),
      ):
        if not valid:
          raise ValueError(
            'links: expected ways between all workers, but worker '
            f'{dst} is unreachable from {src}.'
          )


def from_json(data: Mapping[str, Any]) -> Cluster:
  """Returns the cluster described by decoded JSON.

  The data has `nodes`, a list of `{'id': str, 'worker': bool}`, and `links`, a
  list of `{'src': id, 'dst': id, 'GBps': capacity}`.  Capacities are numbers,
  or strings such as '25', '12.5' or '100/3'; a float stands for the decimal
  that it prints as.  Other keys are ignored.

  Raises:
    ValueError: If a key is missing or a value is not of its kind, and for the
      reasons given at `Cluster`; names the field.

  Example:
    >>> ends = [{'id': 'a', 'worker': True}, {'id': 'b', 'worker': True}]
    >>> links = [
    ...   {'src': 'a', 'dst': 'b', 'GBps': '25'},
    ...   {'src': 'b', 'dst': 'a', 'GBps': '100/3'},
    ... ]
    >>> from_json({'nodes': ends, 'links': links}).links[1].GBps
    Fraction(100, 3)
  """
  nodes = _rows(data, 'nodes', {'id': str, 'worker': bool})
  links = _rows(data, 'links', {'src': str, 'dst': str, 'GBps': object})
  return Cluster(
    tuple(node for node, _ in nodes),
    tuple(node for node, worker in nodes if worker),
    tuple(Link(*link) for link in links),
  )


def from_networkx(graph: Any) -> Cluster:
  """Returns the cluster that a NetworkX graph describes.

  An undirected edge is a link of its full capacity in each direction; parallel
  edges add up.  NetworkX itself is not needed.

  The id of a node is its `str`.  Edges have the attribute `GBps`, a capacity as
  of `from_json`.  Nodes have the attribute `worker`, a bool; only if none of
  them has it, all are workers.

  Raises:
    ValueError: If an attribute is missing or not of its kind, and for the
      reasons given at `Cluster`.
  """
  nodes = list(graph.nodes(data=True))
  marked = any('worker' in attributes for _, attributes in nodes)
  rows = [
    {
      'id': str(node),
      'worker': _get(attributes, 'worker', f'{node}') if marked else True,
    }
    for node, attributes in nodes
  ]
  links = []
  for src, dst, attributes in graph.edges(data=True):
    GBps = _get(attributes, 'GBps', f'{src} to {dst}')
    links.append({'src': str(src), 'dst': str(dst), 'GBps': GBps})
    if not graph.is_directed():
      links.append({'src': str(dst), 'dst': str(src), 'GBps': GBps})
  return from_json({'nodes': rows, 'links': links})


def to_json(cluster: Cluster) -> dict[str, Any]:
  """Returns the data that `from_json` reads, with capacities as strings."""
  return {
    'nodes': [{'id': n, 'worker': n in cluster.rank} for n in cluster.nodes],
    'links': [
      {'src': src, 'dst': dst, 'GBps': str(GBps)}
      for src, dst, GBps in cluster.links
    ],
  }


def _rows(
  data: object, name: str, kinds: Mapping[str, type]
) -> list[tuple[Any, ...]]:
  """Returns the values of the keys `kinds` in each row of the list `name`."""
  rows = _get(data, name, name, list | tuple)
  return [
    tuple(
      _get(row, key, f'{name}[{i}].{key}', kind) for key, kind in kinds.items()
    )
    for i, row in enumerate(rows)
  ]


def _get(row: object, key: str, name: str, kind: Any = object) -> Any:
  """Returns the value of a key; raises ValueError if it is not of its kind."""
  if not isinstance(row, Mapping) or key not in row:
    raise ValueError(
      f'{name}: expected an object with {key!r}, got {reprlib.repr(row)}.'
    )
  if not isinstance(row[key], kind):
    raise ValueError(
      f'{name}: expected {_KINDS[kind]}, got {reprlib.repr(row[key])}.'
    )
  return row[key]


def _check_ends(src: str, dst: str, position: Mapping[str, int]) -> None:
  for end in (src, dst):
    if end not in position:
      raise ValueError(f'links: expected known nodes, got {end!r}.')
  if src == dst:
    raise ValueError(f'links: expected two ends, got {src!r} to itself.')


def _capacity(value: object, name: str) -> Fraction:
  """Returns a capacity as Fraction; a float means the decimal it prints as."""
  if isinstance(value, Fraction) and value >= 0:
    return value
  got = reprlib.repr(value)
  wrong = f'{name}: expected a finite GBps of at least 0, got {got}.'
  kinds = str | numbers.Real | decimal.Decimal
  if isinstance(value, bool) or not isinstance(value, kinds):
    raise ValueError(wrong)
  try:
    power = _EXPONENT.search(str(value))
    if power and abs(int(power[1])) > _LARGEST:
      raise ValueError(wrong)
    capacity = Fraction(str(value))
  except (ValueError, ZeroDivisionError) as error:
    raise ValueError(wrong) from error
  if capacity < 0:
    raise ValueError(wrong)
  return capacity


def _reached(ends: Iterable[Ends], start: str) -> set[str]:
  following: dict[str, list[str]] = {}
  for src, dst in ends:
    following.setdefault(src, []).append(dst)
  reached, frontier = {start}, [start]
  while frontier:
    new = set(following.pop(frontier.pop(), ())) - reached
    reached |= new
    frontier += new
  return reached
