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
from cluster.virtual.transfers import Delivered, Left
from route.links import Links
from route.route import LATENCY_S, Forests
from topology import Cluster
from topology.baselines.moved import moved
from topology.clusters.pruned import without
from topology.forests import released
from topology.forests.dealing import window

_CHUNK = 32 * 1024  # Bytes of what one message carries.


class _Group(NamedTuple):
  """How those that live sum.

  Attributes:
    allreduce: Says when they are through.
    of_chunk: Int [chunks], the range of each.
  """

  allreduce: released.Allreduce
  of_chunk: np.ndarray


class Sums:
  """How long the sums of an iteration take, for any group of workers."""

  def __init__(
    self,
    links: Links,
    *,
    believed: Cluster | None,
    forest: Forests,
    ranges: Sequence[Range],
    overlap: bool,
  ):
    """Makes the forest of all workers.

    Args:
      links: The true ones.
      believed: Those that the forest is made for; None for the true ones.
      forest: Makes it.
      ranges: What a worker adds, as it becomes ready.
      overlap: Whether it travels before all is ready.

    Raises:
      ValueError: If there is no such forest over these links.
    """
    self._links = links
    self._believed, self._forest = believed, forest
    self._ready = np.array([each.ready for each in ranges])
    if not overlap:
      self._ready[:] = 1.0
    self._ranges = ranges
    self._group = functools.cache(self._made)
    self._group(tuple(range(len(links.cluster.workers))))

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

  def carried_bytes(self, members: Sequence[int]) -> int:
    """Returns the bytes that cross all hops in an iteration of these."""
    return self._group(tuple(sorted(members))).allreduce.carried_bytes

  def _made(self, members: tuple[int, ...]) -> _Group:
    true, latency_s = self._links
    left = _left(true, members)
    if self._believed is None:
      size = sum(each.bytes for each in self._ranges)
      own = {ends: latency_s[ends] for ends in left.capacity_Bps}
      forest = self._forest(left, size, own)
    else:
      believed = _left(self._believed, members)
      size = sum(each.bytes for each in self._ranges)
      forest = self._forest(believed, size, LATENCY_S)
      names = zip(believed.workers, left.workers, strict=True)
      forest = moved(forest, left, dict(names))
    sizes, of_chunk = [], []
    for number, each in enumerate(self._ranges):
      whole, rest = divmod(each.bytes, _CHUNK)
      chunks = [_CHUNK] * whole + ([rest] if rest else [])
      sizes += chunks
      of_chunk += [number] * len(chunks)
    ahead = window(forest, chunk_bytes=_CHUNK)
    allreduce = released.Allreduce(
      left,
      forest,
      sizes,
      latency_s=latency_s,
      ahead_bytes=ahead * _CHUNK,
    )
    return _Group(allreduce, np.array(of_chunk, int))


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
  """

  is_state = True  # Plain data: checkpoints hold it.

  started: dict[int, float] = dataclasses.field(default_factory=dict)
  computed: dict[int, float] = dataclasses.field(default_factory=dict)
  ends: float = math.inf


class Reduced:
  """Iterations that end with sums among all workers; used like `Whole`."""

  def __init__(self, sums: Sums):
    """Starts nothing yet."""
    self._sums = sums
    self._now = _UnderWay()

  def next_time(self) -> float:
    """Returns when pushes arrive next; inf if that is not known."""
    return self._now.ends

  def pull(self, time: float, index: int) -> Delivered:
    """Lets a worker compute: it has the parameters."""
    self._now.started[index] = time
    return Delivered(0, [index])

  def push(self, time: float, index: int) -> list[int]:
    """A worker has computed; returns who has waited for it, once all have."""
    now = self._now
    now.computed[index] = time
    if len(now.computed) < len(now.started):
      return []
    now.ends = self._sums.ends(now.started, now.computed)
    return sorted(now.started)

  def advance(self, time: float) -> Delivered:
    """Returns the pushes that arrive: those of all workers."""
    del time
    members = sorted(self._now.started)
    self._now = _UnderWay()
    return Delivered(self._sums.carried_bytes(members), members)

  def leave(self, time: float, index: int, *, lost: bool) -> Left:
    """Goes on without a worker that died; arguments are those of Whole."""
    del time, lost
    if index not in self._now.started:
      return Left()
    before, self._now = self._now, _UnderWay()
    waited = sorted(before.computed) if before.ends == math.inf else []
    return Left(waited, sorted(before.started.keys() - {index}))

  def state(self) -> _UnderWay:
    """Returns all that events change."""
    return self._now

  def restore(self, state: _UnderWay) -> None:
    """Goes back to where `state` was taken; it is its own from now on."""
    self._now = state
