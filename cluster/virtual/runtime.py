"""Virtual runtime: a cluster as discrete events in one process.

Time is simulated, gradients are real.  A released worker pulls the version of
that moment, computes for the time that the speed model gives, and pushes; bytes
share links as in `cluster.virtual.network`.  Its gradient is computed at the
end of that time, from the version that it has pulled.
"""

import dataclasses
import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from cluster.coordinator import Coordinator
from cluster.speed.speed import Speed
from cluster.virtual.allreduce import AllreduceTransfers
from cluster.virtual.applying import Servers
from cluster.virtual.script import ScriptEntry
from cluster.virtual.store import LocalParameterStore
from cluster.virtual.transfers import NOTHING, Delivered, Pipelined, Whole
from cluster.virtual.worker_costs import WorkerCosts
from learning import scaling
from learning.iteration import Iteration
from learning.learning import Pushes
from outputs.accounting import LostState, NewState
from wire.codec import Message

# Simultaneous events happen in this order, and then by worker.
_COMPUTED, _LEAVE, _JOIN, _PUSH, _WAKE, _PULL = range(6)

# Attributes of a cluster that change while it runs.
_STATE = ('time', '_workers', '_wake', '_events', '_servers', '_delay_s')


@dataclasses.dataclass
class _InFlight:
  """State of a worker's iteration that the coordinator does not have.

  Attributes:
    codec: Codec state.
    optimizer: State of the inner optimizer of local steps; () without.
    before: Both before the push that is under way; None without one.
    incarnation: Number of the worker's incarnation; events of earlier ones are
      dropped.
    params: Parameters as pulled, until the push is computed.
    rate: Learning rate of local steps; None without a model.
    message: Message of the push, while it is under way.
    loss: Weighted sum of the losses of the examples.
    weight: Weight of the push, in examples.
    computed: Number of computed examples, with padding.
    compute_s: Seconds of computing.
    has_pushed: Whether a push has arrived since the worker joined.
    is_late: Whether the worker has joined after the start.
  """

  is_state = True  # Plain data: checkpoints hold it.

  codec: Any
  optimizer: Any
  before: tuple[Any, Any] | None = None
  incarnation: int = 0
  params: Any = None
  rate: float | None = None
  message: Message = None
  loss: Any = None
  weight: float = 0.0
  computed: int = 0
  compute_s: float = 0.0
  has_pushed: bool = False
  is_late: bool = False


class VirtualRuntime:
  """Workers and servers under a virtual clock.

  An iteration passes these methods; between them time goes by in `step`:
  `_release` (by the coordinator), `_handle_arrivals` of the pull,
  `_begin_computing`, `_finish_computing`, `_handle_arrivals` of the push, and
  `_report_push`, in which the coordinator may release workers again.

  Attributes:
    time: Virtual seconds since the start.
    coordinator: Coordinator of the run.
    pushes: Computation of pushes.
  """

  def __init__(
    self,
    *,
    coordinator: Coordinator,
    store: LocalParameterStore,
    pushes: Pushes,
    speed: Speed,
    transfers: Whole | Pipelined | AllreduceTransfers,
    servers: Servers,
    costs: WorkerCosts,
    script: Sequence[ScriptEntry],
    record_evaluation: Callable[[float], None],
  ):
    """Creates a cluster at time 0.

    Args:
      coordinator: Coordinator of the run.
      store: The coordinator's parameter store.
      pushes: Computation of pushes.
      speed: Model of compute times.
      transfers: Model of pushes and pulls.
      servers: Model of the servers' work.
      costs: The workers' work besides computing.
      script: Deaths and returns of workers.
      record_evaluation: Function that is called with the time once an
        evaluation has become due.
    """
    self.time = 0.0
    self.coordinator = coordinator
    self.pushes = pushes
    self._speed = speed
    self._store = store
    count = len(coordinator.workers)
    self._workers = [self._make_worker(k, 0) for k in range(count)]
    self._transfers = transfers
    self._servers = servers
    self._costs = costs
    self._delay_s = 0.0  # Of the next iteration of worker 0, by an evaluation.
    self._record_evaluation = record_evaluation
    self._wake = 0  # Number of the pending wake, which replaces earlier ones.
    # Time, kind, number of a worker or a wake, incarnation of the worker.
    kinds = {'leave': _LEAVE, 'join': _JOIN}
    self._events = [
      (each.time, kinds[each.event], each.worker, -1) for each in script
    ]
    heapq.heapify(self._events)
    coordinator.attach(release=self._release, wake_at=self._wake_at)

  def warm_up(self) -> None:
    """Compiles everything that the run will need."""
    learner, batching = self._store.learner, self.coordinator.batching
    learner.restore(self.pushes.place(learner.state()))
    for worker in self._workers:
      worker.message = self.pushes.place(worker.message)
      worker.codec = self.pushes.place(worker.codec)
      worker.optimizer = self.pushes.place(worker.optimizer)
    payloads = self.pushes.warm_up(
      self._store.pull(), batching.max_batch, changing=batching.is_adaptive
    )
    self._store.warm_up(payloads)

  def start(self) -> None:
    """Releases the first iterations; once, and not after `restore`.

    Raises:
      ValueError: If the scheme is not one for these workers.
    """
    self.coordinator.start(self.time)

  def resume(self) -> None:
    """Has the next step continue a run, which may have become longer."""
    self.coordinator.extend()

  def step(self) -> None:
    """Advances to the next event and handles it.

    Arrivals before it are handled on the way.

    Raises:
      RuntimeError: If no event can happen any more.
      FloatingPointError: If a loss or a gradient is not finite.
    """
    transfers = self._transfers
    event = self._next_event()
    while (arrival := transfers.next_time()) <= event:
      if arrival == math.inf:
        raise RuntimeError(self._stuck())
      self.time = arrival
      delivered = transfers.advance(arrival)
      if delivered is not NOTHING:
        self._handle_arrivals(delivered)
        event = self._next_event()
    self.time, evaluations = event, self.coordinator.milestones.evaluations
    _, kind, number, _ = heapq.heappop(self._events)
    if kind == _COMPUTED:
      self._finish_computing(number)
    elif kind == _PUSH:
      self._report_push(number)
    elif kind == _PULL:
      self._start_pull(number)
    elif kind == _WAKE:
      self.coordinator.wake(self.time)
    elif kind == _LEAVE:
      self._leave(number)
    else:
      self.coordinator.join(number, self.time)
    self._servers.update(self.time, self._store.version)
    if self.coordinator.milestones.evaluations > evaluations:
      self._record_evaluation(self.time)
      self._take_time_for_evaluation()

  def pause(self) -> bool:
    """Returns True, as everything under way is part of the state."""
    return True

  @property
  def has_successor(self) -> bool:
    """False: there is no other process."""
    return False

  def is_ended_by(self, number: int) -> bool:
    """Returns True: there is no other process."""
    return True

  def state(self) -> dict[str, Any]:
    """Returns the state of cluster, coordinator and store, for a checkpoint."""
    return {
      **{name: getattr(self, name) for name in _STATE},
      '_transfers': self._transfers.state(),
      'coordinator': self.coordinator.state(),
      'store': self._store.state(),
    }

  def restore(self, state: dict[str, Any]) -> None:
    """Continues from the state of a checkpoint, which it takes over."""
    for name in _STATE:
      setattr(self, name, state[name])
    self._transfers.restore(state['_transfers'])
    self.coordinator.restore(state['coordinator'])
    self._store.restore(state['store'])

  def close(self) -> None:
    """Ends the workers' phases, to complete the accounts."""
    self.coordinator.close(self.time)

  def summary(self) -> dict[str, Any]:
    """Returns the fields of summary.json that only this runtime has.

    `script_unreached` has the entries of the script after the end of the run.
    """
    names = {_LEAVE: 'leave', _JOIN: 'join'}
    return {
      'virtual_s': self.time,
      'script_unreached': [
        (time, names[kind], worker)
        for time, kind, worker, _ in sorted(self._events)
        if kind in names
      ],
    }

  def _next_event(self) -> float:
    """Drops obsolete events; returns the time of the next one, seconds."""
    events = self._events
    while events:
      time, kind, number, incarnation = events[0]
      if kind == _WAKE:
        if number == self._wake:
          return time
      elif incarnation in (-1, self._workers[number].incarnation):
        return time
      heapq.heappop(events)
    return math.inf

  def _wake_at(self, time: float | None) -> None:
    self._wake += 1
    if time is not None:
      event = (max(time, self.time), _WAKE, self._wake, -1)
      heapq.heappush(self._events, event)

  def _release(self, index: int) -> None:
    """Serves a worker that the coordinator has released.

    Its pull starts once the servers have applied the version of this moment.
    """
    worker = self._workers[index]
    worker.params, worker.rate = self._store.pull(), self._store.learning_rate
    self._servers.update(self.time, self._store.version)
    if self._servers.busy_until > self.time:
      self._schedule(self._servers.busy_until, _PULL, index)
    else:
      self._start_pull(index)

  def _start_pull(self, index: int) -> None:
    self._handle_arrivals(self._transfers.pull(self.time, index))

  def _finish_computing(self, index: int) -> None:
    """Computes and encodes a worker's push, and starts to send it."""
    worker, known = self._workers[index], self.coordinator.workers[index]
    before, scalings = self.pushes.computed, self._store.scalings
    scale = (
      scaling.factor(scaling.worker_scaling(scalings, index))
      if scalings
      else 1.0
    )
    worker.before = worker.codec, worker.optimizer
    payload, worker.loss, worker.optimizer = self.pushes.push(
      worker.params,
      Iteration(
        known.ranges,
        worker=index,
        number=known.iteration,
        scale=scale,
        rate=worker.rate,
        version=known.version,
      ),
      worker.optimizer,
    )
    worker.params, worker.computed = None, self.pushes.computed - before
    worker.weight = self.pushes.weigh(known.ranges)
    worker.message, worker.codec = self._store.codec.encode(
      worker.codec, payload, known.stage, scale
    )
    self.coordinator.enter(index, 'wait', self.time)  # Until its push starts.
    for other in self._transfers.push(self.time, index, known.stage):
      self.coordinator.enter(other, 'push', self.time)

  def _report_push(self, index: int) -> None:
    """Passes a push that has arrived whole to the coordinator."""
    worker, known = self._workers[index], self.coordinator.workers[index]
    finite = self._store.take_push(index, worker.message, known.stage)
    if not finite:  # The push is not applied.
      worker.codec, worker.optimizer = _states_without_push_in_flight(worker)
    loss, worker.loss = worker.loss, None
    worker.message = worker.before = None
    if worker.is_late and not worker.has_pushed and _has_optimizer(worker):
      self.coordinator.recorder.accounting.new_states.append(
        NewState(index, self.time)
      )
    worker.has_pushed = True
    self._servers.add(self.time)
    self.coordinator.push(
      index,
      self.time,
      compute_s=worker.compute_s,
      factors=self._speed.driving(index, known.iteration),
      loss=loss,
      finite=finite,
      computed=worker.computed,
      weight=worker.weight,
    )

  def _handle_arrivals(self, delivered: Delivered) -> None:
    """Handles arrivals: a whole push is an event, a whole pull starts work."""
    if delivered.size_bytes:
      self.coordinator.recorder.accounting.bytes += delivered.size_bytes
    for index in delivered.ended:
      if self.coordinator.workers[index].phase == 'push':
        self._schedule(self.time, _PUSH, index)
      else:
        self._begin_computing(index)

  def _begin_computing(self, index: int) -> None:
    """Schedules the end of a worker's computation."""
    known = self.coordinator.workers[index]
    self.coordinator.enter(index, 'compute', self.time)
    seconds = self._speed.seconds(index, known.iteration, known.examples)
    seconds += self._costs.codec_s
    if index == 0:
      seconds, self._delay_s = seconds + self._delay_s, 0.0
    self._workers[index].compute_s = seconds
    self._schedule(self.time + seconds, _COMPUTED, index)

  def _take_time_for_evaluation(self) -> None:
    """Delays the host that evaluates by the time that it takes."""
    seconds = self._costs.evaluation_s
    if not seconds:
      return
    if not self._costs.evaluates:
      self._servers.evaluate(self.time, seconds)
      return
    worker = self._workers[0]
    for place, (time, kind, number, incarnation) in enumerate(self._events):
      if (kind, number, incarnation) == (_COMPUTED, 0, worker.incarnation):
        event = (time + seconds, kind, number, incarnation)
        self._events[place] = event
        heapq.heapify(self._events)
        worker.compute_s += seconds
        return
    self._delay_s += seconds

  def _restart_iteration(self, index: int) -> None:
    """Makes a worker compute its iteration once more."""
    worker = self._workers[index]
    self._workers[index] = _InFlight(
      *_states_without_push_in_flight(worker),
      incarnation=worker.incarnation + 1,
      has_pushed=worker.has_pushed,
      is_late=worker.is_late,
    )
    self._release(index)

  def _leave(self, index: int) -> None:
    worker = self._workers[index]
    lost = self.coordinator.workers[index].is_iterating
    left = self._transfers.leave(self.time, index, lost=lost)
    for other in left.waiting:
      self.coordinator.enter(other, 'wait', self.time)  # Ends one wait.
    l1 = self._store.forget(index, _states_without_push_in_flight(worker)[0])
    recorder, reason = self.coordinator.recorder, 'config.cluster.script'
    has_optimizer = worker.has_pushed and _has_optimizer(worker)
    if has_optimizer or any(l1.values()):
      recorder.record_lost_residual(index, self.time, l1)
    if has_optimizer:
      recorder.accounting.lost_states.append(
        LostState(index, self.time, reason)
      )
    self._workers[index] = self._make_worker(index, worker.incarnation + 1)
    self._workers[index].is_late = True
    for other in left.again:
      self.coordinator.enter(other, 'pull', self.time)
      self._restart_iteration(other)
    self.coordinator.leave(index, self.time, reason)

  def _make_worker(self, index: int, incarnation: int) -> _InFlight:
    """Returns a worker without residuals, before its first local step."""
    return _InFlight(
      self._store.codec.init(index),
      self.pushes.init(self._store.learner.params),
      incarnation=incarnation,
    )

  def _schedule(self, time: float, kind: int, index: int) -> None:
    incarnation = self._workers[index].incarnation
    heapq.heappush(self._events, (time, kind, index, incarnation))

  def _stuck(self) -> str:
    phases = [worker.phase or 'absent' for worker in self.coordinator.workers]
    return (
      f'Nothing can happen after {self.time} s: the workers are {phases}.  '
      'A run whose workers all leave needs a join in config.cluster.script.'
    )


def _has_optimizer(worker: _InFlight) -> bool:
  """Returns whether a worker has a state of an inner optimizer."""
  return bool(jax.tree.leaves(worker.optimizer))


def _states_without_push_in_flight(worker: _InFlight) -> tuple[Any, Any]:
  """Returns states of codec and optimizer after the pushes that arrived."""
  return worker.before or (worker.codec, worker.optimizer)
