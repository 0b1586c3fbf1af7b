"""Sums among workers in the virtual runtime, as chunks over a forest.

Nobody pulls: who is released computes.  A worker's numbers become ready range
by range, and travel at once; when all have computed it is known when all sums
are everywhere.  Then all pushes arrive, and the scheme releases all workers.

A worker that dies leaves an iteration that nobody can finish: the others
compute it again, and sum over a forest that is made for those that live.
"""

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
from topology.forests import released, usage
from topology.forests.dealing import window

_CHUNK = 32 * 1024  # Bytes of what one message carries.


class _Group(NamedTuple):
  """How those that live sum.

  Attributes:
    allreduce: Says when they are through.
    of_chunk: Int [chunks], the range of each.
    planned: The forest, as it was made.
    carried: Of each link what an iteration sends over it, and for how long.
  """

  allreduce: released.Allreduce
  of_chunk: np.ndarray
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
    ranges: Sequence[Range],
    overlap: bool,
  ):
    """Makes the forest of all workers.

    Args:
      true: The true links.
      believed: Those that the forest is made for; None for the true ones.
      forest: Makes it.
      ranges: What a worker adds, as it becomes ready.
      overlap: Whether it travels before all is ready.

    Raises:
      ValueError: If there is no such forest over these links.
    """
    self._true = true
    self._believed, self._forest = believed, forest
    self._ready = np.array([each.ready for each in ranges])
    if not overlap:
      self._ready[:] = 1.0
    self._ranges = ranges
    self._group = functools.cache(self._made)
    self._group(tuple(range(len(true.cluster.workers))))

  def ends(
    self, started: Mapping[int, float], computed: Mapping[int, float]
  ) -> float:
    """Returns when all sums are everywhere.

    Args:
      started: By worker of an iteration, when it began to compute.
      computed: By worker, when it had; seconds.
    """
    members = tuple(sorted(started))
    group = self._group(members)
    start_s, stop_s = (
      np.array([times[index] for index in members])[:, None]
      for times in (started, computed)
    )
    # Exact at the end, where rounding would make it later than it is.
    ready_s = np.where(
      self._ready == 1, stop_s, start_s + (stop_s - start_s) * self._ready
    )
    return group.allreduce(ready_s[:, group.of_chunk])

  def planned(self, members: Sequence[int]) -> Planned:
    """Returns over what these sum."""
    return self._group(tuple(sorted(members))).planned

  def carried(self, members: Sequence[int]) -> Mapping[Ends, Sent]:
    """Returns what each link carries in an iteration of these."""
    return self._group(tuple(sorted(members))).carried

  def _made(self, members: tuple[int, ...]) -> _Group:
    true, latency_s = self._true
    left = _left(true, members)
    size = sum(each.bytes for each in self._ranges)
    if self._believed is None:
      own = {ends: latency_s[ends] for ends in left.capacity_Bps}
      believed, forest = left, self._forest(left, size, own)
      used = forest
    else:
      believed = _left(self._believed, members)
      forest = self._forest(believed, size, LATENCY_S)
      names = zip(believed.workers, left.workers, strict=True)
      used = moved(forest, left, dict(names))
    sizes, of_chunk = [], []
    for number, each in enumerate(self._ranges):
      whole, rest = divmod(each.bytes, _CHUNK)
      chunks = [_CHUNK] * whole + ([rest] if rest else [])
      sizes += chunks
      of_chunk += [number] * len(chunks)
    ahead = window(used, chunk_bytes=_CHUNK)
    allreduce = released.Allreduce(
      left,
      used,
      sizes,
      latency_s=latency_s,
      ahead_bytes=ahead * _CHUNK,
    )
    names = dict(zip(believed.workers, members, strict=True))
    known = self._believed is not links.equal(len(true.workers))
    planned = Planned(believed, forest, names, size, _CHUNK, known)
    there, Bps = (
      dict(zip(left.workers, members, strict=True)),
      usage.between(used),
    )
    carried = {
      (there[src], there[dst]): Sent(many, many / float(Bps[src, dst]))
      for (src, dst), many in allreduce.carried.items()
    }
    return _Group(allreduce, np.array(of_chunk, int), planned, carried)


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
    window: Of the rows on links.
  """

  is_state = True  # Plain data: checkpoints hold it.

  now: _UnderWay = dataclasses.field(default_factory=_UnderWay)
  sums: int = 0
  told: int = 0
  generation: int = -1
  members: tuple[int, ...] = ()
  window: Window | None = None


class Reduced:
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
    """A worker has computed; returns who has waited for it, once all have."""
    del stage  # Of the wire: all travels, so far.
    now = self._state.now
    now.computed[index] = time
    if len(now.computed) < len(now.started):
      return []
    members = tuple(sorted(now.started))
    if members != self._state.members:
      self._form(now.begun or self._traffic.mark(time), members)
    now.ends = self._sums.ends(now.started, now.computed)
    return [*members]

  def advance(self, time: float) -> Delivered:
    """Returns the pushes that arrive: those of all workers."""
    del time
    state = self._state
    state.now = _UnderWay()
    state.sums += 1
    carried = self._sums.carried(state.members)
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
    waited = sorted(before.computed) if before.ends == math.inf else []
    return Left(waited, sorted(before.started.keys() - {index}))

  def looked(self, time: float) -> None:
    """An evaluation is due."""
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
      planned=self._sums.planned(members),
    )

  def _tell(self, at: Mark, why: str) -> None:
    """Tells of what links have carried since the last time."""
    state = self._state
    count, state.told = state.sums - state.told, state.sums
    carried = self._sums.carried(state.members)
    self._traffic.carried(
      at,
      version=state.sums,
      why=why,
      sent={
        ends: Sent(count * each.bytes, count * each.busy_s)
        for ends, each in carried.items()
      },
    )
