"""Milestones of a run: decides when it is logged, evaluated, saved and ended.

The coordinator has `Milestones` review the run after each decision of the
scheme, before it releases workers: an evaluation is of the version of exactly
that moment.  The training loop asks `SaveSchedule` after each step.  What the
milestones decide is written by `outputs.recorder`, which decides nothing.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cluster.evaluations import Evaluations, RunInThread
from learning.learning import Evaluation, ParameterStore
from outputs.recorder import Recorder
from system import clock

# Attributes of milestones that change during a run.
_STATE = ('evaluations', '_next_eval', '_next_log')


class Intervals(NamedTuple):
  """Length of a run, and intervals of its evaluations and log rows.

  Attributes:
    target: Examples after which the run is complete.
    eval_every: Examples or seconds between evaluations.
    log_every: Iterations between log rows.
    is_timed: Whether `eval_every` is in seconds on the run's clock.
  """

  target: int
  eval_every: float
  log_every: int
  is_timed: bool = False


class SaveSchedule:
  """Decides when a checkpoint is saved.

  Attributes:
    is_enabled: Whether the run saves checkpoints at all.
  """

  def __init__(self, *, every_s: float, every_examples: int):
    """Creates a schedule that counts from now on, and from 0 examples.

    Args:
      every_s: Seconds of wall time between checkpoints; inf for none.
      every_examples: Examples between checkpoints; 0 for none.
    """
    self._every_s = every_s
    self._every_examples = every_examples or math.inf
    self.is_enabled = min(self._every_s, self._every_examples) < math.inf
    self.restart(0)

  def restart(self, examples: int) -> None:
    """Sets the next checkpoint one interval after now, in time and examples.

    Args:
      examples: Number of examples in applied updates.
    """
    self._next_examples = examples + self._every_examples
    self._next_s = clock.monotonic() + self._every_s

  def state(self) -> tuple[float, float]:
    """Returns examples, and seconds from now, of the next checkpoint."""
    return self._next_examples, self._next_s - clock.monotonic()

  def take_over(self, examples: float, wait_s: float) -> None:
    """Continues from the `state` of another process."""
    self._next_examples = examples
    self._next_s = clock.monotonic() + wait_s

  def is_due(self, examples: int) -> bool:
    """Returns whether it is time for a checkpoint."""
    return examples >= self._next_examples or clock.monotonic() >= self._next_s


class Milestones:
  """Decides when a run is logged and evaluated, and when it ends.

  Attributes:
    evaluations: Number of evaluations that have become due.
    evaluate: Evaluation of a version; None if nothing is learned.
    keeps_last: Whether `last` is wanted.
    last: Parameters and statistics of the version at the end; None before.
  """

  def __init__(
    self,
    *,
    intervals: Intervals,
    recorder: Recorder,
    store: ParameterStore,
    evaluate: Evaluation | None,
    run_in_thread: RunInThread | None = None,
    save_schedule: SaveSchedule | None = None,
    plans_ahead: bool = False,
  ):
    """Creates the milestones of a run that starts.

    Args:
      intervals: Length of the run, and intervals of evaluations and log rows.
      recorder: Recorder of the run, whose accounting is reviewed.
      store: Parameter store whose versions are evaluated.
      evaluate: Evaluation of a version; None if nothing is learned.
      run_in_thread: Function that calls another one in a thread, so that the
        run continues meanwhile; None to call it at once.
      save_schedule: Schedule of the checkpoints, which a successor continues;
        None for none.
      plans_ahead: Whether the version to evaluate has to be known before its
        iteration ends, so that the next one does not begin: see
        `plan_evaluation`.
    """
    self.evaluations = 0
    self.evaluate = evaluate
    self.keeps_last = False
    self.last: tuple[Any, Any] | None = None
    self._intervals = intervals
    self._plans_ahead = plans_ahead
    self._next_eval = intervals.eval_every  # Examples or seconds.
    self._planned_eval = math.inf  # Examples, where the interval is in seconds.
    self._next_log = intervals.log_every
    self._recorder = recorder
    self._store = store
    self._save_schedule = save_schedule
    self._interrupted: int | None = None  # Version; see `take_over`.
    self._queue: Evaluations | None = None
    if evaluate is not None:
      self._queue = Evaluations(
        store=store, evaluate=evaluate, run_in_thread=run_in_thread
      )

  @property
  def finished(self) -> bool:
    """True once the target is reached."""
    return self._recorder.accounting.examples >= self._intervals.target

  def warm_up(self) -> None:
    """Compiles the evaluation."""
    if self._queue is not None:
      self._queue.warm_up()

  def plan_evaluation(self, examples: int, time: float) -> None:
    """Plans an evaluation if its time has come, where the interval is a time.

    Args:
      examples: Examples in applied updates when the run can be evaluated next.
      time: Seconds on the run's clock.
    """
    if self._intervals.is_timed and time >= self._next_eval:
      self._planned_eval = min(self._planned_eval, examples)

  def will_evaluate(self, examples: int) -> bool:
    """Returns whether a review after so many examples evaluates the run."""
    is_timed = self._intervals.is_timed
    due = self._planned_eval if is_timed else self._next_eval
    return examples >= min(due, self._intervals.target)

  def review(
    self,
    time: float,
    *,
    barrier: bool,
    notes: Callable[[], Mapping[str, float]] = dict,
  ) -> None:
    """Logs and evaluates the run if it is time, and notes if it is complete.

    Args:
      time: Seconds on the run's clock.
      barrier: Whether a superstep has ended.
      notes: Function that returns figures of the batching, for the rows.

    Raises:
      FloatingPointError: If a loss is not finite, which names worker and
        iteration, or a parameter.
    """
    recorder, accounting = self._recorder, self._recorder.accounting
    if self._queue:
      self.record_evaluations()
    recorder.measures.add_bytes(time, accounting.bytes)
    if barrier:
      recorder.record_row(self._row('barrier', time, **notes()))
    if accounting.iterations >= self._next_log:
      self._next_log += self._intervals.log_every
      loss = self._mean_loss('log')
      recorder.record_row(self._row('log', time, loss=loss, **notes()))
    if not self._plans_ahead:
      self.plan_evaluation(accounting.examples, time)
    if self.will_evaluate(accounting.examples):
      self._planned_eval = math.inf
      at = time if self._intervals.is_timed else accounting.examples
      self._next_eval = _next_multiple(self._intervals.eval_every, at)
      self._evaluate(time)

  def read_version(self) -> tuple[Any, Any]:
    """Returns parameters and statistics of the current version."""
    handle = self._store.hold()
    version = self._store.read(handle)()
    self._store.free(handle)
    return version

  def record_evaluations(self, *, wait: bool = False) -> None:
    """Records the evaluations that have ended.

    Args:
      wait: True to wait for all others, too.

    Raises:
      FloatingPointError: If a parameter is not finite.
    """
    if self._queue is not None:
      for row, figures in self._queue.take(wait=wait):
        self._recorder.record_evaluation(row, figures)

  def state(self) -> dict[str, Any]:
    """Returns the state for a checkpoint."""
    state = {name: getattr(self, name) for name in _STATE}
    return state | {'queue': self._queue.state() if self._queue else []}

  def successor_state(self, *, with_versions: bool = False) -> dict[str, Any]:
    """Returns the state for a process that may continue the run.

    Args:
      with_versions: Whether that process can read the held versions.
    """
    state = self.state()
    queue, held = state['queue'], []
    if not with_versions:
      queue = [(row, version, None) for row, version, _ in queue]
      held = [version for _, version, n in state['queue'] if n is not None]
    schedule = self._save_schedule
    return state | {
      'queue': queue,
      'interrupted': max(held, default=None),
      'saving': schedule.state() if schedule else None,
    }

  def restore(self, state: dict[str, Any]) -> None:
    """Continues from the state of a checkpoint, which it takes over."""
    for name in _STATE:
      setattr(self, name, state[name])
    if self._queue is not None:
      self._queue.restore(state['queue'])

  def take_over(self, state: dict[str, Any]) -> None:
    """Continues from the result of `successor_state` of a lost process.

    Evaluations that have not ended there are left out, but for the newest: see
    `repeat_evaluation`.
    """
    self.restore(state)
    self._interrupted = state['interrupted']
    if self._save_schedule:
      self._save_schedule.take_over(*state['saving'])

  def repeat_evaluation(self) -> None:
    """Computes the newest evaluation again that a lost process has begun.

    If its version is no longer there, the next one is evaluated in addition.
    """
    version, self._interrupted = self._interrupted, None
    if version is None or self._queue is None:
      return
    if not self._queue.repeat(version):
      self._next_eval = 0

  def _evaluate(self, time: float) -> None:
    """Evaluates the current version, now or in a thread."""
    self.evaluations += 1
    self._interrupted = None
    if self.keeps_last and self.finished:
      self.last = self.read_version()
    loss = self._mean_loss('evaluation')
    row = self._row('evaluation', time, loss=loss)
    if self._queue is None:
      self._recorder.record_row(row)
      return
    self.record_evaluations(wait=self.finished)  # The last leaves none out.
    self._queue.add(row)
    self.record_evaluations(wait=self.finished)

  def _row(
    self, kind: str, time: float, **measured: float | None
  ) -> dict[str, Any]:
    return self._recorder.make_row(
      kind,
      time,
      learning_rate=self._store.learning_rate,
      loss_scales=[scaling.value for scaling in self._store.scalings],
      **measured,
    )

  def _mean_loss(self, kind: str) -> float | None:
    """Returns the mean loss per example since the last row of a kind.

    Raises:
      FloatingPointError: If a loss is not finite.
    """
    first = self._recorder.count_losses()
    if first is not None:
      advice = 'A smaller config.optimizer.learning_rate may help.'
      if not first.iteration:
        advice = (
          'It is the first of this worker: inputs, targets or initial '
          'parameters may be not finite or out of range; only with several '
          'local steps may config.optimizer.learning_rate be too large.'
        )
      raise FloatingPointError(
        f'The loss of worker {first.worker}, iteration {first.iteration}, is '
        f'{float(first.loss)}: expected a finite number.  {advice}'
      )
    return self._recorder.take_mean_loss(kind)


def _next_multiple(step: float, above: float) -> float:
  """Returns the smallest multiple of `step` above a number."""
  count = above // step + 1
  while count * step <= above:  # Rounding.
    count += 1
  return count * step
