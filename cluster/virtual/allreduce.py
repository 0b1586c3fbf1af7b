"""Sums among workers in the virtual runtime, as chunks over a forest.

Nobody pulls: who is released computes.  A worker's numbers become ready range
by range, and travel at once; when all have computed it is known when all sums
are everywhere.  Then all pushes arrive, and the scheme releases all workers.

A worker that dies leaves an iteration that nobody can finish: the others
compute it again, and sum over a forest that is made for those that live.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cluster.speed.layers import Range
from cluster.traffic import Ends, Mark, Planned, Sent, Traffic, Window
from cluster.virtual.transfers import Delivered, Left
from route import links
from route.route import LATENCY_S, Forests
from topology import Cluster
from topology.baselines.moved import moved
from topology.clusters.pruned import without
from topology.forests import dealing, timing, usage
from topology.forests.dealing import window


class _Group(NamedTuple):
  """How those that live sum.

  Attributes:
    rounds: Say, one after the other, when they are through; with each goes the
      range of each chunk, int [chunks].
    planned: The forest, as it was made.
    carried: Of each link what an iteration sends over it, and for how long.
  """

  rounds: Sequence[tuple[timing.AllreduceTiming, np.ndarray]]
  planned: Planned
  carried: Mapping[Ends, Sent]


class Sums:
  """How long the sums of an iteration take, for any group of workers."""

  def __init__(
    self,
    true: links.Links,
    *,
    believed: Cluster | None,
    forest: Forests,
    stages: Sequence[Sequence[Sequence[Range]]],
    overlap: bool,
    range_s: float,
    chunk_bytes: int,
  ):
    """Makes the forest of all workers.

    Args:
      true: The true links.
      believed: Those that the forest is made for; None for the true ones.
      forest: Makes it.
      stages: What a worker adds, by the stage of the wire, round after round
        of a conversation, as it becomes ready: of the first round while it
        computes, of others once all has been heard of the round before.
      overlap: Whether it travels before all is ready.
      range_s: Seconds for which each range holds links up before its bytes go.
      chunk_bytes: Of what one message carries.

    Raises:
      ValueError: If there is no such forest over these links.
    """
    self._true = true
    self._believed, self._forest = believed, forest
    self._ready = [
      np.array([each.ready if overlap else 1.0 for each in first])
      for first, *_ in stages
    ]
    self._copy_s = [
      np.array([each.copy_s for each in first]) for first, *_ in stages
    ]
    self._stages = stages
    self._range_s, self._chunk_bytes = range_s, chunk_bytes
    self._over = functools.cache(self._formed)
    self._group = functools.cache(self._made)
    for stage in range(len(stages)):
      self._group(tuple(range(len(true.cluster.workers))), stage)

  def ends(
    self,
    started: Mapping[int, float],
    computed: Mapping[int, float],
    stage: int,
  ) -> float:
    """Returns when all sums are everywhere.

    Args:
      started: By worker of an iteration, when it began to compute.
      computed: By worker, when it had; seconds.
      stage: Of the wire.
    """
    members = tuple(sorted(started))
    (first, of_chunk), *others = self._group(members, stage).rounds
    ready, copy_s = self._ready[stage], self._copy_s[stage]
    start_s, stop_s = (
      np.array([times[index] for index in members])[:, None]
      for times in (started, computed)
    )
    # Exact at the end, where rounding would make it later than it is.
    ready_s = np.where(ready == 1, stop_s, start_s + (stop_s - start_s) * ready)
    end_s = first((ready_s + copy_s)[:, of_chunk])
    for allreduce, of_chunk in others:
      end_s = allreduce(np.full((len(members), len(of_chunk)), end_s))
    return end_s

  def planned(self, members: Sequence[int], stage: int) -> Planned:
    """Returns over what these sum."""
    return self._group(tuple(sorted(members)), stage).planned

  def carried(self, members: Sequence[int], stage: int) -> Mapping[Ends, Sent]:
    """Returns what each link carries in an iteration of these."""
    return self._group(tuple(sorted(members)), stage).carried

  def _formed(
    self, members: tuple[int, ...]
  ) -> tuple[Planned, timing.AllreduceTiming, Mapping[Ends, float]]:
    """Returns a forest, an allreduce of nothing over it, and rates by index."""
    true, latency_s = self._true
    left = _left(true, members)
    # All stages sum over the same forest: that for what travels in the end.
    size = sum(each.bytes for ranges in self._stages[-1] for each in ranges)
    if self._believed is None:
      own = {ends: latency_s[ends] for ends in left.capacity_Bps}
      believed, forest = left, self._forest(left, size, own)
      used = forest
    else:
      believed = _left(self._believed, members)
      forest = self._forest(believed, size, LATENCY_S)
      names = zip(believed.workers, left.workers, strict=True)
      used = moved(forest, left, dict(names))
    chunk_bytes = self._chunk_bytes
    ahead_bytes = window(used, chunk_bytes=chunk_bytes) * chunk_bytes
    allreduce = timing.AllreduceTiming(
      left, used, [], latency_s=latency_s, ahead_bytes=ahead_bytes
    )
    names = dict(zip(believed.workers, members, strict=True))
    known = self._believed is not links.equal(len(true.workers))
    planned = Planned(believed, forest, names, size, chunk_bytes, known)
    Bps = {ends: float(each) for ends, each in usage.between(used).items()}
    return planned, allreduce, Bps

  def _made(self, members: tuple[int, ...], stage: int) -> _Group:
    planned, allreduce, Bps = self._over(members)
    rounds = []
    for ranges in self._stages[stage]:
      chunk_bytes = dealing.chunk_bytes(
        sum(each.bytes for each in ranges),
        [float(tree.share) for tree in planned.forest.trees],
        most=self._chunk_bytes,
      )
      sizes, of_chunk = _chunks(ranges, chunk_bytes)
      begins = np.diff(of_chunk, prepend=-1) > 0
      through = allreduce.with_chunks(sizes, begin_s=self._range_s * begins)
      rounds.append((through, of_chunk))
    left = _left(self._true.cluster, members).workers
    there = dict(zip(left, members, strict=True))
    total = collections.Counter[tuple[str, str]]()
    for each, _ in rounds:
      total.update(each.carried)
    carried = {
      (there[src], there[dst]): Sent(many, many / Bps[src, dst])
      for (src, dst), many in total.items()
    }
    return _Group(rounds, planned, carried)


def _chunks(
  ranges: Sequence[Range], chunk_bytes: int
) -> tuple[list[int], np.ndarray]:
  """Returns the bytes of chunks, and the range of each."""
  sizes, of_chunk = [], []
  for number, each in enumerate(ranges):
    whole, rest = divmod(each.bytes, chunk_bytes)
    chunks = [chunk_bytes] * whole + ([rest] if rest else [])
    sizes += chunks
    of_chunk += [number] * len(chunks)
  return sizes, np.array(of_chunk, int)


def _left(cluster: Cluster, members: Sequence[int]) -> Cluster:
  """The links of those that live."""
  living = {cluster.workers[index] for index in members}
  gone = [worker for worker in cluster.workers if worker not in living]
  return without(cluster, workers=gone) if gone else cluster


@dataclasses.dataclass
class _UnderWay:
  """An iteration of all workers that were released.

  Attributes:
    started: By worker, when it began to compute.
    computed: By worker, when it had.
    ends: When all sums are everywhere; inf until it is known.
    begun: When the first of them began.
  """

  is_state = True  # Plain data: checkpoints hold it.

  started: dict[int, float] = dataclasses.field(default_factory=dict)
  computed: dict[int, float] = dataclasses.field(default_factory=dict)
  ends: float = math.inf
  begun: Mark | None = None


@dataclasses.dataclass
class _State:
  """What events change.

  Attributes:
    now: The iteration that is under way.
    sums: How many have been summed.
    told: The same, when links were told of last.
    generation: How many groups have summed, less one.
    members: The group that sums, or summed last.
    stage: Of the wire, likewise.
    window: Of the rows on links.
  """

  is_state = True  # Plain data: checkpoints hold it.

  now: _UnderWay = dataclasses.field(default_factory=_UnderWay)
  sums: int = 0
  told: int = 0
  generation: int = -1
  members: tuple[int, ...] = ()
  stage: int = 0
  window: Window | None = None


class AllreduceTransfers:
  """Iterations that end with sums among all workers; used like `Whole`."""

  def __init__(self, sums: Sums, traffic: Traffic):
    """Starts nothing yet.

    Args:
      sums: How long they take.
      traffic: Is told of links.
    """
    self._sums, self._traffic = sums, traffic
    self._state = _State()

  def next_time(self) -> float:
    """Returns when pushes arrive next; inf if that is not known."""
    return self._state.now.ends

  def pull(self, time: float, index: int) -> Delivered:
    """Lets a worker compute: it has the parameters."""
    now = self._state.now
    now.begun = now.begun or self._traffic.mark(time)
    now.started[index] = time
    return Delivered(0, [index])

  def push(self, time: float, index: int, stage: int) -> list[int]:
    """Takes in that a worker has computed.

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
    if stage != self._state.stage:
      if self._state.sums > self._state.told:
        self._tell(begun, 'a stage of the wire begins')
      self._state.stage = stage
    if members != self._state.members:
      self._form(begun, members)
    now.ends = self._sums.ends(now.started, now.computed, stage)
    return [*members]

  def advance(self, time: float) -> Delivered:
    """Returns the pushes that arrive: those of all workers."""
    del time
    state = self._state
    state.now = _UnderWay()
    state.sums += 1
    carried = self._sums.carried(state.members, state.stage)
    return Delivered(
      sum(each.bytes for each in carried.values()), [*state.members]
    )

  def leave(self, time: float, index: int, *, lost: bool) -> Left:
    """Goes on without a worker that died; arguments are those of Whole."""
    del time, lost
    before = self._state.now
    if index not in before.started:
      return Left()
    self._state.now = _UnderWay()
    waiting = sorted(before.computed) if before.ends == math.inf else []
    return Left(waiting, sorted(before.started.keys() - {index}))

  def record_evaluation(self, time: float) -> None:
    """Records what links have carried when an evaluation becomes due."""
    self._tell(self._traffic.mark(time), 'an evaluation is due')

  def state(self) -> _State:
    """Returns all that events change."""
    return dataclasses.replace(self._state, window=self._traffic.window)

  def restore(self, state: _State) -> None:
    """Goes back to where `state` was taken; it is its own from now on."""
    self._state, self._traffic.window = state, state.window

  def _form(self, at: Mark, members: tuple[int, ...]) -> None:
    """Others sum from now on."""
    state = self._state
    if state.sums > state.told:
      self._tell(at, 'others sum')
    why = 'others sum' if state.members else 'all sum'
    state.members = members
    state.generation += 1
    self._traffic.formed(
      at,
      version=state.sums,
      why=why,
      generation=state.generation,
      members=members,
      planned=self._sums.planned(members, state.stage),
    )

  def _tell(self, at: Mark, why: str) -> None:
    """Tells of what links have carried since the last time."""
    state = self._state
    count, state.told = state.sums - state.told, state.sums
    carried = self._sums.carried(state.members, state.stage)
    self._traffic.carried(
      at,
      version=state.sums,
      why=why,
      sent={
        ends: Sent(count * each.bytes, count * each.busy_s)
        for ends, each in carried.items()
      },
    )
