"""Allreduces in the virtual runtime, as chunks over a forest.

Workers never pull: a released worker computes at once.  Its gradient becomes
ready bucket by bucket, and each bucket travels immediately.  Once all workers
have computed, the end of the allreduce is known; then all pushes arrive, and
the scheme releases all workers.

An iteration cannot end if a worker dies in it: the others compute it again, and
sum over a new forest of the living workers.
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cluster.speed.layers import Bucket
from cluster.traffic import Ends, Mark, Planned, Sent, Traffic, Window
from cluster.virtual.transfers import Delivered, Left
from route import links
from route.route import LATENCY_S, ForestBuilder
from topology import Cluster
from topology.baselines.transfer import transfer_forest
from topology.clusters.pruned import remove
from topology.forests import dealing, timing, usage
from topology.forests.dealing import window
from topology.forests.trees import Forest


class _Timing(NamedTuple):
  """Timing of the allreduce of a set of workers.

  Attributes:
    rounds: Timing of each round of the allreduce, in order, and the bucket of
      each of its chunks, int [chunks].
    planned: Forest as it was planned.
    carried: Traffic of each link in one iteration.
    added_s: Seconds in which the worker that adds the most adds each bucket,
      float [buckets], by round.
    last_s: Seconds in which the last chunk is added along the deepest tree.
  """

  rounds: Sequence[tuple[timing.AllreduceTiming, np.ndarray]]
  planned: Planned
  carried: Mapping[Ends, Sent]
  added_s: Sequence[np.ndarray]
  last_s: float


class Sums:
  """Durations of an iteration's allreduce, for any set of workers."""

  def __init__(
    self,
    true: links.Links,
    *,
    assumed: Cluster | None,
    forest: ForestBuilder,
    stages: Sequence[Sequence[Sequence[Bucket]]],
    overlap: bool,
    range_s: float,
    chunk_bytes: int | None = None,
    sum_Bps: float = math.inf,
  ):
    """Plans the forest of all workers.

    Args:
      true: True links of the cluster.
      assumed: Links for which the forest is planned; None for the true ones.
      forest: Function that plans a forest.
      stages: Buckets of a worker's contribution, by stage of the wire (or by
        fragment) and round of the allreduce, in the order in which they become
        ready: those of the first round while the worker computes, those of
        later rounds once the round before has ended.
      overlap: Whether a bucket travels before the gradient is complete.
      range_s: Seconds for which each bucket occupies links before its bytes go.
      chunk_bytes: Bytes of one message, at most; None for those of the
        executor.
      sum_Bps: Bytes per second that a worker adds.

    Raises:
      ValueError: If there is no such forest over these links.
    """
    self._true = true
    self._assumed, self._forest = assumed, forest
    self._ready = [
      np.array([each.ready if overlap else 1.0 for each in first])
      for first, *_ in stages
    ]
    self._copy_s = [
      np.array([each.copy_s for each in first]) for first, *_ in stages
    ]
    self._stages = stages
    self._range_s, self._chunk_bytes = range_s, chunk_bytes
    self._sum_Bps = sum_Bps
    self._forest_of = functools.cache(self._plan_forest)
    self._timing = functools.cache(self._time)
    for stage in range(len(stages)):
      self._timing(tuple(range(len(true.cluster.workers))), stage)

  def ends(
    self,
    started: Mapping[int, float],
    computed: Mapping[int, float],
    stage: int,
  ) -> float:
    """Returns the time at which all workers have all sums, seconds.

    Not before all have computed, even if sums of fragments end earlier.

    Args:
      started: Time at which each worker began to compute, seconds.
      computed: Time at which each worker had computed, seconds.
      stage: Stage of the wire, or number of the fragment.
    """
    members = tuple(sorted(started))
    timed = self._timing(members, stage)
    (first, of_chunk), *others = timed.rounds
    added_s, *added_later_s = timed.added_s
    ready, copy_s = self._ready[stage], self._copy_s[stage]
    start_s, stop_s = (
      np.array([times[index] for index in members])[:, None]
      for times in (started, computed)
    )
    # Exact at the end, where rounding would make it later than it is.
    ready_s = np.where(ready == 1, stop_s, start_s + (stop_s - start_s) * ready)
    end_s = first((ready_s + copy_s)[:, of_chunk])
    if math.isfinite(self._sum_Bps):
      # The worker that adds the most does so bucket by bucket.
      left_s = np.cumsum(added_s[::-1])[::-1]
      available_s = (ready_s + copy_s).max(axis=0)
      end_s = max(end_s, float((available_s + left_s).max())) + timed.last_s
    for (allreduce, of_chunk), bucket_s in zip(
      others, added_later_s, strict=True
    ):
      through_s = allreduce(np.full((len(members), len(of_chunk)), end_s))
      end_s = max(through_s, end_s + float(bucket_s.sum())) + timed.last_s
    return max(end_s, *computed.values())

  def plan_for(self, members: Sequence[int], stage: int) -> Planned:
    """Returns the forest of some workers, with the rates that it assumes."""
    return self._timing(tuple(sorted(members)), stage).planned

  def traffic_of(
    self, members: Sequence[int], stage: int
  ) -> Mapping[Ends, Sent]:
    """Returns the traffic of each link in an iteration of some workers."""
    return self._timing(tuple(sorted(members)), stage).carried

  def _plan_forest(
    self, members: tuple[int, ...]
  ) -> tuple[Planned, timing.AllreduceTiming, Mapping[tuple[str, str], float]]:
    """Returns a forest, the timing of an empty allreduce, and links' rates.

    The rates are bytes per second, by the names of the cluster's workers.
    """
    true, latency_s = self._true
    left = _find_links(true, members)
    # All stages use one forest: that of the last stage.
    size = sum(each.bytes for buckets in self._stages[-1] for each in buckets)
    if self._assumed is None:
      own = {ends: latency_s[ends] for ends in left.capacity_Bps}
      assumed, forest = left, self._forest(left, size, own)
      used = forest
    else:
      assumed = _find_links(self._assumed, members)
      forest = self._forest(assumed, size, LATENCY_S)
      pairs = zip(assumed.workers, left.workers, strict=True)
      used = transfer_forest(forest, left, dict(pairs))
    chunk_bytes = dealing.chunk_bytes(size, forest, fixed=self._chunk_bytes)
    round_trip_s = _round_trip_s(used, latency_s)
    chunks = window(used, chunk_bytes=chunk_bytes, round_trip_s=round_trip_s)
    ahead_bytes = chunks * chunk_bytes
    allreduce = timing.AllreduceTiming(
      left, used, [], latency_s=latency_s, ahead_bytes=ahead_bytes
    )
    names = dict(zip(assumed.workers, members, strict=True))
    known = self._assumed is not links.make_equal(len(true.workers))
    planned = Planned(assumed, forest, names, size, chunk_bytes, known)
    Bps = {
      ends: float(each) for ends, each in usage.rates_between(used).items()
    }
    return planned, allreduce, Bps

  def _time(self, members: tuple[int, ...], stage: int) -> _Timing:
    """Returns the timing of some workers in a stage of the wire."""
    planned, allreduce, Bps = self._forest_of(members)
    load, depth = _sum_load(planned.forest)
    rounds, added_s, last_s = [], [], 0.0
    for buckets in self._stages[stage]:
      sent_bytes = sum(each.bytes for each in buckets)
      chunk_bytes = dealing.chunk_bytes(
        sent_bytes, planned.forest, fixed=self._chunk_bytes
      )
      sizes, of_chunk = _chunks(buckets, chunk_bytes)
      begins = np.diff(of_chunk, prepend=-1) > 0
      through = allreduce.with_chunks(sizes, begin_s=self._range_s * begins)
      rounds.append((through, of_chunk))
      sent = np.array([each.bytes for each in buckets])
      added_s.append(load * sent / self._sum_Bps)
      last_s = max(last_s, depth * max(sizes, default=0) / self._sum_Bps)
    left = _find_links(self._true.cluster, members).workers
    index_of = dict(zip(left, members, strict=True))
    total = collections.Counter[tuple[str, str]]()
    for each, _ in rounds:
      total.update(each.carried)
    carried = {
      (index_of[src], index_of[dst]): Sent(many, many / Bps[src, dst])
      for (src, dst), many in total.items()
    }
    return _Timing(rounds, planned, carried, added_s, last_s)


def _sum_load(forest: Forest) -> tuple[float, int]:
  """Returns the load of sums of a forest.

  Returns:
    Bytes that the busiest worker adds, over the bytes of the allreduce, and the
    depth of the deepest tree.
  """
  added: dict[str, float] = collections.defaultdict(float)
  depth = 0
  for tree in forest.trees:
    for hop in tree.up:
      added[hop[-1]] += float(tree.share)
    depth = max(depth, tree.depth)
  return max(added.values(), default=0.0), depth


def _round_trip_s(
  forest: Forest, latency_s: Mapping[tuple[str, str], float]
) -> float:
  """Returns the latency of the way up and down the deepest tree, seconds."""
  longest_s = max(
    (
      sum(latency_s[ends] for ends in itertools.pairwise(hop))
      for tree in forest.trees
      for hop in (*tree.up, *tree.down)
    ),
    default=0.0,
  )
  return 2 * longest_s * max((tree.depth for tree in forest.trees), default=0)


def _chunks(
  buckets: Sequence[Bucket], chunk_bytes: int
) -> tuple[list[int], np.ndarray]:
  """Returns the bytes of each chunk, and its bucket, int [chunks]."""
  sizes, of_chunk = [], []
  for number, each in enumerate(buckets):
    whole, rest = divmod(each.bytes, chunk_bytes)
    chunks = [chunk_bytes] * whole + ([rest] if rest else [])
    sizes += chunks
    of_chunk += [number] * len(chunks)
  return sizes, np.array(of_chunk, int)


def _find_links(cluster: Cluster, members: Sequence[int]) -> Cluster:
  """Returns the links between some workers, without those of others."""
  living = {cluster.workers[index] for index in members}
  absent = [worker for worker in cluster.workers if worker not in living]
  return remove(cluster, workers=absent) if absent else cluster


@dataclasses.dataclass
class _Iteration:
  """An iteration under way, of all released workers.

  Attributes:
    started: Time at which each worker began to compute, seconds.
    computed: Time at which each worker had computed, seconds.
    ends: Time at which all workers have all sums; inf until it is known.
    begun: Moment at which the first worker began.
  """

  is_state = True  # Plain data: checkpoints hold it.

  started: dict[int, float] = dataclasses.field(default_factory=dict)
  computed: dict[int, float] = dataclasses.field(default_factory=dict)
  ends: float = math.inf
  begun: Mark | None = None


@dataclasses.dataclass
class _TransferState:
  """State of the transfers, which events change.

  Attributes:
    now: Iteration under way.
    sums: Number of completed iterations.
    recorded: The same number at the newest traffic row.
    recent: Number of iterations since then, by stage.
    membership_epoch: Number of the current membership epoch; -1 before the
      first.
    members: Workers of the current set, or of the newest one.
    stage: Stage of the wire, or fragment, of the newest iteration.
    window: Window of the next traffic row.
  """

  is_state = True  # Plain data: checkpoints hold it.

  now: _Iteration = dataclasses.field(default_factory=_Iteration)
  sums: int = 0
  recorded: int = 0
  recent: dict[int, int] = dataclasses.field(default_factory=dict)
  membership_epoch: int = -1
  members: tuple[int, ...] = ()
  stage: int = 0
  window: Window | None = None


class AllreduceTransfers:
  """Transfers of iterations that end with an allreduce: see `Whole`."""

  def __init__(self, sums: Sums, traffic: Traffic, *, fragments: int = 1):
    """Creates transfers without an iteration.

    Args:
      sums: Durations of allreduces.
      traffic: Recorder of what links carry.
      fragments: Number of fragments, which iterations sum in turn; if there are
        several, the durations are by fragment.
    """
    self._sums, self._traffic = sums, traffic
    self._fragments = fragments
    self._state = _TransferState()

  def next_time(self) -> float:
    """Returns the time of the next arrivals, seconds; inf if unknown."""
    return self._state.now.ends

  def pull(self, time: float, index: int) -> Delivered:
    """Lets a worker compute at once, as it has the parameters."""
    now = self._state.now
    now.begun = now.begun or self._traffic.mark(time)
    now.started[index] = time
    return Delivered(0, [index])

  def push(self, time: float, index: int, stage: int) -> list[int]:
    """Records that a worker has computed its gradient.

    Returns:
      All workers of the iteration, whose sums remain, once the last of them has
      computed; none before.
    """
    now = self._state.now
    now.computed[index] = time
    if len(now.computed) < len(now.started):
      return []
    members = tuple(sorted(now.started))
    begun = now.begun or self._traffic.mark(time)
    if self._fragments > 1:
      self._state.stage = self._state.sums % self._fragments
    elif stage != self._state.stage:
      if self._state.sums > self._state.recorded:
        self._record(begun, 'a stage of the wire begins')
      self._state.stage = stage
    if members != self._state.members:
      self._form(begun, members)
    now.ends = self._sums.ends(now.started, now.computed, self._state.stage)
    return [*members]

  def advance(self, time: float) -> Delivered:
    """Returns the arrival of all workers' pushes."""
    del time
    state = self._state
    state.now = _Iteration()
    state.sums += 1
    state.recent[state.stage] = state.recent.get(state.stage, 0) + 1
    carried = self._sums.traffic_of(state.members, state.stage)
    return Delivered(
      sum(each.bytes for each in carried.values()), [*state.members]
    )

  def leave(self, time: float, index: int, *, lost: bool) -> Left:
    """Continues without a worker that died; arguments are those of Whole."""
    del time, lost
    before = self._state.now
    if index not in before.started:
      return Left()
    self._state.now = _Iteration()
    waiting = sorted(before.computed) if before.ends == math.inf else []
    return Left(waiting, sorted(before.started.keys() - {index}))

  def record_evaluation(self, time: float) -> None:
    """Records what links have carried when an evaluation becomes due."""
    self._record(self._traffic.mark(time), 'an evaluation is due')

  def state(self) -> _TransferState:
    """Returns the state for a checkpoint."""
    return dataclasses.replace(self._state, window=self._traffic.window)

  def restore(self, state: _TransferState) -> None:
    """Continues from the state of a checkpoint, which it takes over."""
    self._state, self._traffic.window = state, state.window

  def _form(self, at: Mark, members: tuple[int, ...]) -> None:
    """Begins a membership epoch, and records its forest."""
    state = self._state
    if state.sums > state.recorded:
      self._record(at, 'others sum')
    why = 'others sum' if state.members else 'all sum'
    state.members = members
    state.membership_epoch += 1
    self._traffic.record_epoch(
      at,
      version=state.sums,
      why=why,
      membership_epoch=state.membership_epoch,
      members=members,
      planned=self._sums.plan_for(members, state.stage),
    )

  def _record(self, at: Mark, why: str) -> None:
    """Records what links have carried since the last traffic row."""
    state = self._state
    state.recent, recent = {}, state.recent or {state.stage: 0}
    state.recorded = state.sums
    sent: dict[Ends, Sent] = {}
    for stage in sorted(recent):
      carried = self._sums.traffic_of(state.members, stage)
      for ends, each in carried.items():
        before = sent.get(ends, Sent(0, 0.0))
        sent[ends] = Sent(
          before.bytes + recent[stage] * each.bytes,
          before.busy_s + recent[stage] * each.busy_s,
        )
    self._traffic.record_traffic(
      at,
      version=state.sums,
      why=why,
      sent=sent,
    )
