"""Membership of a generation: its members, their answers, their forest.

A generation is stopped, has ended once all its living members have said which
version they have, and is followed by the next, whose members connect over a
forest that is packed for the links that are left.
"""

import collections
import contextlib
import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

from cluster.allreduce import group
from cluster.network.messages import ConnectMembers, MemberForest
from cluster.probing.failed_links import FailedLinks
from cluster.process.exits import Unmendable
from route.route import LATENCY_S, Forests
from topology import Cluster, Forest
from topology.clusters import pruned
from topology.packing import pack as packing

_RECENT = 4  # Forests that are kept, as packing one takes seconds.


class _State(enum.Enum):
  WAITING = 'for the first members'
  STOPPING = 'members say what they have'
  ENDED = 'all have'
  FORMING = 'members connect'
  RUNNING = 'they sum'


class Cut(Exception):
  """The remaining members cannot all reach each other.

  Attributes:
    worker: Who has lost the most connections.
  """

  def __init__(self, worker: int, why: str = 'cannot be reached by all'):
    super().__init__(f'worker {worker} {why}')
    self.worker = worker


class Packed(NamedTuple):
  """A forest, and what it was packed for.

  Attributes:
    members: Who sums over it.
    lost: Ordered pairs of them that cannot talk.
    cluster: The links of all workers, as they were believed to be.
    links: What of them was left.
    forest: Of these.
  """

  members: tuple[int, ...]
  lost: frozenset[tuple[int, int]]
  cluster: Cluster
  links: Cluster
  forest: Forest


class Formation:
  """The generations of a run, one after the other.

  Attributes:
    generation: The running one, from 0.
    members: Of it, or of the one before while it forms; ascending.
    packed: Its forest, and what for; None before the first.
    size_bytes: Of a pool.
  """

  def __init__(
    self,
    cluster: Cluster | None,
    pack: Forests | None,
    *,
    size_bytes: int,
    failed: FailedLinks | None = None,
  ):
    """Creates a formation without members.

    Args:
      cluster: The links; worker i is the i-th.  None: see `know`.
      pack: Returns the forest to use; None if XLA sums.
      size_bytes: Of a pool.
      failed: Failures of links; None if no failed link is tried again.
    """
    self.generation = 0
    self.members: tuple[int, ...] = ()
    self.packed: Packed | None = None
    self._cluster, self._pack = cluster, pack
    # A link that is tried again and fails asks for the forest before once more.
    self._recent: collections.deque[Packed] = collections.deque(maxlen=_RECENT)
    self._host_s: Mapping[str, float] = {}
    self.size_bytes = size_bytes
    self._state = _State.WAITING
    self._executors: dict[int, str] = {}
    self._handovers: dict[int, str] = {}
    self._gone: dict[int, str] = {}  # Members that are lost, and why.
    self._told: dict[
      int, tuple[int, Sequence[float]]
    ] = {}  # Versions and books.
    self._digests: dict[int, str] = {}  # Of those who are connected.
    self._failed = failed or FailedLinks(timeout_s=math.inf)
    # Who have the newest version.  At first the coordinator has what was restored, or
    # what all begin with: who comes from another coordinator has something else.
    self._sources: list[int] = [0]
    self._distrusted: set[int] = set()  # Their state is corrupt.
    # Members that have been told to fetch their state from another one.
    self.fetched: set[int] = set()

  @property
  def mends(self) -> bool:
    """True if a run continues without a lost member; False where XLA sums."""
    return self._pack is not None

  @property
  def knows(self) -> bool:
    """True if the links are known, or no forest needs them."""
    return self._cluster is not None or not self.mends

  def know(self, cluster: Cluster, host_s: Mapping[str, float]) -> None:
    """Takes in links; forests are packed for them from here on.

    Members that have a forest already keep it.

    Args:
      cluster: The links; worker i is the i-th.
      host_s: What each worker adds to the latency of its links, seconds; {} if
        that is not known.
    """
    self._cluster, self._host_s = cluster, host_s

  def use(self, packed: Packed) -> None:
    """Takes another forest from the next generation on, if members stay.

    Pairs that can talk again as it was packed are no longer lost.
    """
    self.packed = packed
    self._failed.use(packed.lost)

  def pack(self, cluster: Cluster, host_s: Mapping[str, float]) -> Forest:
    """Returns a forest for some links; from any thread.

    Args:
      cluster: The links.
      host_s: As of `know`.

    Raises:
      ValueError: If there is none.
      TimeoutError: If it cannot be found.
    """
    latency_s = {
      (src, dst): host_s.get(src, 0.0) + host_s.get(dst, 0.0)
      for src, dst, _ in cluster.links
    }
    if self._pack is None:
      raise RuntimeError('Expected a way to pack, got none.')
    return self._pack(
      cluster, self.size_bytes, latency_s if host_s else LATENCY_S
    )

  def address(self, index: int) -> str:
    """Returns 'host:port' of a worker's executor."""
    return self._executors[index]

  @property
  def waits(self) -> bool:
    """True while the first members are awaited."""
    return self._state is _State.WAITING

  @property
  def living(self) -> list[int]:
    """Members that are not lost."""
    return [index for index in self.members if index not in self._gone]

  def came(self, index: int, executor: str, handover: str) -> None:
    """A worker can be reached, at these addresses, in a new life."""
    before = self._executors.get(index, executor)
    moved = before.rpartition(':')[0] != executor.rpartition(':')[0]
    self._failed.came(index, moved=moved)
    self._executors[index], self._handovers[index] = executor, handover
    self._sources = [k for k in self._sources if k != index] or [0]
    self.trust(index)

  def gone(self, index: int, reason: str) -> None:
    """A member is lost."""
    self._gone.setdefault(index, reason)

  @property
  def trusted(self) -> list[int]:
    """Members whose state is not known to be corrupt."""
    return [k for k in self.members if k not in self._distrusted]

  def distrust(self, index: int) -> None:
    """Excludes a member whose state is corrupt from the sources of others."""
    self._distrusted.add(index)

  def trust(self, index: int) -> None:
    """Ends that, once its state was replaced."""
    self._distrusted.discard(index)

  def source(self, index: int, among: Sequence[int]) -> tuple[int, str] | None:
    """Returns a member from which another can fetch its state, and where.

    Args:
      index: The member that fetches; different ones get different sources.
      among: Members that have the state.

    Returns:
      Rank and address; None if it can connect to none of them.
    """
    reached = [k for k in among if (k, index) not in self._failed.lost]
    if not reached:
      return None
    chosen = reached[index % len(reached)]
    return chosen, self._handovers[chosen]

  def suspect(self, worker: int, peer: int | None) -> None:
    """A worker has lost a connection to another, which may be lost itself."""
    if peer is not None:
      self._failed.suspect(worker, peer)

  def admits(self, index: int) -> bool:
    """Returns whether a worker may be a member of the next generation."""
    return self._failed.admits(index)

  @property
  def retries(self) -> str:
    """Reason to end the generation: a failed link is due; '' for none."""
    pair = self._failed.due(self.members)
    return (
      'the link between workers {} and {} is tried again'.format(*pair)
      if pair
      else ''
    )

  def summed(self) -> None:
    """Notes that a sum is complete: all links in use work."""
    self._failed.summed(self._used)

  def stop(self) -> bool:
    """Ends the generation; returns False if that has been done before."""
    if self._state in (_State.STOPPING, _State.ENDED):
      return False
    self.generation += 1
    self._told.clear()
    self._state = _State.STOPPING
    return True

  def stopped(self, index: int, version: int, books: Sequence[float]) -> None:
    """A member has stopped, with this version, after these books."""
    self._told[index] = version, books

  def ended(self) -> tuple[int, Sequence[float]] | None:
    """Returns the newest version of the living members once all have stopped.

    Returns:
      Version and step statistics (books) of its last iteration, at the first
      call after the last answer; None at all other calls.

    Raises:
      Unmendable: If only corrupt replicas hold that version.
    """
    living = self.living
    if self._state is not _State.STOPPING or {*living} - self._told.keys():
      return None
    self._state = _State.ENDED
    if not living:
      return -1, []
    newest = max(self._told[index][0] for index in living)
    # The coordinator's own first, if it has it: it is the nearest to many.
    holding = [k for k in living if self._told[k][0] == newest]
    self._sources = [k for k in holding if k not in self._distrusted]
    if not self._sources:
      raise Unmendable(
        f'Only corrupt replicas have version {newest}. All return to the '
        'newest checkpoint.'
      )
    return self._told[self._sources[0]]

  def buried(self) -> dict[int, str]:
    """Returns members that were lost, and why; they are none any more."""
    self.members = tuple(self.living)
    gone, self._gone = self._gone, {}
    return gone

  def wait(self) -> None:
    """Waits for the first members to come."""
    self.members = ()
    self._gone.clear()
    self._state = _State.WAITING

  def form(
    self, members: Sequence[int], version: int
  ) -> list[tuple[int, ConnectMembers]]:
    """Begins a generation; returns what to tell each member.

    Args:
      members: At least one, ascending.
      version: That all must have, or get from another.

    Raises:
      Cut: If they cannot reach each other.
      Unmendable: If there is no forest of them.
    """
    self._failed.settle(members)
    self.members = tuple(members)
    self._gone.clear()
    self._digests.clear()
    self._state = _State.FORMING
    if (failed := self._failed.failed_worker(members)) is not None:
      raise self._excluded(failed, 'has an executor that fails')
    forest = self._described() if self.mends else None
    sources = {index: self._given(index, version) for index in members}
    self.fetched = {index for index in members if sources[index]}
    return [
      (
        index,
        ConnectMembers(self.generation, version, sources[index], forest),
      )
      for index in members
    ]

  def _given(self, index: int, version: int) -> tuple[int, str] | None:
    """Returns from whom a member gets the learner, and where; None for nobody.

    Raises:
      Cut: If it cannot talk to anybody who has it.
    """
    # At version 0 each has initialised its own, which may differ in last bits.
    sources = self._sources if version else self._sources[:1]
    if index in sources:
      return None
    reached = [k for k in sources if (k, index) not in self._failed.lost]
    if not (reached or version):  # Digests show later whether it is the same.
      others = (k for k in self.members if k != index)
      reached = [k for k in others if (k, index) not in self._failed.lost]
    if not reached:
      raise self._excluded(index or sources[0])
    return reached[0], self._handovers[reached[0]]

  def _described(self) -> MemberForest:
    """Returns the members and their forest, once it is packed."""
    packed = self._packed()
    return group.described(
      {index: self._executors[index] for index in self.members},
      packed.cluster.workers,
      packed.links,
      packed.forest,
    )

  def _packed(self) -> Packed:
    """Returns the forest of the members: that of before, if they are the same.

    Raises:
      Cut: If they cannot reach each other.
      Unmendable: If there is no forest of them.
    """
    lost, cluster = self._failed.lost, self._cluster
    before = self.packed
    if before and (before.members, before.lost) == (self.members, lost):
      return before
    if cluster is None:
      raise RuntimeError('Expected links to be known, got none.')
    for packed in self._recent:
      same = packed.cluster is cluster
      if same and (packed.members, packed.lost) == (self.members, lost):
        self.packed = packed
        return packed
    workers = cluster.workers
    pairs = [(workers[a], workers[b]) for a, b in sorted(lost)]
    away = [w for k, w in enumerate(workers) if k not in self.members]
    try:
      links = pruned.without(cluster, workers=away, pairs=pairs)
    except ValueError as error:
      raise self._cut(error) from error
    try:
      forest = self._found(links, {*pairs})
    except (ValueError, TimeoutError) as error:
      raise Unmendable(f'There is no forest of the workers: {error}') from error
    self.packed = Packed(self.members, lost, cluster, links, forest)
    self._recent.append(self.packed)
    return self.packed

  def _found(self, links: Cluster, lost: set[tuple[str, str]]) -> Forest:
    """Returns the forest of a route, or if it needs what is lost any other."""
    if not lost:
      return self.pack(links, self._host_s)
    with contextlib.suppress(ValueError):
      forest = self.pack(links, self._host_s)
      hops = (hop for tree in forest.trees for hop in (*tree.up, *tree.down))
      # Others may pass it on in the cluster, but no executor does.
      if not lost & {(hop[0], hop[-1]) for hop in hops}:
        return forest
    logging.warning('The forest of the route needs a link that is lost.')
    return packing.pack(links)

  def formed(self, index: int, digest: str) -> bool:
    """A member is connected; returns whether all are."""
    self._digests[index] = digest
    if self._state is not _State.FORMING or len(self._digests) < len(
      self.members
    ):
      return False
    self._state = _State.RUNNING
    return True

  @property
  def digests(self) -> Mapping[int, str]:
    """Digests of the states that members held when they had connected."""
    return self._digests

  @property
  def awaited(self) -> list[int]:
    """Members that are to answer, that they have stopped or are connected."""
    there: dict[int, Any] = {}
    if self._state is _State.STOPPING:
      there = self._told
    elif self._state is _State.FORMING:
      there = self._digests
    else:
      return []
    return [index for index in self.living if index not in there]

  def _cut(self, error: Exception) -> Exception:
    counts = collections.Counter(
      index
      for pair in self._failed.lost
      for index in pair
      if index and {*pair} <= {*self.members}
    )
    if not counts:
      return Unmendable(str(error))
    return self._excluded(counts.most_common(1)[0][0])

  def _excluded(self, worker: int, *why: str) -> Cut:
    """Returns a `Cut` of a worker, which is not admitted for some time."""
    self._failed.exclude(worker)
    return Cut(worker, *why)

  def _used(self) -> list[tuple[int, int]]:
    """Returns the links that the running forest uses, and all members."""
    found = [(index, index) for index in self.members]
    if self.packed:
      index_of = {name: k for k, name in enumerate(self.packed.cluster.workers)}
      for tree in self.packed.forest.trees:
        for hop in (*tree.up, *tree.down):
          found.append((index_of[hop[0]], index_of[hop[-1]]))
    return found
