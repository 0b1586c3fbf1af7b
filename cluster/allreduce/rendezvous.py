"""Rendezvous of an allreduce run: members of each epoch, their answers, forest.

A membership epoch is stopped when a member or a connection is lost, or a worker
joins.  It has ended once all its living members have reported their version of
the learner.  Then the next begins, whose members connect over a forest that is
packed for the links that still work.

No messages, threads or clocks here: see `epochs`, which alone changes it.
"""

import collections
import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cluster.allreduce.executor import membership
from cluster.allreduce.executor.membership import Membership
from cluster.allreduce.planning import (
  FEWEST,
  ForestPlanner,
  PackingFailed,
  PackingRequest,
  build_forest,
)
from cluster.network.messages import (
  MAX_SOURCES,
  ConnectMembers,
  MemberForest,
)
from cluster.probing.failed_links import FailedLinks
from cluster.process.exits import Unmendable
from route import selection
from route.route import LATENCY_S, ForestBuilder
from topology import Cluster, Forest
from topology.baselines import adapted, schemes
from topology.clusters import pruned
from topology.forests import compact, dealing

_RECENT = 4  # ForestBuilder in the cache: packing one takes seconds.


class _Phase(enum.Enum):
  """Phase of a membership epoch."""

  WAITING = 'first members are awaited'
  STOPPING = 'members report their versions'
  ENDED = 'all have reported'
  CONNECTING = 'members connect'
  RUNNING = 'members sum'


class Unreachable(Exception):
  """The members cannot all reach each other.

  Attributes:
    worker: Worker to leave out: the one with the most lost connections.
  """

  def __init__(self, worker: int, reason: str = 'cannot be reached by all'):
    super().__init__(f'worker {worker} {reason}')
    self.worker = worker


class PackedForest(NamedTuple):
  """A forest, and the members and links that it was packed for.

  Attributes:
    members: Workers that sum over it.
    avoided_pairs: Pairs of members, in both orders, that cannot communicate.
    cluster: Links of all workers that were assumed at the time.
    links: Links that were left of them.
    forest: Forest of these links.
  """

  members: tuple[int, ...]
  avoided_pairs: frozenset[tuple[int, int]]
  cluster: Cluster
  links: Cluster
  forest: Forest


# Members, avoided pairs and links of all workers.
_Key = tuple[tuple[int, ...], frozenset[tuple[int, int]], Cluster]


class Rendezvous:
  """Members, answers and forest of the current membership epoch.

  `MembershipEpochs` calls, for each epoch: `form`, `add_connected` until all
  members are connected, `stop`, `add_stopped` until `find_newest` returns a
  version, and `remove_lost`.

  Attributes:
    membership_epoch: Number of the current epoch, from 0.
    members: Workers of it, or of the epoch before until `form`; ascending.
    version: Version that all members have once they are connected.
    packed: Its forest, and the links of it; None before the first.
    size_bytes: Size of a gradient buffer, bytes.
    local: Rank of the worker in the coordinator's process.
    fetching: Members that were directed to fetch their state from another one.
    restored: Version of the checkpoint that the coordinator has restored; None
      if it has not.  The coordinator's worker then has the sum of all
      residuals of that version.
  """

  def __init__(
    self,
    cluster: Cluster | None,
    pack: ForestBuilder | None,
    *,
    size_bytes: int,
    failed: FailedLinks | None = None,
    local: int = 0,
    lanes: int = 0,
    planner: ForestPlanner | None = None,
  ):
    """Creates a rendezvous without members.

    Args:
      cluster: The links; worker i is the i-th.  None if unknown: see `know`.
      pack: Returns the forest of a cluster; None if XLA sums.
      size_bytes: Size of a gradient buffer, bytes.
      failed: Record of failed links; None if they are never tried again.
      local: Rank of the worker in the coordinator's process.
      lanes: Number of lanes; 0 to choose it by links and cores.
      planner: Packs forests of many members; None if this thread does.
    """
    self.membership_epoch, self.local = 0, local
    self.members: tuple[int, ...] = ()
    self.version = 0
    self.packed: PackedForest | None = None
    self.size_bytes = size_bytes
    self.fetching: set[int] = set()
    self.restored: int | None = None
    self._cluster, self._pack, self._lanes = cluster, pack, lanes
    # A link that is tried again and fails needs the forest before once more.
    self._recent: collections.deque[PackedForest] = collections.deque(
      maxlen=_RECENT
    )
    self._planner = planner
    # Links of the members for which a forest is packed, by the key of that.
    self._planning: tuple[_Key, Cluster] | None = None
    self._unplanned: _Key | None = None  # For which packing has failed.
    self._is_plan_awaited = False  # By the members of the first epoch.
    self._quick: PackedForest | None = None  # Used while one is packed.
    self._has_better = False  # Whether that has been packed.
    self._host_s: Mapping[str, float] = {}
    self._phase = _Phase.WAITING
    self._addresses: dict[int, str] = {}
    self._cores: dict[int, int] = {}
    self._lost_members: dict[int, str] = {}  # With the reason.
    # Version and step statistics of the members that have stopped.
    self._answers: dict[int, tuple[int, Sequence[float]]] = {}
    self._digests: dict[
      int, str
    ] = {}  # State digests of the members that are connected.
    self._failed = failed or FailedLinks(timeout_s=math.inf)
    # Members with the newest version.  At first the coordinator's worker, which
    # has restored or initialised the state: a process that has left another
    # coordinator has a different one.
    self._sources: list[int] = [local]
    self._corrupt: set[int] = set()

  @property
  def tolerates_loss(self) -> bool:
    """True if a run continues without a lost member; False where XLA sums."""
    return self._pack is not None

  @property
  def has_links(self) -> bool:
    """True if the rates of the links are known, or no forest needs them."""
    return self._cluster is not None or not self.tolerates_loss

  def set_links(self, cluster: Cluster, host_s: Mapping[str, float]) -> None:
    """Sets the rates of links for which later forests are packed.

    Members keep the forest that they have.

    Args:
      cluster: The links; worker i is the i-th.
      host_s: Latency that each worker's host adds to its links, seconds; {} if
        that is unknown.
    """
    self._cluster, self._host_s = cluster, host_s

  def use(self, packed: PackedForest) -> None:
    """Sets the forest of the next epoch, if it has the same members.

    Pairs that can communicate in it are no longer considered lost.
    """
    self.packed = packed
    self._failed.apply_measurement(packed.avoided_pairs)

  def pack(self, cluster: Cluster, host_s: Mapping[str, float]) -> Forest:
    """Returns a forest packed for some links; called from any thread.

    Args:
      cluster: The links.
      host_s: Latencies of hosts, as of `set_links`.

    Raises:
      ValueError: If there is none.
      TimeoutError: If it cannot be found in time.
    """
    request = self._make_request(cluster, host_s, frozenset())
    if self._planner and len(cluster.workers) >= FEWEST:
      try:
        return self._planner.pack(request)
      except PackingFailed as error:
        raise ValueError(f'No forest was packed: {error}') from error
    return build_forest(request)

  def _make_request(
    self,
    cluster: Cluster,
    host_s: Mapping[str, float],
    avoided: frozenset[tuple[str, str]],
  ) -> PackingRequest:
    if self._pack is None:
      raise RuntimeError('Expected a packing function, got none.')
    latency_s = {
      (src, dst): host_s.get(src, 0.0) + host_s.get(dst, 0.0)
      for src, dst, _ in cluster.links
    }
    return PackingRequest(
      self._pack,
      cluster,
      self.size_bytes,
      latency_s if host_s else LATENCY_S,
      avoided,
    )

  def begin_plan(self, members: Iterable[int]) -> bool:
    """Begins to pack the first forest, if that is left to the planner.

    Args:
      members: Members of the first epoch, ascending.

    Returns:
      Whether `form` has to wait until `take_plan` returns True.
    """
    cluster = self._cluster
    if self.packed or cluster is None or self._pack is None:
      return False
    key = tuple(members), self._failed.avoided_pairs, cluster
    if self._planning and self._planning[0] == key:
      return True
    if not self._is_planned_elsewhere(key) or self._find_recent(key):
      return False
    try:
      self._begin_packing(key, self._prune(key))
    except ValueError:
      return False  # `form` raises the error that names the worker.
    self._is_plan_awaited = True
    return True

  def take_plan(self, key: object, forest: Forest | None) -> bool:
    """Records a forest that the planner has packed.

    Args:
      key: Key of the request.
      forest: The forest; None if packing has failed.

    Returns:
      Whether the members of the first epoch wait for it.
    """
    if self._planning is None or key != self._planning[0]:
      return False
    planned, links = self._planning
    self._planning = None
    is_awaited, self._is_plan_awaited = self._is_plan_awaited, False
    if forest is None:
      self._unplanned = planned
      return is_awaited
    members, avoided, cluster = planned
    self._recent.append(PackedForest(members, avoided, cluster, links, forest))
    current = self.packed
    self._has_better = (
      current is not None
      and current is self._quick
      and (current.members, current.avoided_pairs) == (members, avoided)
    )
    return is_awaited

  def _is_planned_elsewhere(self, key: _Key) -> bool:
    """Returns whether the planner packs a forest, and can."""
    is_large = self._planner is not None and len(key[0]) >= FEWEST
    return is_large and key != self._unplanned

  def _begin_packing(self, key: _Key, links: Cluster) -> None:
    if self._planner is None:
      raise RuntimeError('Expected a planner, got none.')
    avoided = frozenset(self._name_pairs(key))
    self._planning = key, links
    self._planner.begin(key, self._make_request(links, self._host_s, avoided))

  def address(self, index: int) -> str:
    """Returns 'host:port' of a worker's executor."""
    return self._addresses[index]

  @property
  def is_waiting(self) -> bool:
    """True while the run waits for the members of its first epoch."""
    return self._phase is _Phase.WAITING

  @property
  def living(self) -> list[int]:
    """Members that are not lost."""
    return [index for index in self.members if index not in self._lost_members]

  def add(self, index: int, address: str, cores: int = 1) -> None:
    """Records the address of a worker's new incarnation.

    Args:
      index: The worker.
      address: 'host:port' at which others reach it.
      cores: Cores that its process may use, beside others of its host.
    """
    self._cores[index] = cores
    before = self._addresses.get(index, address)
    moved = before.rpartition(':')[0] != address.rpartition(':')[0]
    self._failed.forget_losses(index, moved=moved)
    self._addresses[index] = address
    self._sources = [k for k in self._sources if k != index] or [self.local]
    self.mark_sound(index)

  def mark_lost(self, index: int, reason: str) -> None:
    """Records that a member is lost."""
    self._lost_members.setdefault(index, reason)

  def dismiss(self, index: int) -> bool:
    """Removes a member that wants to leave from the sources of state.

    Returns:
      Whether it may leave; False while only it has the newest version.
    """
    others = [k for k in self._sources if k != index]
    if not others:
      return False
    self._sources = others
    return True

  @property
  def sound(self) -> list[int]:
    """Members whose state is not known to be corrupt."""
    return [k for k in self.members if k not in self._corrupt]

  def mark_corrupt(self, index: int) -> None:
    """Excludes a member from the sources of state: its own is corrupt."""
    self._corrupt.add(index)

  def mark_sound(self, index: int) -> None:
    """Admits a member to the sources again: its state was replaced."""
    self._corrupt.discard(index)

  def find_sources(
    self, index: int, holders: Iterable[int]
  ) -> list[tuple[int, str]]:
    """Returns members from which another one can fetch its state.

    Members begin with different ones, so that those share the load.

    Args:
      index: The member that fetches.
      holders: Members that have the state.

    Returns:
      Ranks and addresses, `MAX_SOURCES` at most; [] if it can connect to none
      of them.
    """
    reachable = self._find_reachable(index, holders)
    first = index % max(len(reachable), 1)
    reachable = [*reachable[first:], *reachable[:first]]
    return [(k, self._addresses[k]) for k in reachable[:MAX_SOURCES]]

  def suspect(self, worker: int, peer: int | None) -> None:
    """Records that a worker has lost its connection to a peer.

    Args:
      worker: The worker that reports it.
      peer: The peer, which may be lost itself; None if unknown.
    """
    if peer is not None:
      self._failed.suspect(worker, peer)

  def admits(self, index: int) -> bool:
    """Returns whether a worker may be a member of the next epoch."""
    return self._failed.admits(index)

  @property
  def retry_reason(self) -> str:
    """Reason to end the epoch: a link or a forest to be tried; '' for none."""
    if self._has_better:
      return 'a forest has been packed for the members'
    pair = self._failed.due(self.members)
    if not pair:
      return ''
    return 'the link between workers {} and {} is tried again'.format(*pair)

  def mark_summed(self) -> None:
    """Records that an allreduce is complete: all links in use work."""
    self._failed.record_allreduce(self._find_used_links)

  def stop(self) -> bool:
    """Ends the epoch; returns False if that has been done before."""
    if self._phase in (_Phase.STOPPING, _Phase.ENDED):
      return False
    self.membership_epoch += 1
    self._answers.clear()
    self._phase = _Phase.STOPPING
    return True

  def add_stopped(
    self, index: int, version: int, statistics: Sequence[float]
  ) -> None:
    """Records that a member has stopped.

    Args:
      index: The member.
      version: Version of its learner.
      statistics: Step statistics of its last iteration.
    """
    self._answers[index] = version, statistics

  def find_newest(self) -> tuple[int, Sequence[float]] | None:
    """Returns the newest version of the living members once all have stopped.

    Returns:
      Version and step statistics of its last iteration, at the first call
      after the last answer; None at all other calls.

    Raises:
      Unmendable: If only corrupt replicas have that version.
    """
    living = self.living
    is_stopping = self._phase is _Phase.STOPPING
    if not is_stopping or {*living} - self._answers.keys():
      return None
    self._phase = _Phase.ENDED
    if not living:
      return -1, []
    newest = max(self._answers[index][0] for index in living)
    holders = [k for k in living if self._answers[k][0] == newest]
    self._sources = [k for k in holders if k not in self._corrupt]
    if not self._sources:
      raise Unmendable(
        f'Only corrupt replicas have version {newest}. All return to the '
        'newest checkpoint.'
      )
    return self._answers[self._sources[0]]

  def remove_lost(self) -> dict[int, str]:
    """Removes lost members, and returns them with the reasons."""
    self.members = tuple(self.living)
    lost, self._lost_members = self._lost_members, {}
    return lost

  def reset_to_first_epoch(self) -> None:
    """Goes back to the state before the first epoch, without members."""
    self.members = ()
    self._lost_members.clear()
    self._phase = _Phase.WAITING

  def take_over(self, membership_epoch: int, members: Iterable[int]) -> None:
    """Continues with the members of another coordinator's epoch, which ends.

    Args:
      membership_epoch: Number of that epoch.
      members: Its members; those that do not come have to be marked as lost.
    """
    self.membership_epoch, self.members = membership_epoch, tuple(members)
    self._phase = _Phase.RUNNING

  @property
  def answers(self) -> Mapping[int, int]:
    """Versions of the members that have stopped, by rank."""
    return {index: version for index, (version, _) in self._answers.items()}

  def form(
    self, members: Iterable[int], version: int
  ) -> list[tuple[int, ConnectMembers]]:
    """Begins an epoch; returns the message to each member.

    Args:
      members: At least one worker, ascending.
      version: Version that all members must have, or fetch from another one.

    Raises:
      Unreachable: If they cannot reach each other.
      Unmendable: If there is no forest of them.
    """
    members = tuple(members)
    self._has_better = False
    self._failed.settle(members)
    self.members, self.version = members, version
    self._lost_members.clear()
    self._digests.clear()
    self._phase = _Phase.CONNECTING
    if (failed := self._failed.failed_worker(members)) is not None:
      raise self._exclude(failed, 'has an executor that fails')
    forest = self._describe() if self.tolerates_loss else None
    sources = {index: self._assign_sources(index, version) for index in members}
    self.fetching = {index for index in members if sources[index]}
    return [
      (
        index,
        ConnectMembers(
          membership_epoch=self.membership_epoch,
          version=version,
          sources=sources[index],
          members=forest,
          drops_residual=version == self.restored and index != self.local,
        ),
      )
      for index in members
    ]

  def _find_reachable(self, index: int, holders: Iterable[int]) -> list[int]:
    """Returns those of some members to which another one can connect."""
    avoided = self._failed.avoided_pairs
    return [k for k in holders if (k, index) not in avoided]

  def _assign_sources(self, index: int, version: int) -> list[tuple[int, str]]:
    """Returns ranks and addresses of a member's sources; [] if it needs none.

    Raises:
      Unreachable: If it cannot connect to any member with the state.
    """
    # At version 0 each has initialised its own state, which may differ in its
    # last bits.
    sources = self._sources if version else self._sources[:1]
    if index in sources:
      return []
    found = self.find_sources(index, sources)
    if not (found or version):  # Digests show later whether it is equal.
      others = [k for k in self.members if k != index]
      found = self.find_sources(index, self._find_reachable(index, others)[:1])
    if not found:
      raise self._exclude(index if index != self.local else sources[0])
    return found

  def _describe(self) -> MemberForest:
    """Returns the members and their forest, after it was packed."""
    packed = self._find_forest()
    workers = packed.cluster.workers
    addresses = {index: self._addresses[index] for index in self.members}
    names = {workers[index]: index for index in self.members}
    lanes = self._lanes or dealing.lanes(
      packed.forest, cores=self._find_cores()
    )
    return membership.describe(
      Membership(self.membership_epoch, addresses, packed.forest, names, lanes),
      packed.links,
    )

  def _find_cores(self) -> int:
    """Returns the cores of each member, at least; those of a host share."""
    hosts = {k: self._addresses[k].rpartition(':')[0] for k in self.members}
    counts = collections.Counter(hosts.values())
    return min(self._cores[k] // counts[host] for k, host in hosts.items())

  def _find_forest(self) -> PackedForest:
    """Returns the forest of the members, a cached one if there is one.

    Raises:
      Unreachable: If they cannot reach each other.
      Unmendable: If there is no forest of them.
    """
    needed = self.members, self._failed.avoided_pairs
    cluster, current = self._cluster, self.packed
    is_same = (
      current is not None and (current.members, current.avoided_pairs) == needed
    )
    if current and is_same and current is not self._quick:
      return current
    if cluster is None:
      raise RuntimeError('Expected links to be known, got none.')
    key = *needed, cluster
    if packed := self._find_recent(key):
      self.packed = packed
      return packed
    if current and is_same:
      return current  # Another one is still being packed, or cannot be.
    try:
      links = self._prune(key)
    except ValueError as error:
      raise self._exclude_most_disconnected(error) from error
    is_large = self._planner is not None and len(self.members) >= FEWEST
    if is_large and self._is_planned_elsewhere(key):
      self._begin_packing(key, links)
    avoided = frozenset(self._name_pairs(key))
    try:
      if is_large:
        forest = self._find_quick(links, avoided)
      else:
        request = self._make_request(links, self._host_s, avoided)
        forest = build_forest(request)
    except (ValueError, TimeoutError) as error:
      raise Unmendable(f'There is no forest of the workers: {error}') from error
    self.packed = PackedForest(*key, links, forest)
    if is_large:
      self._quick = self.packed
    else:
      self._recent.append(self.packed)
    return self.packed

  def _find_recent(self, key: _Key) -> PackedForest | None:
    """Returns a forest of the cache; None for none."""
    for packed in self._recent:
      is_same = packed.cluster is key[2]
      if is_same and (packed.members, packed.avoided_pairs) == key[:2]:
        return packed
    return None

  def _prune(self, key: _Key) -> Cluster:
    """Returns the links that are left to some members.

    Raises:
      ValueError: If they cannot reach each other.
    """
    members, _, cluster = key
    present = {*members}
    absent = [w for k, w in enumerate(cluster.workers) if k not in present]
    return pruned.remove(cluster, workers=absent, pairs=self._name_pairs(key))

  def _name_pairs(self, key: _Key) -> list[tuple[str, str]]:
    workers = key[2].workers
    return [(workers[a], workers[b]) for a, b in sorted(key[1])]

  def _find_quick(
    self, links: Cluster, avoided: frozenset[tuple[str, str]]
  ) -> Forest:
    """Returns a forest in milliseconds: the last one, adapted, or two trees.

    Raises:
      ValueError: If there is none.
    """
    bound, current = selection.make_empty(links), self.packed
    if not (
      current
      and current.forest.trees
      and current.cluster.workers == (self._cluster or links).workers
    ):
      start = schemes.double_binary_tree(links, bound)
      return adapted.adapt_forest(start, links, bound, avoided)
    return adapted.adapt_forest(current.forest, links, bound, avoided)

  def add_connected(self, index: int, digest: str) -> bool:
    """Records that a member is connected; returns whether all are.

    Args:
      index: The member.
      digest: Digest of its state.
    """
    self._digests[index] = digest
    is_connecting = self._phase is _Phase.CONNECTING
    if not is_connecting or len(self._digests) < len(self.members):
      return False
    self._phase = _Phase.RUNNING
    return True

  @property
  def digests(self) -> Mapping[int, str]:
    """Digests of the states that members had when they had connected."""
    return self._digests

  @property
  def awaited(self) -> list[int]:
    """Living members that have yet to report: they have stopped, or connected.

    Empty in other phases.
    """
    if self._phase is _Phase.STOPPING:
      return [index for index in self.living if index not in self._answers]
    if self._phase is _Phase.CONNECTING:
      return [index for index in self.living if index not in self._digests]
    return []

  def _exclude_most_disconnected(self, error: Exception) -> Exception:
    """Excludes the member with the most lost connections; returns an error."""
    present = {*self.members}
    counts = collections.Counter(
      index
      for pair in self._failed.avoided_pairs
      for index in pair
      if index != self.local and present.issuperset(pair)
    )
    if not counts:
      return Unmendable(str(error))
    return self._exclude(counts.most_common(1)[0][0])

  def _exclude(self, worker: int, *reason: str) -> Unreachable:
    """Excludes a worker for some time; returns the error to raise."""
    self._failed.exclude(worker)
    return Unreachable(worker, *reason)

  def _find_used_links(self) -> list[tuple[int, int]]:
    """Returns the links of the current forest, and each member with itself."""
    links = [(index, index) for index in self.members]
    if self.packed:
      index_of = {name: k for k, name in enumerate(self.packed.cluster.workers)}
      for hop in compact.compress(self.packed.forest).hops:
        links.append((index_of[hop[0]], index_of[hop[-1]]))
    return links
