"""The coordinator, which asks the scheme and carries out its decisions.

A runtime reports events with times of its clock.  The coordinator hands out
examples, has pushes summed and updates applied, keeps the accounts, and calls
the runtime back to release workers.  It is the same in every runtime.
"""

import copy
import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

from absl import logging

from batching.batching import Batching, Measurement
from cluster.milestones import Milestones
from data.stream import Ranges, Stream, size
from learning import scaling, staleness
from learning.learning import ParameterStore
from outputs.accounting import PHASES, LostIteration
from outputs.recorder import Recorder
from sync import record
from sync.scheme import Decision, Push, Scheme

# Attributes of a coordinator that change during a run.
_STATE = ('workers', '_scheme', 'batching', '_stream', '_pushes', '_withheld')


@dataclasses.dataclass
class Progress:
  """Progress of a worker, as the coordinator knows it.

  Attributes:
    iteration: Number of the current iteration; -1 before the first.
    is_iterating: Whether an iteration is under way: released and not pushed.
    phase: One of accounting.PHASES; None before the start and while the worker
      does not take part.
    since: Start of the phase, seconds.
    version: Version of the parameters that the iteration starts from.
    stage: Stage of the wire: index of the codec of the iteration's push.
    ranges: Positions of the iteration's examples in the stream.
    examples: Number of these examples.
    batch: Number of examples of the newest iteration that was assigned.
    ahead: Positions of the examples of the next iteration, if it is assigned
      before this one ends; () if not.
    phases_s: Seconds in each phase since the iteration began.
    computed: Seconds of computing and driving factors of the iteration, from
      its push until the worker is released.
  """

  is_state = True  # Plain data: checkpoints hold it.

  iteration: int = -1
  is_iterating: bool = False
  phase: str | None = None
  since: float = 0.0
  version: int = 0
  stage: int = 0
  ranges: Ranges = ()
  examples: int = 0
  batch: int = 0
  ahead: Ranges = ()
  phases_s: dict[str, float] = dataclasses.field(
    default_factory=lambda: dict.fromkeys(PHASES, 0.0)
  )
  computed: tuple[float, tuple[float, ...]] | None = None


class Coordinator:
  """Mediator between a runtime and a scheme.

  Order of calls: the runtime first calls `attach` with its own functions, then
  either `start`, or `restore` (the virtual runtime), or `rejoin` and `start`
  (real hosts).  From then on it reports `push`, `leave`, `join` and `wake`.
  Each of them asks the scheme, and carries out the decision: the store adds
  the push and commits updates, `milestones` review the run, the batching
  assigns examples, and `release` of the runtime is called for every worker
  that may continue, before the report returns.

  Attributes:
    workers: Progress of every worker, alive or not.
    store: Parameter store, which sums pushes and applies updates.
    batching: Batching, which assigns the number of examples of an iteration.
    recorder: Recorder of the run.
    milestones: Milestones, which log and evaluate the run, and end it.
    ahead: Whether iterations are assigned one ahead, so that a worker that has
      ended one can begin the next without asking: an observed iteration then
      changes the batches of the next but one.
    find_stage: Function that returns the stage of the wire for iterations that
      begin now.
    weigh: Function that returns the weight of a push by its staleness.
  """

  def __init__(
    self,
    *,
    scheme: Scheme,
    batching: Batching,
    store: ParameterStore,
    stream: Stream,
    recorder: Recorder,
    milestones: Milestones,
    num_workers: int,
    ahead: bool = False,
    find_stage: Callable[[], int] = lambda: 0,
    weigh: staleness.Weight | None = None,
  ):
    """Creates a coordinator; `attach` and `start` or `restore` follow.

    Args:
      scheme: Scheme, which decides when a worker may continue.
      batching: Batching, which decides how many examples it computes.
      store: Parameter store, which sums pushes and applies updates.
      stream: Stream of examples.
      recorder: Recorder of the run.
      milestones: Milestones of the run.
      num_workers: Number of workers.
      ahead: Whether iterations are assigned one ahead.
      find_stage: Function that returns the stage of the wire for iterations
        that begin now.
      weigh: Weight of a push by its staleness; None for 1, always.
    """
    self.find_stage = find_stage
    self.weigh = weigh or staleness.constant()
    self.ahead = ahead
    self.workers = [Progress() for _ in range(num_workers)]
    self.store = store
    self.recorder = recorder
    self.milestones = milestones
    self.batching = batching
    self._scheme = scheme
    self._new_scheme = copy.deepcopy(scheme)  # For `rejoin` after a start.
    self._stream = stream
    self._pushes = 0
    # Releases that the end of the run has prevented: workers, time, and whether
    # all of them had stopped.
    self._withheld: list[tuple[tuple[int, ...], float, bool]] = []
    self._release: Callable[[int], None]  # Both are set by `attach`.
    self._wake_at: Callable[[float | None], None]

  def attach(
    self,
    *,
    release: Callable[[int], None],
    wake_at: Callable[[float | None], None],
  ) -> None:
    """Connects the runtime, before `start` or `restore`.

    Args:
      release: Function that lets a worker pull and continue, with what
        `workers` has for it.
      wake_at: Function that sets the time at which the runtime calls `wake`;
        None for never.  Each call replaces the one before.
    """
    self._release = release
    self._wake_at = wake_at

  def start(self, time: float, absent: Collection[int] = ()) -> None:
    """Releases the first iteration of every worker, except of absent ones.

    Absent workers have left before they got an example; they may join later.

    Args:
      time: Time of the start, seconds.
      absent: Workers that have not come yet.

    Raises:
      ValueError: If the scheme is not one for these workers.
    """
    decision = record.apply_event(self._scheme, 'start', time=time)
    if decision.release != tuple(range(len(self.workers))):
      raise ValueError(
        f'scheme: expected the start to release all {len(self.workers)} '
        f'workers, got {decision.release}.'
      )
    self.recorder.record_decision('start', {'time': time}, decision)
    departures = []
    for index in absent:
      self.batching.leave(index)
      event = {'worker': index, 'time': time}
      departures.append(record.apply_event(self._scheme, 'leave', **event))
      self.recorder.record_decision('leave', event, departures[-1])
    present = tuple(k for k in decision.release if k not in absent)
    decision = decision._replace(release=present)
    self._carry_out(decision, time, starts=True)
    for departure in departures:
      self._carry_out(departure, time)

  def push(
    self,
    index: int,
    time: float,
    *,
    compute_s: float,
    factors: Sequence[float],
    loss: Any,
    computed: int,
    weight: float | None = None,
    finite: bool = True,
  ) -> None:
    """Handles a worker's push: adds it to an update that the scheme chooses.

    Called once the store has all of the push.  Carries out the scheme's
    decision: it may apply updates and release workers.  If the scheme drops the
    push, it is listed as dropped, and others get its examples.

    Args:
      index: Index of the worker.
      time: Time at which the push had arrived whole, seconds.
      compute_s: Seconds of computing alone.
      factors: Driving factors of the worker's next iteration; may be none.
      loss: Weighted sum over the examples; None without one.
      computed: Number of examples that were computed, with padding.
      weight: Weight of the push, in examples; None for their number.
      finite: Whether loss and gradient are finite, as far as is known; if not,
        the push is not applied.

    Raises:
      FloatingPointError: If they are not finite for another reason than their
        scale.
    """
    if not finite:
      self.check(index, finite=finite, loss=loss)
    worker = self.workers[index]
    if weight == worker.examples:
      weight = None
    push = Push(self._pushes, index, time, compute_s, worker.examples, weight)
    self._pushes += 1
    self.enter(index, 'wait', time)
    worker.computed = compute_s, tuple(factors)
    decision = self._scheme.push(push)
    self.recorder.record_decision(
      'push', push, decision, factors=tuple(map(float, factors))
    )
    if decision.into is None:
      self._stream.give_back(index)
      self.store.discard(index)
      self.recorder.accounting.add_dropped_push(
        push, iteration=worker.iteration, computed=computed
      )
      worker.is_iterating = False
      self._carry_out(decision, time)
      return
    self._stream.done(index)
    worker.is_iterating = False
    self.store.add(
      decision.into,
      index,
      push.examples,
      weight=weight,
      staleness_weight=self.weigh(self.store.version - worker.version),
      finite=finite,
    )
    self.recorder.accounting.add_push(
      decision.into,
      push,
      iteration=worker.iteration,
      pulled=worker.version,
      finite=finite,
      computed=computed,
    )
    if finite and loss is not None:
      self.recorder.add_loss(push, worker.iteration, loss)
    self._carry_out(decision, time)

  def check(self, index: int, *, finite: bool, loss: Any) -> None:
    """Raises FloatingPointError if a smaller loss scale would not help.

    Args:
      index: Index of the worker whose loss and gradient it is.
      finite: Whether they are finite; then nothing is raised.
      loss: Sum over the examples; None if it is not known.
    """
    if not finite:
      iteration = self.workers[index].iteration
      subject = (
        f'The loss ({loss}) or the gradient of worker {index}, iteration '
        f'{iteration},'
      )
      scaling.check(self.store.scalings, index, subject)

  def wake(self, time: float) -> None:
    """Carries out the scheme's decision at the time for which it asked.

    Args:
      time: Time that `wake_at` was called with, seconds.
    """
    self._notify('wake', time=time)

  def leave(self, index: int, time: float, reason: str) -> None:
    """Removes a worker; other workers get the examples that it has not pushed.

    Args:
      index: Index of the worker.
      time: Time at which it left, seconds.
      reason: Reason, for the account of an iteration that it was in.
    """
    worker = self.workers[index]
    self._lose(index, worker, time, reason)
    self.enter(index, None, time)
    worker.is_iterating = False
    worker.computed = None
    worker.ahead = ()
    self.batching.leave(index)
    self._notify('leave', worker=index, time=time)

  def join(self, index: int, time: float) -> None:
    """Readmits a worker that had left the run; it waits for a release.

    The batching adds the worker.  The scheme decides which updates to apply and
    which workers to release, perhaps this one, and its decision is carried out
    before this method returns.

    Args:
      index: Index of the worker.
      time: Time of its return, seconds on the run's clock.

    Raises:
      ValueError: If the worker has not left.
    """
    self.enter(index, 'wait', time)
    self.batching.join(index)
    self._notify('join', worker=index, time=time)

  def enter(self, index: int, phase: str | None, time: float) -> None:
    """Ends a worker's phase, which is recorded, and starts another.

    Args:
      index: Index of the worker.
      phase: One of accounting.PHASES; None for a worker that has left.
      time: Seconds; at the start of the current phase, that phase is replaced.
    """
    worker = self.workers[index]
    before, since = worker.phase, worker.since
    if before is not None and time != since:
      self.recorder.record_span(index, before, since, time, worker.examples)
      worker.phases_s[before] += time - since
    worker.phase = phase
    worker.since = time

  def enter_each(
    self, index: int, starts: Sequence[tuple[str, float]], time: float
  ) -> None:
    """Enters several phases in order, whose starts are known only now.

    Clocks of hosts agree to within a round trip: a start before the current
    phase, or after now, is moved to that limit.

    Args:
      index: Index of the worker.
      starts: Phases and their starts, seconds.
      time: Now, seconds.
    """
    since = self.workers[index].since
    for phase, start in starts:
      since = min(max(since, start), time)
      self.enter(index, phase, since)

  def close(self, time: float) -> None:
    """Ends every worker's phase, to complete the accounts."""
    for index in range(len(self.workers)):
      self.enter(index, None, time)

  def state(self) -> dict[str, Any]:
    """Returns the state of coordinator and scheme, for a checkpoint."""
    return {name: getattr(self, name) for name in _STATE}

  def restore(self, state: dict[str, Any]) -> None:
    """Continues from the state of a checkpoint, without copying it."""
    for name in _STATE:
      setattr(self, name, state[name])

  def extend(self) -> None:
    """Releases the workers that the end of a shorter run has withheld.

    Call it after `restore`; without such workers it does nothing.
    """
    if self.milestones.finished:
      return
    withheld, self._withheld = self._withheld, []
    for released, time, all_stop in withheld:
      self._begin_iterations(released, time, all_stop=all_stop)

  def rejoin(
    self,
    state: dict[str, Any],
    time: float,
    reason: str = 'The run was started again.',
  ) -> None:
    """Continues from a checkpoint with a new scheme and perhaps other workers.

    The batching continues as well if there are as many workers as before.  The
    coordinator itself may have continued after the state was taken.

    Args:
      state: State of a coordinator, perhaps with another number of workers.
      time: Time from which it continues, seconds.
      reason: Reason for which iterations that were under way are lost.
    """
    self._scheme = copy.deepcopy(self._new_scheme)
    self.workers = [Progress() for _ in self.workers]
    # Of more workers each prefetches less.
    self._stream = dataclasses.replace(
      state['_stream'], ahead=self._stream.ahead
    )
    self._pushes = state['_pushes']
    if len(state['workers']) == len(self.workers):
      self.batching = state['batching']
    else:
      logging.info(
        'Batch sizes start from scratch, as the number of workers differs.'
      )
    for index, before in enumerate(state['workers']):
      self._lose(index, before, time, reason)
      if index < len(self.workers):
        self.workers[index].iteration = before.iteration
        if self.batching is state['batching'] and before.phase is None:
          self.batching.join(index)

  def upcoming(self, index: int) -> Ranges:
    """Returns the positions of the stream that a worker has leased for later.

    At most as many as its current batch.
    """
    return self._stream.upcoming(index, self.workers[index].batch)

  @property
  def issued(self) -> int:
    """Number of positions of the stream that were ever issued."""
    return self._stream.cursor

  @property
  def outstanding(self) -> list[tuple[int, int]]:
    """Positions of the stream that were issued and not pushed, as ranges."""
    return [
      (int(start), int(stop)) for start, stop in self._stream.outstanding()
    ]

  def _lose(
    self, index: int, worker: Progress, time: float, reason: str
  ) -> None:
    """Records a worker's iteration as lost if it has not been pushed."""
    self._stream.leave(index)
    if worker.is_iterating:
      self.recorder.accounting.lost.append(
        LostIteration(index, worker.iteration, worker.examples, time, reason)
      )

  def _notify(self, name: str, **event: Any) -> None:
    """Passes an event to the scheme, and carries out its decision."""
    decision = record.apply_event(self._scheme, name, **event)
    self.recorder.record_decision(name, event, decision)
    self._carry_out(decision, event['time'])

  def _carry_out(
    self, decision: Decision, time: float, *, starts: bool = False
  ) -> None:
    """Applies updates, has the run reviewed, and releases workers."""
    self._wake_at(decision.wake_at)
    for update in decision.commit:
      applied = self.store.commit(update)
      self.recorder.record_update(update, time, applied=applied)
    self.milestones.review(
      time, barrier=decision.barrier, notes=self.batching.report
    )
    if not decision.release:
      return
    all_stop = decision.barrier or starts
    if self.milestones.finished:
      self._withheld.append((tuple(decision.release), time, all_stop))
    else:
      self._begin_iterations(decision.release, time, all_stop=all_stop)

  def _begin_iterations(
    self, released: Sequence[int], time: float, *, all_stop: bool
  ) -> None:
    self._assign(released, time, all_stop=all_stop)
    for index in released:
      self._start_iteration(index, time)

  def _assign(
    self, released: Sequence[int], time: float, *, all_stop: bool
  ) -> None:
    """Passes measurements to the batching; sets the next batch sizes."""
    for index in released:
      worker = self.workers[index]
      self.enter(index, 'wait', time)  # It has waited until now.
      phases_s, worker.phases_s = worker.phases_s, dict.fromkeys(PHASES, 0.0)
      if worker.computed is None:  # It has just joined.
        continue
      compute_s, factors = worker.computed
      worker.computed = None
      self.recorder.record_iteration(index, phases_s, time)
      self.batching.observe(
        Measurement(
          worker=index,
          time=time,
          compute_s=compute_s,
          transfer_s=phases_s['pull'] + phases_s['push'],
          waited_s=phases_s['wait'],
          examples=worker.examples,
          factors=factors,
        )
      )
    if all_stop or not self.batching.needs_barriers:
      for index, examples in self.batching.assign(released).items():
        self.workers[index].batch = examples

  def _start_iteration(self, index: int, time: float) -> None:
    worker = self.workers[index]
    worker.iteration += 1
    worker.is_iterating = True
    worker.version = self.store.version
    worker.stage = self.find_stage()
    worker.examples = size(worker.ahead) or worker.batch
    worker.ranges = self._stream.take(index, worker.examples)
    if self.ahead:
      worker.ahead = self._stream.reserve(index, worker.batch)
    self.enter(index, 'pull', time)
    self._release(index)
