"""Rounds: a forest as steps of partial permutations, as `lax.ppermute` needs.

The data are cut into slots, one for each unit of weight, and each slot into
chunks, which follow each other through their tree.  In each step every hop
moves one chunk; the hops of a step are independent of each other, and the same
in all steps but for the numbers of the chunks.  They are divided into permutes,
in each of which a worker sends at most once and receives at most once.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from topology.algorithms import edge_coloring, weighted
from topology.algorithms.components import Components
from topology.clusters.cluster import Cluster, Ends
from topology.forests import trees

NONE, ADD, STORE = range(3)  # What a worker does with what it receives.


@dataclasses.dataclass(frozen=True, eq=False)
class Rounds:
  """What an executor needs: N workers, U slots, P permutes, as plain data.

  Each worker holds U slots of C equal chunks.  In step s of `steps(C)` steps,
  permute p moves a chunk along each of its pairs (src, dst): src sends chunk
  s - send_delay[p, src] of slot send_slot[p, src], and dst adds it to chunk
  s - receive_delay[p, dst] of slot receive_slot[p, dst], or puts it there, as
  operation[p, dst] says.  Both are the same chunk of the same slot.  If its
  number is not in 0 to C - 1, the pipeline is filling or draining, and dst must
  ignore what it receives.

  No worker sends a chunk in the step in which it receives it, so that the
  permutes of a step may run in any order or at the same time.  In the end all
  workers hold the sum of each slot (allreduce), or its root does and the others
  hold parts of it (reduce_scatter), or all hold what its root held in the
  beginning (allgather).

  Attributes:
    collective: 'allreduce', 'allgather' or 'reduce_scatter'.
    workers: Ids of the workers; all else is by their index.
    unit_Bps: Bytes per second of each slot in the forest; None for a single
      worker, which has no slots either.
    roots: Int32 [U].  The root of each slot, ascending: slots are in the order
      of the trees, and a tree of k units has k of them.
    pairs: Per permute, its pairs (src, dst), ascending.
    send_slot: Int32 [P, N], like the next three: 0 for a worker that does not
      send, or receive.
    send_delay: In steps.
    receive_slot: That of what is received.
    receive_delay: In steps.
    operation: Int32 [P, N].  NONE, ADD or STORE.
    seconds_per_byte: Per permute and byte of a chunk, if it runs alone: its
      hops over a link, divided by the capacity, for the slowest link.
    rate_Bps: Bytes of all data per second, if the permutes of a step run one
      after the other: M bytes take steps(C) / C * M / rate_Bps seconds without
      latency.  None for a single worker.
    overlapped_rate_Bps: The same if they run at the same time: the rate of the
      forest if that makes some link full.  None for a single worker.
  """

  collective: str
  workers: tuple[str, ...]
  unit_Bps: Fraction | None
  roots: np.ndarray
  pairs: tuple[tuple[tuple[int, int], ...], ...]
  send_slot: np.ndarray
  send_delay: np.ndarray
  receive_slot: np.ndarray
  receive_delay: np.ndarray
  operation: np.ndarray
  seconds_per_byte: tuple[Fraction, ...]
  rate_Bps: Fraction | None
  overlapped_rate_Bps: Fraction | None

  @property
  def loss(self) -> Fraction:
    """The part of the rate that is lost if permutes do not overlap."""
    if self.rate_Bps is None or self.overlapped_rate_Bps is None:
      return Fraction(0)
    return 1 - self.rate_Bps / self.overlapped_rate_Bps

  def steps(self, chunks: int) -> int:
    """Returns after how many steps all chunks, so many a slot, have arrived.

    Raises ValueError if there are none.
    """
    if chunks < 1:
      raise ValueError(f'chunks: expected at least 1, got {chunks}.')
    return chunks + int(self.receive_delay.max(initial=0))


class _Move(NamedTuple):
  """What a hop does for one slot: in step s it moves chunk s - delay."""

  hop: trees.Hop
  slot: int
  delay: int
  operation: int


def plan(
  cluster: Cluster, forest: trees.Forest, *, max_permutes: int = 128
) -> Rounds:
  """Returns the forest as rounds, with as few permutes as there can be.

  The unit of weight is the largest that all trees have multiples of.  With H
  the height of a tree of hops up, a worker at depth d sends chunk s - (H - d)
  up in step s; one at depth d of the hops down receives chunk s - (H + d - 1).
  A permute takes as long as its slowest link.  The slowest hops come first, so
  that equal times get together, and where hops crowd on a link, chains in which
  two permutes alternate change places: O(P^2 N) for each pass over all permutes
  if there are such links.  Equal arguments give equal rounds in every process.

  The forest is one that `verify.check` accepts.  The time to compile a step
  grows with its permutes: ValueError if it needs more than `max_permutes`.
  """
  if max_permutes < 1:
    raise ValueError(f'max_permutes: expected at least 1, got {max_permutes}.')
  unit_Bps, slots = None, []
  if forest.trees:
    scale = weighted.scale(*(tree.weight_Bps for tree in forest.trees))
    unit_Bps = 1 / scale
    counts = [int(tree.weight_Bps * scale) for tree in forest.trees]
    _check_busiest(forest, counts, max_permutes)
    for tree, count in zip(forest.trees, counts, strict=True):
      slots += [tree] * count
  moves = [move for n, tree in enumerate(slots) for move in _moves(n, tree)]
  clock = _clock(cluster)
  permutes = _permutes(cluster, clock, moves)
  seconds = tuple(map(clock.seconds, permutes))
  rank = cluster.rank
  return Rounds(
    collective=forest.collective,
    workers=cluster.workers,
    unit_Bps=unit_Bps,
    roots=np.array([rank[tree.root] for tree in slots], np.int32),
    pairs=tuple(
      tuple(sorted((rank[m.hop[0]], rank[m.hop[-1]]) for m in group))
      for group in permutes
    ),
    **_tables(rank, permutes),
    seconds_per_byte=seconds,
    rate_Bps=len(slots) / sum(seconds, Fraction(0)) if slots else None,
    overlapped_rate_Bps=len(slots) / clock.seconds(moves) if slots else None,
  )


def _check_busiest(
  forest: trees.Forest, counts: Sequence[int], max_permutes: int
) -> None:
  """Whether no worker sends or receives more hops in all slots."""
  busy: dict[tuple[str, str], int] = {}
  for tree, number in zip(forest.trees, counts, strict=True):
    for hop in (*tree.up, *tree.down):
      for end in (('src', hop[0]), ('dst', hop[-1])):
        busy[end] = busy.get(end, 0) + number
  needed = max(busy.values())
  if needed > max_permutes:
    raise ValueError(
      f'max_permutes: expected at least {needed} for {sum(counts)} units of '
      f'weight, got {max_permutes}: a forest of fewer equal units is needed '
      '(units.equal_units).'
    )


def _moves(slot: int, tree: trees.Tree) -> Iterator[_Move]:
  up, down = tree.depths()
  height = max(up.values())
  for hop in tree.up:
    yield _Move(hop, slot, height - up[hop[0]], ADD)
  for hop in tree.down:
    yield _Move(hop, slot, height + down[hop[0]], STORE)


class _Clock(NamedTuple):
  """Times of a byte over links, as integers: so many times the seconds."""

  scale: Fraction
  time: Mapping[Ends, int]

  def cost(self, moves: Iterable[_Move]) -> tuple[int, int]:
    """The time of moves that go on together, and how evenly links share it."""
    load: dict[Ends, int] = {}
    for move in moves:
      for ends in itertools.pairwise(move.hop):
        load[ends] = load.get(ends, 0) + self.time[ends]
    return max(load.values()), sum(time * time for time in load.values())

  def seconds(self, moves: Iterable[_Move]) -> Fraction:
    """Of all moves at the same time, on the slowest link."""
    return self.cost(moves)[0] / self.scale

  def crowded(self, moves: Iterable[_Move]) -> bool:
    """Whether a link that several moves share makes them slower."""
    return self.cost(moves)[0] > max(
      self.time[e] for move in moves for e in itertools.pairwise(move.hop)
    )


def _clock(cluster: Cluster) -> _Clock:
  seconds = {ends: 1 / Bps for ends, Bps in cluster.capacity_Bps.items()}
  scale = weighted.scale(Fraction(1), *seconds.values())
  return _Clock(scale, {ends: int(s * scale) for ends, s in seconds.items()})


def _permutes(
  cluster: Cluster, clock: _Clock, moves: Sequence[_Move]
) -> list[list[_Move]]:
  """The moves in partial permutations: the quicker of two colourings."""
  moves = sorted(moves, key=lambda move: -clock.cost([move])[0])
  rank = cluster.rank
  pairs = [(rank[m.hop[0]], rank[m.hop[-1]]) for m in moves]
  found = []
  for growing in (True, False):
    colors = edge_coloring.colored(pairs, growing=growing)
    groups = [[moves[i] for i in color] for color in colors]
    places = list(itertools.combinations(range(len(groups)), 2))
    while sum(_swap(rank, clock, groups, a, b) for a, b in places):
      pass
    found.append(groups)
  return min(found, key=lambda groups: sum(map(clock.seconds, groups)))


def _swap(
  rank: Mapping[str, int], clock: _Clock, groups: list[list[_Move]], *ab: int
) -> bool:
  """Whether a chain has changed places between two permutes, for the better."""
  first, second = (groups[place] for place in ab)
  if not clock.crowded(first) and not clock.crowded(second):
    return False
  chains = Components(2 * len(rank))
  for move in (*first, *second):
    chains.join(rank[move.hop[0]], len(rank) + rank[move.hop[-1]])
  of = {worker: chains.label[i] for worker, i in rank.items()}
  before = _sum(clock.cost(first), clock.cost(second))
  for chain in dict.fromkeys(of[move.hop[0]] for move in first):
    swapped = [
      [m for m in kept if of[m.hop[0]] != chain]
      + [m for m in other if of[m.hop[0]] == chain]
      for kept, other in ((first, second), (second, first))
    ]
    if all(swapped) and _sum(*map(clock.cost, swapped)) < before:
      groups[ab[0]], groups[ab[1]] = swapped
      return True
  return False


def _sum(*costs: tuple[int, int]) -> tuple[int, int]:
  return sum(time for time, _ in costs), sum(uneven for _, uneven in costs)


def _tables(
  rank: dict[str, int], permutes: Sequence[Sequence[_Move]]
) -> dict[str, np.ndarray]:
  """What each worker does in each permute, by name of the table."""
  names = 'send_slot', 'send_delay', 'receive_slot', 'receive_delay'
  shape = len(permutes), len(rank)
  tables = {name: np.zeros(shape, np.int32) for name in (*names, 'operation')}
  for p, group in enumerate(permutes):
    for hop, slot, delay, operation in group:
      src, dst = rank[hop[0]], rank[hop[-1]]
      tables['send_slot'][p, src] = tables['receive_slot'][p, dst] = slot
      tables['send_delay'][p, src] = tables['receive_delay'][p, dst] = delay
      tables['operation'][p, dst] = operation
  return tables
