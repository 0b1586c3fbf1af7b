"""The coordinator: asks the scheme and carries out what it says, in every runtime.

A runtime tells it what happens, with the time of its clock; the coordinator hands out
examples, says which pushes are summed and applied, keeps the accounts, and
calls the runtime back to let workers go on.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from batching.batching import Batching, Measurement
from data.stream import Ranges, Stream, size
from learning import scaling
from learning.learning import ParameterStore
from outputs.accounting import PHASES, Lost
from outputs.recorder import Recorder
from sync import record
from sync.scheme import Decision, Push, Scheme

# Attributes of a coordinator that change during a run.
_STATE = ('workers', '_scheme', 'batching', '_stream', '_pushes')


@dataclasses.dataclass
class Progress:
  """What the coordinator knows of a worker's iteration.

  Attributes:
    iteration: Number of its iterations before this one; -1 before the first.
    phase: One of accounting.PHASES; None before the start and while it is gone.
    since: When the phase began, seconds.
    version: Of the parameters that the iteration started from.
    stage: Of the wire: by which of its codecs the gradient travels.
    ranges: Positions of its examples in the stream.
    examples: How many they are.
    batch: How many the last iteration that is dealt has.
    ahead: Positions of the examples of its next iteration, if it is dealt
      before this one ends; () if not.
    spent: Seconds in each phase since the iteration began.
    pushed: Seconds of computing and driving factors of the iteration, once it
      is pushed; until the worker goes on.
  """

  is_state = True  # Plain data: checkpoints hold it.

  iteration: int = -1
  phase: str | None = None
  since: float = 0.0
  version: int = 0
  stage: int = 0
  ranges: Ranges = ()
  examples: int = 0
  batch: int = 0
  ahead: Ranges = ()
  spent: dict[str, float] = dataclasses.field(
    default_factory=lambda: dict.fromkeys(PHASES, 0.0)
  )
  pushed: tuple[float, tuple[float, ...]] | None = None


class Coordinator:
  """Stands between a runtime and its scheme.

  Attributes:
    workers: All of them, dead or alive.
    store: Sums pushes and applies updates.
    batching: Says how many examples an iteration has.
    recorder: Follows the run.
    ahead: Whether iterations are dealt one ahead, so that who has ended one can
      begin the next without asking: what is learnt of an iteration then changes
      the batches of the next but one.
    carried: Called with bytes of pushes and pulls that have arrived.
  """

  def __init__(
    self,
    *,
    scheme: Scheme,
    batching: Batching,
    store: ParameterStore,
    stream: Stream,
    recorder: Recorder,
    num_workers: int,
    ahead: bool = False,
    stage: Callable[[], int] = lambda: 0,
  ):
    """Tells the scheme nothing yet.

    Args:
      scheme: Says when a worker may go on.
      batching: Says how many examples it computes.
      store: Sums pushes and applies updates.
      stream: Which examples an iteration uses.
      recorder: Follows the run and says when it has finished.
      num_workers: Number of workers.
      ahead: Whether iterations are dealt one ahead.
      stage: Returns that of the wire for iterations that begin now.
    """
    self.stage = stage
    self.ahead = ahead
    self.workers = [Progress() for _ in range(num_workers)]
    self.store = store
    self.recorder = recorder
    self.carried = recorder.carried
    self._scheme = scheme
    self.batching = batching
    self._stream = stream
    self._pushes = 0

  def attach(
    self,
    *,
    release: Callable[[int], None],
    wake_at: Callable[[float | None], None],
  ) -> None:
    """Names the runtime's part; before `start` or `restore`.

    Args:
      release: Called to let a worker pull and go on: `workers` says with what.
      wake_at: Called with the time at which to call `wake`, None for never.
        Each call replaces the one before.
    """
    self._release = release
    self._wake_at = wake_at

  def start(self, time: float) -> None:
    """Releases the first iteration of every worker.

    Raises:
      ValueError: If the scheme is not one for these workers.
    """
    decision = record.apply_event(self._scheme, 'start', time=time)
    if decision.release != tuple(range(len(self.workers))):
      raise ValueError(
        f'scheme: expected the start to release all {len(self.workers)} '
        f'workers, got {decision.release}.'
      )
    self.recorder.told('start', {'time': time}, decision)
    self._obey(decision, time, starts=True)

  def push(
    self,
    index: int,
    time: float,
    *,
    compute_s: float,
    factors: Sequence[float],
    loss: Any,
    computed: int,
    finite: bool = True,
  ) -> None:
    """Takes in the push of a worker's iteration, which the store has.

    Args:
      index: The worker.
      time: Seconds at which it had arrived whole.
      compute_s: Seconds of computing alone.
      factors: Driving factors of the worker's next iteration; may be none.
      loss: Summed over the examples; None if there is none.
      computed: Examples that were computed, with padding.
      finite: Whether loss and gradient are, as far as is known; if not, then
        nothing of it is applied.

    Raises:
      FloatingPointError: If they are not, for another reason than their scale.
    """
    if not finite:
      self.check(index, finite=finite, loss=loss)
    worker = self.workers[index]
    push = Push(self._pushes, index, time, compute_s, worker.examples)
    self._pushes += 1
    self._stream.done(index)
    self.enter(index, 'wait', time)
    worker.pushed = compute_s, tuple(factors)
    decision = self._scheme.push(push)
    self.recorder.told('push', push, decision)
    self.store.add(decision.into, index, push.examples, finite=finite)
    self.recorder.pushed(
      decision.into,
      push,
      iteration=worker.iteration,
      pulled=worker.version,
      loss=loss if finite else None,
      finite=finite,
      computed=computed,
    )
    self._obey(decision, time)

  def check(self, index: int, *, finite: bool, loss: Any) -> None:
    """Raises FloatingPointError for what no smaller loss scale would mend.

    Args:
      index: Whose loss and gradient it is.
      finite: Whether they are; then it does nothing.
      loss: Summed over the examples; None if that is not known.
    """
    if not finite:
      iteration = self.workers[index].iteration
      what = (
        f'The loss ({loss}) or the gradient of worker {index}, iteration '
        f'{iteration},'
      )
      scaling.check(self.store.scalings, index, what)

  def wake(self, time: float) -> None:
    """Lets the scheme look at the clock."""
    self._tell('wake', time=time)

  def leave(self, index: int, time: float, reason: str) -> None:
    """A worker is gone; others get the examples that it has not pushed.

    Args:
      index: The worker.
      time: Seconds.
      reason: What the accounts say of an iteration that it was in.
    """
    self._lose(index, self.workers[index], time, reason)
    self.enter(index, None, time)
    self.workers[index].pushed = None
    self.workers[index].ahead = ()
    self.batching.leave(index)
    self._tell('leave', worker=index, time=time)

  def join(self, index: int, time: float) -> None:
    """A worker that was gone is back."""
    self.enter(index, 'wait', time)
    self.batching.join(index)
    self._tell('join', worker=index, time=time)

  def enter(self, index: int, phase: str | None, time: float) -> None:
    """Ends a worker's phase and starts another."""
    worker = self.workers[index]
    before, since = worker.phase, worker.since
    if before is not None and time != since:
      self.recorder.span(index, before, since, time, worker.examples)
      worker.spent[before] += time - since
    worker.phase = phase
    worker.since = time

  def close(self, time: float) -> None:
    """Ends what every worker is in the middle of, for the accounts."""
    for index in range(len(self.workers)):
      self.enter(index, None, time)

  def state(self) -> dict[str, Any]:
    """Returns all that events change here and in the scheme."""
    return {name: getattr(self, name) for name in _STATE}

  def restore(self, state: dict[str, Any]) -> None:
    """Goes back to where `state` was taken; it is the coordinator's from now on."""
    for name in _STATE:
      setattr(self, name, state[name])

  def rejoin(self, state: dict[str, Any], time: float) -> None:
    """Goes on from where `state` was taken, with workers and a scheme anew.

    The batching goes on, too, if there are as many workers as before.

    Args:
      state: From `state`, perhaps with another number of workers.
      time: Seconds, then and now.
    """
    self._stream, self._pushes = state['_stream'], state['_pushes']
    if len(state['workers']) == len(self.workers):
      self.batching = state['batching']
    else:
      logging.info('Batches begin anew, with another number of workers.')
    for index, before in enumerate(state['workers']):
      self._lose(index, before, time, 'The run was started again.')
      if index < len(self.workers):
        self.workers[index].iteration = before.iteration
        if self.batching is state['batching'] and before.phase is None:
          self.batching.join(index)

  def upcoming(self, index: int) -> Ranges:
    """Returns the positions that a worker is likely to use next."""
    return self._stream.upcoming(index, self.workers[index].batch)

  @property
  def issued(self) -> int:
    """How many positions of the stream were ever issued."""
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
    """Gives up an iteration that has not been pushed, if there is any."""
    self._stream.leave(index)
    if worker.phase not in (None, 'wait'):
      self.recorder.lost(
        Lost(index, worker.iteration, worker.examples, time, reason)
      )

  def _tell(self, told: str, **event: Any) -> None:
    """Tells the scheme of an event that carries no gradient, and obeys it."""
    decision = record.apply_event(self._scheme, told, **event)
    self.recorder.told(told, event, decision)
    self._obey(decision, event['time'])

  def _obey(
    self, decision: Decision, time: float, *, starts: bool = False
  ) -> None:
    self._wake_at(decision.wake_at)
    for update in decision.commit:
      applied = self.store.commit(update)
      self.recorder.committed(update, time, applied=applied)
    self.recorder.reached(
      time, barrier=decision.barrier, notes=self.batching.report
    )
    if not self.recorder.finished and decision.release:
      self._assign(decision.release, time, all_stop=decision.barrier or starts)
      for index in decision.release:
        self._start_iteration(index, time)

  def _assign(
    self, released: Sequence[int], time: float, *, all_stop: bool
  ) -> None:
    """Asks how many examples the next iterations have."""
    for index in released:
      worker = self.workers[index]
      self.enter(index, 'wait', time)  # It has waited until now.
      spent, worker.spent = worker.spent, dict.fromkeys(PHASES, 0.0)
      if worker.pushed is None:  # It has just come.
        continue
      compute_s, factors = worker.pushed
      worker.pushed = None
      self.recorder.iterated(index, spent)
      self.batching.observe(
        Measurement(
          worker=index,
          time=time,
          compute_s=compute_s,
          transfer_s=spent['pull'] + spent['push'],
          waited_s=spent['wait'],
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
    worker.version = self.store.version
    worker.stage = self.stage()
    worker.examples = size(worker.ahead) or worker.batch
    worker.ranges = self._stream.take(index, worker.examples)
    if self.ahead:
      worker.ahead = self._stream.reserve(index, worker.batch)
    self.enter(index, 'pull', time)
    self._release(index)
