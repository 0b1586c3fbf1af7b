"""Follows the links of a run, and has its forest changed: for the coordinator."""

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from cluster.allreduce.formation import Formation, Packed
from cluster.membership.events import Event
from cluster.network.messages import TrafficReport
from cluster.probing import file_format
from cluster.probing.events import ForestPacked, Packing
from cluster.probing.repacking import Adapting, Ends, Switch
from cluster.probing.traffic import Windows
from route import choosing
from topology import Cluster
from topology.baselines.moved import moved
from topology.baselines.ways import ways_of
from topology.clusters import cluster as clusters

_FORMING_S = 1.0  # That changing a forest takes, at first.


class Adaptation:
  """Decides and remembers; see `adapting`."""

  def __init__(
    self,
    formation: Formation,
    *,
    size_bytes: int,
    tell: Callable[[Event], None],
    record: Callable[[dict[str, Any]], None],
  ):
    """Has seen nothing yet.

    Args:
      formation: Makes groups.
      size_bytes: Of what is summed.
      tell: Puts an event into the queue of the coordinator.
      record: Adds a row about links to the run's events.
    """
    self._formation, self._size_bytes = formation, size_bytes
    self._tell, self._record = tell, record
    self._adapting, self._windows = Adapting(), Windows()
    self._packed: Packed | None = None  # Of the generation that runs.
    self._predicted_s = 0.0
    self._before: Packed | None = None
    self._expected: Packed | None = None
    self._packing = False
    self._stopped_at: float | None = None
    self._cost_s = _FORMING_S
    self.turns = ''

  def traffic(self, worker: int, report: TrafficReport) -> None:
    """A worker has told what it has sent."""
    self._windows.told(worker, report.sent)

  def formed(self) -> None:
    """All members are connected."""
    packed = self._formation.packed
    same = self._packed is packed
    if self._stopped_at is not None:
      self._cost_s = time.monotonic() - self._stopped_at
      self._stopped_at = None
    self._windows.clear()
    self._adapting.formed(same=same)
    if packed and not same:
      if packed is not self._expected:
        self._adapting.forget()
      self._packed = packed
      self._predicted_s = choosing.predicted(
        'running', packed.links, packed.forest, self._size_bytes, 0.0
      ).seconds

  def iterated(
    self, now_s: float, exposed_s: float, *, all_there: bool
  ) -> None:
    """An iteration has ended.

    Args:
      now_s: Seconds of the run.
      exposed_s: Of it, for which nobody computed.
      all_there: Whether all workers take part.
    """
    adapting, members = self._adapting, self._formation.members
    adapting.iterated(exposed_s)
    rates = self._windows.iterated(now_s, members)
    if rates is not None:
      adapting.window(rates)
    if self.turns or self._packing:
      return
    if judged := adapting.judge():
      self._judged(now_s, *judged)
    elif rates is not None and all_there:
      pairs = frozenset((a, b) for a in members for b in members if a != b)
      why = adapting.suspects(now_s, self._predicted_s, pairs)
      if why:
        self.turns = f'links are measured, as {why}'
        self._note(now_s, 'measure', why, rates=self._rows(adapting.rates))

  def turned(self) -> bool:
    """The generation has ended; returns whether links are measured now."""
    measures = self.turns.startswith('links')
    self.turns = ''
    if not measures:
      self._stopped_at = time.monotonic()
    return measures

  def measured(
    self, now_s: float, found: Mapping[str, Any] | None, took_s: float
  ) -> None:
    """Links have been measured; a forest for them is packed in a thread.

    Args:
      now_s: Seconds of the run.
      found: Content of a file; None if they could not be.
      took_s: For which the run stood still.
    """
    self._adapting.measured(now_s, took_s)
    if found is None or self._packed is None:
      return
    cluster = clusters.from_json(found)
    host_s = file_format.host_latency_s(found)
    running = self._packed
    self._formation.know(cluster, host_s)
    self._packing = True
    args = running, cluster, host_s
    threading.Thread(target=self._pack, args=args, daemon=True).start()

  def packed(self, event: ForestPacked, now_s: float) -> None:
    """A forest has been packed, in this process."""
    self._packing = False
    packing = event.packing
    if packing is None:
      logging.warning('No other forest: %s', event.error)
      return
    new, running = packing.new, packing.running
    if self._packed is not running or self._formation.packed is not running:
      return  # Another generation runs, whose forest is for these links.
    switch = self._adapting.decide(packing.old_s, packing.new_s, self._cost_s)
    did = 'switch' if switch.worth else 'keep'
    rows = self._pairs(running.cluster, new.cluster)
    self._note(now_s, did, switch.why, rates=rows, **_numbers(switch))
    if switch.worth:
      self._before, self._expected = running, new
      self._formation.use(new)
      self.turns = f'another forest is faster: {switch.why}'

  def _judged(
    self, now_s: float, good: bool, gained_s: float, gain_s: float
  ) -> None:
    why = f'{gained_s:.3g} s were gained an iteration, of {gain_s:.3g} s'
    numbers = {'gained_s': gained_s, 'gain_s': gain_s}
    self._note(now_s, 'stay' if good else 'back', why, **numbers)
    before, self._before = self._before, None
    if not good and before and before.members == self._formation.members:
      self._expected = before
      self._formation.use(before)
      self.turns = f'the forest of before is used: {why}'

  def _pack(
    self, running: Packed, cluster: Cluster, host_s: Mapping[str, float]
  ) -> None:
    """Packs, in a thread, and tells of it."""
    try:
      forest = self._formation.pack(cluster, host_s)
      # All pairs were measured: none is lost.
      new = Packed(running.members, frozenset(), cluster, cluster, forest)
      before, there = running.cluster.workers, cluster.workers
      name_of = dict(zip(before, there, strict=True))
      old = moved(running.forest, cluster, name_of)
      latency_s = {
        (src, dst): host_s.get(src, 0.0) + host_s.get(dst, 0.0)
        for src, dst, _ in cluster.links
      }
      old_s, new_s = (
        choosing.predicted(
          '', cluster, each, self._size_bytes, latency_s
        ).seconds
        for each in (old, forest)
      )
      packing = Packing(running=running, new=new, old_s=old_s, new_s=new_s)
      event = ForestPacked(packing=packing)
    except Exception as error:  # The thread has nobody else to tell.
      logging.exception('Packing has failed.')
      event = ForestPacked(error=repr(error))
    self._tell(event)

  def _note(self, now_s: float, did: str, why: str, **numbers: Any) -> None:
    logging.info('Links: %s, as %s.', did, why)
    self._record({'time': now_s, 'did': did, 'why': why, **numbers})

  def _rows(self, rates: Mapping[Ends, float]) -> list[dict[str, Any]]:
    """Rates of connections beside what links were planned to carry."""
    packed = self._packed
    planned = _between(packed.cluster) if packed else {}
    return [
      {
        'src': src,
        'dst': dst,
        'Bps': round(rate),
        'planned_Bps': planned.get((src, dst)),
      }
      for (src, dst), rate in sorted(rates.items())
    ]

  def _pairs(self, before: Cluster, now: Cluster) -> list[dict[str, Any]]:
    """What links carry from each worker to each other, and were planned to."""
    planned, measured = _between(before), _between(now)
    return [
      {
        'src': src,
        'dst': dst,
        'Bps': rate,
        'planned_Bps': planned.get((src, dst)),
      }
      for (src, dst), rate in sorted(measured.items())
    ]


def _between(cluster: Cluster) -> dict[Ends, int]:
  """Returns what a worker can send to another if nobody else sends."""
  ways, capacity = ways_of(cluster), cluster.capacity_Bps
  found = {}
  for i, src in enumerate(cluster.workers):
    for j, dst in enumerate(cluster.workers):
      if i != j:
        hop = ways.hop(src, dst)
        links = itertools.pairwise(hop)
        found[i, j] = round(min(capacity[ends] for ends in links))
  return found


def _numbers(switch: Switch) -> dict[str, float]:
  return {
    'old_s': switch.old_s,
    'new_s': switch.new_s,
    'gain_s': switch.gain_s,
  }
