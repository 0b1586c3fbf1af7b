"""Fluid model of a network: hosts whose flows share links.

Flows divide links max-min fairly (Bertsekas and Gallager, 1992, section 6.5.2).
The flows that one link limits all run at its level.  A counter of the service
that each of them has had, the virtual time of fair queueing (Parekh and
Gallager, 1993), orders them by their ends.  Flows have weights: at one link
twice the weight gets twice the rate.
"""

import bisect
import dataclasses
import heapq
import math
from collections.abc import Collection, Sequence

import numpy as np

from cluster.virtual.flows import Flow, Link
from configs import declared

# Weights are multiples of it: so their sums are exact in any order.
_WEIGHT_UNIT = 2.0**-16


@dataclasses.dataclass(init=False, eq=False, repr=False)
class Network:
  """Hosts 0 to H - 1, each with an up link, a down link and a latency.

  A flow crosses the up link of its source and the down link of its destination
  and arrives the latencies of both hosts after it has drained; latency holds
  no link.  A flow inside one host crosses nothing and arrives at once.

  A link that has not been full may let some bytes pass at once, as the token
  buckets of shapers do: the next flow has them less to send.

  Times, seconds, never go back: one before the last, or after `next_time()`, is
  a ValueError.  The starts and cancels of one instant cost one sharing of the
  links, in one of two ways that give the same rates:

  - While every flow has a link to itself, links are pools of flows with caps:
    O(log k) per start or drain of k flows, and per flow moved past its cap.
  - Otherwise all links are filled, lowest level first, in O(F + P log A) for A
    saturated links of which P pairs share F flows.

  Equal calls give equal times to the last bit.
  """

  is_state = True  # Plain data: checkpoints hold it.

  _latency_s: list[float]
  _burst: float
  _links: list[Link]  # Host h's: h up, H + h down.
  _finite: list[bool]
  _now: float  # Seconds.
  _started: int  # Flows up to now.
  _flows: dict[int, Flow]  # Those that have not drained.
  _arrivals: list[tuple[float, int]]  # (time, flow), ordered.
  _drains: list[tuple[float, int]]  # (time, link), ordered.
  _dirty: dict[int, None]  # Links whose flows or groups changed.
  _pooled: bool  # Whether each flow is in the pool where it belongs.
  _order: list[tuple[float, int]]  # (share, link); empty if pooled.

  def __init__(
    self,
    *,
    up_Bps: Sequence[float],
    down_Bps: Sequence[float],
    latency_s: Sequence[float],
    burst_bytes: float = 0.0,
  ) -> None:
    """Starts at time 0, without flows.

    Args:
      up_Bps: Float [H], bytes per second that each host can send, inf too.
      down_Bps: The same that each host can receive.
      latency_s: Float [H], seconds that each host adds, one way.
      burst_bytes: Most bytes that a link lets pass at once after a pause.

    Raises:
      ValueError: If lengths differ or a value is out of range.
    """
    hosts = len(up_Bps)
    up = _vector('up_Bps', up_Bps, hosts, finite=False)
    down = _vector('down_Bps', down_Bps, hosts, finite=False)
    self._latency_s = _vector('latency_s', latency_s, hosts, finite=True)
    declared.check('cluster.network', burst_bytes=burst_bytes)
    self._burst = float(burst_bytes)
    self._links = [Link(c, self._burst) for c in up + down]
    self._finite = [capacity < math.inf for capacity in up + down]
    self._now, self._started = 0.0, 0
    self._flows, self._dirty = {}, {}
    self._arrivals, self._drains = [], []
    self._pooled, self._order = True, []

  def start(
    self,
    time: float,
    src: int,
    dst: int,
    size_bytes: float,
    weight: float = 1.0,
    *,
    lands: bool = True,
  ) -> int:
    """Starts a flow and returns its id, which is larger than all before.

    Args:
      time: Seconds.
      src: Host that sends.
      dst: Host that receives.
      size_bytes: Bytes to send; may be 0.
      weight: Share of a link, over that of a flow of weight 1; rounded to a
        multiple of 2^-16.
      lands: Whether it arrives after the latency of both hosts, or as soon as
        it has drained, so that the caller adds `latency_s`.

    Raises:
      ValueError: If an argument is out of its range.
    """
    hosts = len(self._latency_s)
    if not (0 <= src < hosts and 0 <= dst < hosts):
      raise ValueError(f'src, dst: expected hosts < {hosts}, got {src}, {dst}.')
    if not 0 <= size_bytes < math.inf:
      raise ValueError(f'size_bytes: expected finite, >= 0, got {size_bytes}.')
    if not 0 < weight < math.inf:
      raise ValueError(f'weight: expected finite, > 0, got {weight}.')
    self._move(time)
    flow, self._started = self._started, self._started + 1
    latency = self.latency_s(src, dst) if lands else 0.0
    ends = self._ends(src, hosts + dst) if src != dst else []
    left = self._burst_through(ends, float(size_bytes))
    if ends and left:
      units = max(1, round(weight / _WEIGHT_UNIT))
      self._flows[flow] = Flow(ends, latency, left, units * _WEIGHT_UNIT)
      self._join(flow)
    else:
      bisect.insort(self._arrivals, (self._now + latency, flow))
    return flow

  def latency_s(self, src: int, dst: int) -> float:
    """Returns the seconds from a flow's drain to its arrival."""
    return self._latency_s[src] + self._latency_s[dst] if src != dst else 0.0

  def cancel(self, time: float, flow: int) -> None:
    """Cancels a flow that has not arrived yet.

    Args:
      time: Seconds.
      flow: Id of the flow; it may have drained.

    Raises:
      ValueError: If no such flow is in flight.
    """
    self._move(time)
    landing = [item for item in self._arrivals if item[1] == flow]
    if flow in self._flows:
      self._part(flow)
    elif landing:
      self._arrivals.remove(landing[0])
    else:
      raise ValueError(f'flow: expected one that is in flight, got {flow}.')

  def next_time(self) -> float:
    """Returns the time of the next drain or arrival; inf without flows."""
    if self._dirty:
      self._share()
    due = self._drains[0][0] if self._drains else math.inf
    return min(due, self._arrivals[0][0]) if self._arrivals else due

  def advance(self, time: float) -> list[int]:
    """Moves to `time` and returns the flows that have arrived, by id."""
    if self._dirty and time == self._now:
      self._share()
    self._move(time)
    arrivals = self._arrivals
    if not arrivals or arrivals[0][0] > self._now:
      return []
    count = bisect.bisect(arrivals, (self._now, self._started))
    arrived = sorted(flow for _, flow in arrivals[:count])
    del arrivals[:count]
    return arrived

  def _ends(self, up: int, down: int) -> list[tuple[int, int]]:
    """Returns each finite link of two, and the other one, or itself."""
    if not self._finite[up]:
      return [(down, down)] if self._finite[down] else []
    return [(up, down), (down, up)] if self._finite[down] else [(up, up)]

  def _burst_through(
    self, ends: Sequence[tuple[int, int]], size_bytes: float
  ) -> float:
    """Lets bytes of a flow pass its links at once; returns those left."""
    if not self._burst or not ends:
      return size_bytes
    links = [self._links[end] for end, _ in ends]
    for link in links:
      link.refill(self._now, self._burst)
    passed = min(size_bytes, *(link.spare for link in links))
    for link in links:
      link.spare -= passed
    return size_bytes - passed

  def _move(self, time: float) -> None:
    if time != self._now:
      last = self.next_time()  # Which shares links, if that is due.
      if not self._now < time <= last or time == math.inf:
        raise ValueError(f'time: expected {self._now} to {last}, got {time}.')
      self._now = float(time)
    while self._drains and self._drains[0][0] <= self._now:
      link = self._links[self._drains.pop(0)[1]]
      # Set, not added up: nothing may be left of what was to drain by now.
      link.due, link.served, link.stamp = math.inf, link.queue[0][0], self._now
      while link.queue and link.drain_time() <= self._now:
        flow = link.queue[0][1]
        arrival = self._now + self._flows[flow].latency
        bisect.insort(self._arrivals, (arrival, flow))
        self._part(flow)

  def _join(self, flow: int) -> None:
    moved, state = [flow], self._flows[flow]
    for end, other in state.ends:
      link = self._links[end]
      link.flows.setdefault(other, {})[flow] = state.weight
      link.count += 1
      link.weight += state.weight
      self._dirty[end] = None
      if link.count == 2:
        # The flow that had this link to itself may be pooled at its other one.
        moved += [each for flows in link.flows.values() for each in flows]
    if self._pooled and any(map(self._is_tangled, moved)):
      self._pooled = False
    if self._pooled:
      for each in moved:
        self._settle(each)
    else:
      self._place(flow, state.ends[0][0])

  def _part(self, flow: int) -> None:
    self._place(flow, -1)
    if self._pooled:
      self._unpool(flow)
    state = self._flows.pop(flow)
    for end, other in state.ends:
      link = self._links[end]
      alike = link.flows[other]
      del alike[flow]
      if not alike:
        del link.flows[other]
      link.count -= 1
      link.weight -= state.weight
      self._dirty[end] = None

  def _is_tangled(self, flow: int) -> bool:
    ends = self._flows[flow].ends
    if len(ends) == 1:
      return False
    (one, _), (other, _) = ends
    return self._links[one].count > 1 and self._links[other].count > 1

  def _share(self) -> None:
    pooled = self._pooled or not any(map(self._is_tangled, self._flows))
    if pooled:
      if not self._pooled:
        self._pool()
      for index in tuple(self._dirty):
        if self._links[index].caps:
          self._balance(index)
      for index in self._dirty:
        self._tune(index, self._links[index].pool_level())
    else:
      levels = self._fill()
      for index in self._dirty | levels:
        self._tune(index, levels.get(index, math.inf))
    self._dirty.clear()

  def _pool(self) -> None:
    """Finds the pools when each flow has at most one shared link."""
    self._pooled = True
    self._order.clear()
    for link in self._links:
      link.caps, link.split, link.taken, link.share = [], 0, 0.0, 0.0
    for flow, state in self._flows.items():
      state.home = -1
      self._settle(flow)

  def _settle(self, flow: int) -> None:
    """Pools a flow at its shared link, capped by the one it has to itself."""
    state = self._flows[flow]
    home, other = state.ends[0]
    if self._links[other].count > 1:
      home, other = other, home
    if state.home == home:
      return
    self._unpool(flow)
    link = self._links[home]
    state.home, state.cap = home, self._links[other].capacity
    if state.cap < link.capacity:
      item = state.cap / state.weight, flow
      place = bisect.bisect_left(link.caps, item)
      link.caps.insert(place, item)
      if place < link.split:
        link.split += 1
        link.taken += state.cap
        home = other
    self._place(flow, home)
    self._dirty[state.home] = None

  def _unpool(self, flow: int) -> None:
    state = self._flows[flow]
    if state.home < 0:
      return
    link = self._links[state.home]
    if state.cap < link.capacity:
      place = _remove(link.caps, (state.cap / state.weight, flow))
      if place < link.split:
        link.release(state.cap)

  def _balance(self, home: int) -> None:
    """Splits a pool into the flows at their caps and those at its level."""
    # Each move raises the level, so one pass in each direction is enough.
    link = self._links[home]
    while link.split and link.caps[link.split - 1][0] > link.pool_level():
      _, flow = link.caps[link.split - 1]
      link.release(self._flows[flow].cap)
      self._place(flow, home)
    while link.split < len(link.caps):
      level, flow = link.caps[link.split]
      if level >= link.pool_level():
        break
      link.split += 1
      link.taken += self._flows[flow].cap
      self._place(flow, dict(self._flows[flow].ends)[home])

  def _fill(self) -> dict[int, float]:
    """Returns all levels, lowest first, by progressive filling.

    No level is below its link's equal share, and it only rises as links with
    lower ones take flows of it: links are opened by share, most of them never.
    """
    self._reorder()
    # A flow changes hands only between links that have a group or had one.
    holders = self._dirty | {index: None for _, index in self._drains}
    waiting = self._order.copy()  # It is ordered, and so a heap.
    levels: dict[int, float] = {}
    # Open links: weight of flows that others hold back, and their total rate.
    held: dict[int, list[float]] = {}
    free = sum(flow.weight for flow in self._flows.values())
    while free:
      bound, index = heapq.heappop(waiting)
      link = self._links[index]
      if index not in held:
        held[index] = [0.0, 0.0]
        for other in _common(link.flows, levels):
          weight = sum(link.flows[other].values())
          held[index][0] += weight
          held[index][1] += weight * levels[other]
      weight, rate = held[index]
      if weight == link.weight:
        continue
      level = (link.capacity - rate) / (link.weight - weight)
      if level > bound:
        heapq.heappush(waiting, (level, index))
        continue
      levels[index] = level
      free -= link.weight - weight
      for other in _common(link.flows, held):
        weight = sum(link.flows[other].values())
        held[other][0] += weight
        held[other][1] += weight * level
      holders.pop(index, None)
      for other in _common(link.flows, holders):
        for flow in link.flows[other]:
          self._place(flow, index)
    return levels

  def _reorder(self) -> None:
    if not self._order:
      used = [x for x, link in enumerate(self._links) if link.count]
      self._dirty.update(dict.fromkeys(used))
    for index in self._dirty:
      link = self._links[index]
      if link.share:
        _remove(self._order, (link.share, index))
      link.share = link.capacity / link.weight if link.count else 0.0
      if link.share:
        bisect.insort(self._order, (link.share, index))

  def _place(self, flow: int, owner: int) -> None:
    """Moves a flow to the group of the link that holds it back, or out (-1)."""
    state = self._flows[flow]
    if state.owner == owner:
      return
    if state.owner >= 0:
      link = self._links[state.owner]
      link.serve(self._now)
      _remove(link.queue, (state.mark, flow))
      link.queued -= state.weight
      link.since = self._now
      state.left = max(0.0, state.mark - link.served) * state.weight
      self._dirty[state.owner] = None
    state.owner = owner
    if owner >= 0:
      link = self._links[owner]
      link.serve(self._now)
      if self._burst:
        link.refill(self._now, self._burst)
      state.mark = link.served + state.left / state.weight
      bisect.insort(link.queue, (state.mark, flow))
      link.queued += state.weight
      self._dirty[owner] = None

  def _tune(self, index: int, level: float) -> None:
    """Sets the level of a link and predicts the next drain of its group."""
    link = self._links[index]
    if level == link.level and not (link.queue and index in self._dirty):
      return
    if link.due < math.inf:
      _remove(self._drains, (link.due, index))
    link.serve(self._now)
    link.level = level
    link.due = max(self._now, link.drain_time()) if link.queue else math.inf
    if link.due < math.inf:
      bisect.insort(self._drains, (link.due, index))


def _common(one: Collection[int], other: Collection[int]) -> list[int]:
  few, many = (one, other) if len(one) < len(other) else (other, one)
  return [key for key in few if key in many]


def _remove(ordered: list[tuple[float, int]], item: tuple[float, int]) -> int:
  place = bisect.bisect_left(ordered, item)
  del ordered[place]
  return place


def _vector(
  name: str, values: Sequence[float], hosts: int, *, finite: bool
) -> list[float]:
  array = np.asarray(values, dtype=np.float64)
  valid = (array >= 0) & (array < np.inf) if finite else array > 0
  if array.shape != (hosts,) or not hosts or not valid.all():
    wanted = f'{hosts or 1} numbers {"in [0, inf)" if finite else "> 0"}'
    raise ValueError(f'{name}: expected {wanted}, got {values}.')
  return [float(value) for value in array]
