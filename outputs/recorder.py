"""Follows a run for both runtimes: accounts, evaluations, files, display, end.

A runtime reports what happens; the recorder evaluates and logs when enough
examples have been processed, stops the run on a loss that is not finite, and
says when the run has finished.
"""

import math
import time as wall
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax

from learning.learning import Evaluation, ParameterStore
from outputs import thresholds
from outputs.accounting import Accounting, Lost
from outputs.console import Console
from outputs.evaluations import Evaluations
from outputs.files import RunFiles
from outputs.measures import Measures
from outputs.thresholds import Reached
from sync import record
from sync.scheme import Decision, Push

# Attributes of a recorder that change while it follows a run.
_STATE = (
  'accounting',
  'finished',
  'looked',
  '_next_eval',
  '_next_log',
  '_losses',
)
_STATE += ('_since', '_thresholds', 'measures', '_accuracy', '_wall_before_s')


class Milestones(NamedTuple):
  """Length of a run, and intervals of its evaluations and log rows.

  Attributes:
    target: Examples after which the run ends.
    epoch: Examples of one epoch.
    eval_every: Examples between evaluations.
    log_every: Iterations between log rows.
    accuracies: Accuracies whose time of the first evaluation at or above is
      reported.
    losses: Losses whose time of the first ten iterations in a row below is
      reported.
  """

  target: int
  epoch: int
  eval_every: int
  log_every: int
  accuracies: tuple[float, ...]
  losses: tuple[float, ...] = ()


class Recorder:
  """Follows one run.

  Attributes:
    accounting: The accounts.
    measures: What papers plot.
    finished: Whether the target is reached.
    looked: How often an evaluation has been due.
    evaluate: Gives the accuracy of a version; None if nothing is learned.
  """

  def __init__(
    self,
    *,
    milestones: Milestones,
    store: ParameterStore,
    evaluate: Evaluation | None,
    files: RunFiles,
    console: Console,
    later: Callable[[Callable[[], Any]], Future] | None = None,
  ):
    """Creates a recorder that has recorded nothing.

    Args:
      milestones: Length of the run, and intervals of evaluations and log rows.
      store: Parameter store (store) whose versions are evaluated.
      evaluate: Returns the accuracy of a version; None without a model.
      files: Writer of the run's files.
      console: Display of the run.
      later: Calls a function in another thread, so that the run continues
        meanwhile; None calls it at once.
    """
    self.accounting = Accounting()
    self.finished = False
    self.looked = 0
    self._milestones = milestones
    self._store = store
    self.evaluate = evaluate
    self._files = files
    self._console = console
    self._evaluations = Evaluations(store=store, evaluate=evaluate, later=later)
    self._next_eval = milestones.eval_every
    self._next_log = milestones.log_every
    self._losses: list[tuple[Push, int, Any, Reached]] = []
    # Loss and examples since the last row of each kind.
    self._since = {'log': (0.0, 0), 'evaluation': (0.0, 0)}
    self._thresholds = thresholds.make(milestones.accuracies, milestones.losses)
    self.measures = Measures()
    self._accuracy: float | None = None
    self._wall_before_s = 0.0  # Of the processes that ran it before.
    self._start = wall.perf_counter()

  def warm_up(self) -> None:
    """Compiles the evaluation; the run's wall time starts after it."""
    if self.evaluate is not None:
      self._evaluations.warm_up()
    self._start = wall.perf_counter()

  def state(self) -> dict[str, Any]:
    """Returns what following a run changes."""
    self._fetch_losses()
    state = {name: getattr(self, name) for name in _STATE}
    state['evaluations'] = self._evaluations.state()
    return state | {'_wall_before_s': self._wall_s}

  def restore(self, state: dict[str, Any]) -> None:
    """Goes back to where `state` was taken; it is the recorder's now."""
    for name in _STATE:
      setattr(self, name, state[name])
    self._evaluations.restore(state['evaluations'])
    self._start = wall.perf_counter()

  def told(
    self, told: str, event: Push | Mapping[str, Any], decision: Decision
  ) -> None:
    """Records what the scheme was told and said."""
    if self._files.events:
      fields = event._asdict() if isinstance(event, Push) else dict(event)
      self._files.event(record.encode_row(told, fields, decision))

  def links(self, row: Mapping[str, Any]) -> None:
    """Records what was found out about links, and what follows."""
    self._files.event({'event': 'links', **row})

  def traffic(self, row: Mapping[str, Any]) -> None:
    """Records what links have carried for some time."""
    self.links(row)
    self._files.rates(row['since'], row['rates'])

  def forgot(
    self, worker: int, time: float, l1: Mapping[str, float] | None
  ) -> None:
    """Records that what a worker kept of gradients is lost with it.

    Args:
      worker: Which one.
      time: Seconds.
      l1: Sums of absolute numbers, by parameter; None if nobody knows.
    """
    row = {'event': 'forgot', 'time': time, 'worker': worker, 'l1': l1}
    self._files.event(row)

  def recalled(self, worker: int, time: float) -> None:
    """Records that a worker has it again, or what others kept, and sends it."""
    self._files.event({'event': 'recalled', 'time': time, 'worker': worker})

  def drift(self, row: Mapping[str, Any]) -> None:
    """Records that a replica differed from the reference: see docs/files.md."""
    self._files.event({'event': 'drift', **row})

  def computes_on(self, workers: Mapping[int, Sequence[str]]) -> None:
    """Records kinds of the devices on which workers compute, by rank."""
    self._files.record_workers(workers)

  def iterated(self, worker: int, spent: Mapping[str, float]) -> None:
    """Counts an iteration of a worker, with its seconds by phase."""
    self.measures.iterated(worker, spent)

  def span(
    self, worker: int, phase: str, start: float, end: float, examples: int
  ) -> None:
    """Records that a worker spent the seconds from start to end in a phase.

    Args:
      worker: Which one.
      phase: One of accounting.PHASES.
      start: Seconds.
      end: Seconds.
      examples: Of the iteration that it is part of.
    """
    self.accounting.spent(phase, end - start)
    if end > start and self._files.timeline:
      self._files.span(worker, phase, start, end, examples)

  def pushed(
    self,
    into: int,
    push: Push,
    *,
    iteration: int,
    pulled: int,
    loss: jax.Array | None,
    computed: int,
    finite: bool = True,
  ) -> None:
    """Records a push of version `pulled` and its summed loss, not yet known.

    What is not finite is not part of its update.
    """
    accounting = self.accounting
    accounting.pushed(
      into,
      push,
      iteration=iteration,
      pulled=pulled,
      computed=computed,
      finite=finite,
    )
    if loss is not None:
      at = (accounting.iterations, accounting.updates, accounting.examples)
      self._losses.append((push, iteration, loss, Reached(push.time, *at)))

  def lost(self, lost: Lost) -> None:
    """Records that an iteration was given up."""
    self.accounting.lost.append(lost)

  def carried(self, size_bytes: int) -> None:
    """Records that so many bytes of pushes and pulls have arrived."""
    self.accounting.bytes += size_bytes

  def committed(
    self, update: int, time: float, *, applied: bool = True
  ) -> None:
    """Records that an update was applied, or skipped, at `time` seconds."""
    self.measures.committed(
      time, self.accounting.committed(update, applied=applied)
    )

  def looks(self, examples: int) -> bool:
    """Returns whether `reached` will evaluate, or end the run, at so many."""
    return examples >= min(self._next_eval, self._milestones.target)

  def reached(
    self,
    time: float,
    *,
    barrier: bool,
    notes: Callable[[], Mapping[str, float]] = dict,
  ) -> None:
    """Looks at the run after a decision was carried out.

    Args:
      time: Seconds.
      barrier: Whether a superstep has ended.
      notes: Returns what rows say of the batching.

    Raises:
      FloatingPointError: If a loss is not finite, and names worker and
        iteration, or a parameter.
    """
    if self._evaluations.waiting:
      self._fetch_accuracies()
    accounting = self.accounting
    self.measures.arrived(time, accounting.bytes)
    self.finished = accounting.examples >= self._milestones.target
    if barrier:
      self._row('barrier', time, **notes())
    if accounting.iterations >= self._next_log:
      self._next_log += self._milestones.log_every
      self._row('log', time, loss=self._mean_loss('log'), **notes())
    if accounting.examples >= self._next_eval or self.finished:
      while self._next_eval <= accounting.examples:
        self._next_eval += self._milestones.eval_every
      self._evaluated(time)

  def summary(self, time: float, **more: Any) -> dict[str, Any]:
    """Returns what summary.json holds at `time` seconds."""
    return {
      'final_accuracy': self._accuracy,
      **{f'final_{name}': x for name, x in self._evaluations.newest.items()},
      **self._thresholds.summary(),
      'time_s': time,
      'wall_s': self._wall_s,
      **self.accounting.summary(),
      **self.measures.summary(time),
      **more,
    }

  def _evaluated(self, time: float) -> None:
    self.looked += 1
    row = self._made('evaluation', time, loss=self._mean_loss('evaluation'))
    if self.evaluate is None:
      self._write(row)
      return
    self._fetch_accuracies(wait=self.finished)  # Then none is left out.
    self._evaluations.add(row)
    self._fetch_accuracies(wait=self.finished)

  def _fetch_accuracies(self, *, wait: bool = False) -> None:
    """Writes the rows of evaluations that have ended, or of all."""
    for row, accuracy in self._evaluations.fetch(wait=wait):
      if accuracy is not None:
        row['accuracy'] = self._accuracy = accuracy
        at = [row[name] for name in ('iterations', 'updates', 'examples')]
        self._thresholds.accuracy(accuracy, Reached(row['time'], *at))
      self._write(row)

  def _row(self, kind: str, time: float, **measured: float | None) -> None:
    self._write(self._made(kind, time, **measured))

  def _made(
    self, kind: str, time: float, **measured: float | None
  ) -> dict[str, Any]:
    accounting = self.accounting
    wall_s = self._wall_s
    return {
      'kind': kind,
      'time': time,
      'examples': accounting.examples,
      'epoch': accounting.examples / self._milestones.epoch,
      'iterations': accounting.iterations,
      'updates': accounting.updates,
      'loss': None,
      'accuracy': None,
      'learning_rate': self._store.learning_rate,
      'waiting_share': accounting.waiting_share,
      'staleness_mean': accounting.staleness_mean,
      **self._scaled(),
      **measured,
      'wall_s': wall_s,
      'wall_examples_per_s': accounting.examples / wall_s,
    }

  def _scaled(self) -> dict[str, float]:
    """Returns what rows say of loss scales, if there are any."""
    scales = [scaling.value for scaling in self._store.scalings]
    if not scales:
      return {}
    return {'loss_scale': min(scales), 'skipped': self.accounting.skipped}

  def _write(self, row: dict[str, Any]) -> None:
    self._files.metric(row)
    self._console.show(row, accuracy=self._accuracy)

  @property
  def _wall_s(self) -> float:
    return self._wall_before_s + wall.perf_counter() - self._start

  def _mean_loss(self, kind: str) -> float | None:
    """Returns the mean loss per example since the last row of a kind."""
    self._fetch_losses()
    for push, iteration, loss, at in self._losses:
      if not math.isfinite(loss):
        raise FloatingPointError(
          f'The loss of worker {push.worker}, iteration {iteration}, is '
          f'{float(loss)}: expected a finite number.  A smaller '
          'config.optimizer.learning_rate may help.'
        )
      self._thresholds.loss(float(loss) / push.examples, at)
    new = (
      sum(float(loss) for _, _, loss, _ in self._losses),
      sum(push.examples for push, *_ in self._losses),
    )
    self._losses.clear()
    for each, (loss, examples) in self._since.items():
      self._since[each] = loss + new[0], examples + new[1]
    loss, examples = self._since[kind]
    self._since[kind] = 0.0, 0
    return loss / examples if examples else None

  def _fetch_losses(self) -> None:
    if not self._losses:
      return
    losses = jax.device_get([loss for _, _, loss, _ in self._losses])
    self._losses = [
      (push, iteration, loss, at)
      for (push, iteration, _, at), loss in zip(
        self._losses, losses, strict=True
      )
    ]
