"""The coordinator's control of a run's forest while links change.

The policy of `repacking` decides when; this module provides its measurements,
packs forests in a thread, and records the decisions.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from cluster.allreduce.rendezvous import PackedForest, Rendezvous
from cluster.membership.events import Event
from cluster.network.messages import TrafficReport
from cluster.probing import file_format
from cluster.probing.events import ForestPacked, Packing
from cluster.probing.rates import RateWindows
from cluster.probing.repacking import Ends, RepackingPolicy, Switch
from route import selection
from system import clock, threads
from topology import Cluster
from topology.baselines.transfer import transfer_forest
from topology.baselines.ways import ways_of
from topology.clusters import cluster as clusters

_FORMING_S = 1.0  # Cost of changing a forest, before the first change.


class LinkFollower:
  """Changes the forest of a run when its links change.

  Attributes:
    interruption: Reason why the membership epoch has to end between two
      iterations; '' if it does not.
  """

  def __init__(
    self,
    formation: Rendezvous,
    *,
    size_bytes: int,
    put_event: Callable[[Event], None],
    record: Callable[[dict[str, Any]], None],
  ):
    """Creates the follower, without any measurements.

    Args:
      formation: Membership and forest of the run.
      size_bytes: Bytes of an allreduce.
      put_event: Puts an event into the queue of the coordinator.
      record: Adds a row about links to the run's events.
    """
    self._formation, self._size_bytes = formation, size_bytes
    self._put_event, self._record = put_event, record
    self._policy, self._windows = RepackingPolicy(), RateWindows()
    self._packed: PackedForest | None = None  # The forest of the running epoch.
    self._predicted_s = 0.0
    self._before: PackedForest | None = (
      None  # The forest before the last switch.
    )
    self._expected: PackedForest | None = None  # The forest of the next epoch.
    self._is_packing = False
    self._stopped_at: float | None = None
    self._cost_s = _FORMING_S
    self.interruption = ''

  def take_traffic(self, worker: int, report: TrafficReport) -> None:
    """Records the traffic of a worker since its start."""
    self._windows.take(worker, report.sent)

  def begin_epoch(self) -> None:
    """Records that all members have connected in a new membership epoch."""
    packed = self._formation.packed
    same = self._packed is packed
    if self._stopped_at is not None:
      self._cost_s = clock.monotonic() - self._stopped_at
      self._stopped_at = None
    self._windows.clear()
    self._policy.begin_epoch(same=same)
    if packed and not same:
      if packed is not self._expected:
        self._policy.forget_switch()
      self._packed = packed
      self._predicted_s = selection.predict_time(
        'running', packed.links, packed.forest, self._size_bytes, 0.0
      ).seconds

  def end_iteration(
    self, now_s: float, exposed_s: float, *, is_complete: bool
  ) -> None:
    """Records an iteration; decides whether to measure links or switch back.

    Args:
      now_s: Seconds of the run.
      exposed_s: Seconds of the iteration in which no worker computed.
      is_complete: Whether all workers of the run take part.
    """
    policy, members = self._policy, self._formation.members
    policy.add_iteration(exposed_s)
    rates = self._windows.end_iteration(now_s, members)
    if rates is not None:
      policy.add_window(rates)
    if self.interruption or self._is_packing:
      return
    if judgement := policy.judge():
      self._take_judgement(now_s, *judgement)
    elif rates is not None and is_complete:
      pairs = frozenset((a, b) for a in members for b in members if a != b)
      why = policy.reason_to_measure(now_s, self._predicted_s, pairs)
      if why:
        self.interruption = f'links are measured, as {why}'
        self._note(now_s, 'measure', why, rates=self._rows(policy.rates))

  def end_epoch(self) -> bool:
    """Records that an epoch has ended; returns whether to measure links now."""
    must_measure = self.interruption.startswith('links')
    self.interruption = ''
    if not must_measure:
      self._stopped_at = clock.monotonic()
    return must_measure

  def take_measurement(
    self, now_s: float, found: Mapping[str, Any] | None, took_s: float
  ) -> None:
    """Packs a forest for the measured links, in a thread.

    Args:
      now_s: Seconds of the run.
      found: Content of a file of links; None if they could not be measured.
      took_s: Seconds for which the run has stopped.
    """
    self._policy.note_measurement(now_s, took_s)
    if found is None or self._packed is None:
      return
    cluster = clusters.from_json(found)
    host_s = file_format.host_latency_s(found)
    running = self._packed
    self._formation.set_links(cluster, host_s)
    self._is_packing = True
    args = running, cluster, host_s
    threads.Thread(target=self._pack, args=args, daemon=True).start()

  def take_forest(self, event: ForestPacked, now_s: float) -> None:
    """Decides whether to use a forest that has been packed."""
    self._is_packing = False
    packing = event.packing
    if packing is None:
      logging.warning('No other forest: %s', event.error)
      return
    new, running = packing.new, packing.running
    if self._packed is not running or self._formation.packed is not running:
      return  # The forest of another epoch is for these links already.
    switch = self._policy.decide(packing.old_s, packing.new_s, self._cost_s)
    did = 'switch' if switch.worth else 'keep'
    rows = self._pairs(running.cluster, new.cluster)
    self._note(now_s, did, switch.why, rates=rows, **_numbers(switch))
    if switch.worth:
      self._before, self._expected = running, new
      self._formation.use(new)
      self.interruption = f'another forest is faster: {switch.why}'

  def _take_judgement(
    self, now_s: float, is_good: bool, gained_s: float, gain_s: float
  ) -> None:
    """Records how much a switch has saved, and undoes a bad one."""
    why = f'{gained_s:.3g} s were gained an iteration, of {gain_s:.3g} s'
    numbers = {'gained_s': gained_s, 'gain_s': gain_s}
    self._note(now_s, 'stay' if is_good else 'back', why, **numbers)
    before, self._before = self._before, None
    if not is_good and before and before.members == self._formation.members:
      self._expected = before
      self._formation.use(before)
      self.interruption = f'the forest of before is used: {why}'

  def _pack(
    self, running: PackedForest, cluster: Cluster, host_s: Mapping[str, float]
  ) -> None:
    """Packs a forest, in a thread, and puts it into the coordinator's queue."""
    try:
      forest = self._formation.pack(cluster, host_s)
      # All pairs were measured: no link is lost.
      new = PackedForest(running.members, frozenset(), cluster, cluster, forest)
      before, there = running.cluster.workers, cluster.workers
      name_of = dict(zip(before, there, strict=True))
      old = transfer_forest(running.forest, cluster, name_of)
      latency_s = {
        (src, dst): host_s.get(src, 0.0) + host_s.get(dst, 0.0)
        for src, dst, _ in cluster.links
      }
      old_s, new_s = (
        selection.predict_time(
          '', cluster, each, self._size_bytes, latency_s
        ).seconds
        for each in (old, forest)
      )
      packing = Packing(running=running, new=new, old_s=old_s, new_s=new_s)
      event = ForestPacked(packing=packing)
    except Exception as error:  # The run continues with its forest.
      logging.exception('Packing has failed.')
      event = ForestPacked(error=repr(error))
    self._put_event(event)

  def _note(self, now_s: float, did: str, why: str, **numbers: Any) -> None:
    logging.info('Links: %s, as %s.', did, why)
    self._record({'time': now_s, 'did': did, 'why': why, **numbers})

  def _rows(self, rates: Mapping[Ends, float]) -> list[dict[str, Any]]:
    """Returns rows of connections, beside the planned rates of their links."""
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
    """Returns rows of links between workers: measured and planned rates."""
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
  """Returns the rate at which each worker can send to each other one alone."""
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
