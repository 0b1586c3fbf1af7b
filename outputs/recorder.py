"""Record of a run: accounting, measures, rows of its files, display, summary.

The recorder writes what it is given, and decides nothing: `cluster.milestones`
decides when a row is due, and when a run ends.

  event            state of a loss before   state after
  add_loss         -                        on its device
  count_losses     on its device            in the sums of both kinds of rows
  take_mean_loss   in the sums              in a row of one kind

The states of a push are those of `outputs.accounting`.  `restore` replaces all
by the result of `state`, of this process or of another one; `rewind` cuts the
rows as well.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from absl import logging

from configs.checks import require
from diagnosis.traffic import Traffic
from diagnosis.watch import LinkWatch, StragglerChange, Watch
from outputs import thresholds, tracking
from outputs.accounting import Accounting, Rollback
from outputs.console import Console
from outputs.files import RunFiles
from outputs.measures import Measures
from outputs.thresholds import Reached
from sync import record
from sync.scheme import Decision, Push
from system import clock

# Attributes of a recorder that change during a run.
_STATE = (
  *('accounting', 'measures', '_losses', '_sums', '_thresholds'),
  *('_figures', '_wall_before_s', '_watch', '_link_watch'),
)


class PushLoss(NamedTuple):
  """Loss of a push.

  Attributes:
    weight: Weight of the push, in examples.
    loss: Weighted sum over the examples; on a device until it is fetched.
    at: Progress of the run when the push arrived.
  """

  worker: int
  iteration: int
  weight: float
  loss: Any
  at: Reached


class Recorder:
  """Recorder of one run.

  Args:
    epoch: Examples of one epoch.
    files: Folder of the run.
    console: Display of the run.
    measures: Directions of the measures of evaluations, by name.
    accuracies: Accuracies for which the summary has the first evaluation at or
      above.
    losses: Losses for which the summary has the first ten iterations in a row
      below.
    figures: Values of other measures for which it has the first evaluation that
      is as good, by name.
    watch: Watch for slow workers; None for no warnings.

  Attributes:
    accounting: Counts of the run so far.
    measures: Distributions of the run so far.
    rows: Writer of the files that grow.

  Raises:
    ValueError: If a measure has the name of another field of rows.
  """

  def __init__(
    self,
    *,
    epoch: int,
    files: RunFiles,
    console: Console,
    measures: Mapping[str, str] = {},
    accuracies: Iterable[float] = (),
    losses: Iterable[float] = (),
    figures: Mapping[str, Iterable[float]] = {},
    watch: Watch | None = None,
  ):
    for name in measures:
      require(
        name.isidentifier() and name not in tracking.NO_MEASURES,
        'task.others, task.derived',
        'names of measures, words other than the fields '
        f'{tracking.NO_MEASURES} of metrics.jsonl',
        name,
      )
    self.accounting = Accounting()
    self.measures = Measures()
    self._epoch = epoch
    self.rows = files.rows
    self._files = files
    self._console = console
    self._losses: list[PushLoss] = []
    # Loss and weight since the last row of each kind.
    self._sums: dict[str, tuple[float, float]] = {
      'log': (0.0, 0),
      'evaluation': (0.0, 0),
    }
    self._thresholds = thresholds.make(accuracies, losses, figures)
    self._falling = [name for name in measures if measures[name] == 'falls']
    self._figures: dict[str, float] = {}  # Results of the newest evaluation.
    self._wall_before_s = 0.0  # Wall time of earlier processes of the run.
    self._start = clock.perf_counter()
    self._watch = watch
    self._link_watch = LinkWatch()

  def start_wall_clock(self) -> None:
    """Starts the wall time of this process."""
    self._start = clock.perf_counter()

  def state(
    self, *, is_standby: bool = False, with_measures: bool = True
  ) -> dict[str, Any]:
    """Returns the state for a process that may continue the run.

    Args:
      is_standby: Whether it is sent often: losses are counted and distributions
        folded before, so that it stays small.
      with_measures: Whether it has the distributions, which are larger.
    """
    self._fetch_losses()
    if is_standby:
      self.count_losses()
      if with_measures:
        self.measures.fold()
    state = {name: getattr(self, name) for name in _STATE}
    if not with_measures:
      del state['measures']
    return state | {'_wall_before_s': self._wall_s}

  def restore(self, state: dict[str, Any], *, age_s: float = 0.0) -> None:
    """Continues from the state of a checkpoint, which it takes over.

    Args:
      state: Result of `state`.
      age_s: Seconds since that state that the run's wall time includes.
    """
    watch = self._watch
    for name in _STATE:
      setattr(self, name, state[name])
    if watch and (self._watch is None or not watch.is_like(self._watch)):
      self._watch = watch  # Of another number of workers, from now on.
    self._wall_before_s += age_s
    self.start_wall_clock()

  def rewind(
    self, state: dict[str, Any], sizes: Mapping[str, int], rollback: Rollback
  ) -> None:
    """Goes back to an earlier state of this run, and records that.

    Args:
      state: Earlier state, which it takes over.
      sizes: Bytes of the files then.
      rollback: Account of the updates since, which are lost.
    """
    wall_s, before = self._wall_s, self.accounting
    self.rows.rewind(sizes)
    self.restore(state)
    self._wall_before_s = wall_s
    self.accounting.rollbacks = before.rollbacks
    self.accounting.mirror_bytes = before.mirror_bytes
    self.record_rollback(rollback)

  def record_rollback(self, rollback: Rollback) -> None:
    """Records the return to a mirror in another process than before."""
    self.accounting.rollbacks = [*self.accounting.rollbacks, rollback]
    self.rows.event({'event': 'rollback', **rollback._asdict()})

  def record_decision(
    self,
    name: str,
    event: Push | Mapping[str, Any],
    decision: Decision,
    *,
    factors: Sequence[float] = (),
  ) -> None:
    """Records an event of the scheme and its decision; warns of stragglers.

    Args:
      name: Name of the event, as in `sync.record`.
      event: Fields of the event.
      decision: Decision of the scheme on it.
      factors: Driving factors that were read with a push; may be none.
    """
    if self.rows.events:
      fields = (
        record.push_fields(event) if isinstance(event, Push) else dict(event)
      )
      row = record.encode_row(name, fields, decision)
      self.rows.event(row | {'factors': factors} if factors else row)
    if self._watch is None:
      return
    if isinstance(event, Push):
      found = self._watch.push(event.worker, event.time, event.compute_s)
      self._record_warnings(found, event.time)
    elif name == 'start':
      self._watch.start(decision.release)
    elif name == 'leave':
      self._watch.leave(event['worker'])

  def _record_warnings(
    self, warnings: Iterable[StragglerChange], time: float
  ) -> None:
    """Records and shows that workers or links become slow, or normal."""
    for warning in warnings:
      self.rows.event(warning.row(time))
      logging.info('Straggler: %s', warning.text)

  def record_links(self, row: Mapping[str, Any]) -> None:
    """Records measurements of links, or a forest made from them."""
    self.rows.event({'event': 'links', **row})
    if row['did'] == 'forest':
      self._link_watch.begin_epoch(bool(row.get('known')))

  def record_traffic(self, row: Mapping[str, Any]) -> None:
    """Records the bytes that links between workers have carried."""
    self.record_links(row)
    self.rows.rates(row['since'], row['rates'])
    if self._watch is not None:
      self._watch_links(row, _traffic(row), 'planned')

  def record_server_links(self, row: Mapping[str, Any]) -> None:
    """Records the rates of connections to servers, by host."""
    self.record_links(row)
    if self._watch is not None:
      # The slowness of a host is relative to the others already.
      self._link_watch.is_planned = True
      slowness = {each['host']: each['slowness'] for each in row['rates']}
      window = Traffic(
        row['since'], row['iterations'], row['exposed'], slowness
      )
      self._watch_links(row, window, 'others')

  def _watch_links(
    self, row: Mapping[str, Any], window: Traffic, usual: str
  ) -> None:
    """Records and shows links that become slow, or are so no longer."""
    for link, is_slow in self._link_watch.update(window):
      ends, name = {'host': link}, f'of host {link}'
      if isinstance(link, tuple):
        ends = dict(zip(('src', 'dst'), link, strict=True))
        name = f'from worker {link[0]} to worker {link[1]}'
      did = 'appears' if is_slow else 'ends'
      event = {'event': 'straggler', 'time': row['time'], 'of': 'link'}
      self.rows.event(event | {'did': did, **ends, 'since': row['since']})
      state = 'slow' if is_slow else f'as {usual} again'
      logging.info(
        'Straggler: link %s is %s, since %.4g s.', name, state, row['since']
      )

  def record_lost_residual(
    self, worker: int, time: float, l1: Mapping[str, float] | None
  ) -> None:
    """Records that the state of a worker is lost with it.

    That is its residual and, with local steps, its inner optimizer's state.

    Args:
      l1: Sum of the residual's absolute values, by parameter; None if unknown.
    """
    row = {'event': 'forgot', 'time': time, 'worker': worker, 'l1': l1}
    self.rows.event(row)

  def record_recovered_residual(self, worker: int, time: float) -> None:
    """Records that a worker continues with its state from before its loss."""
    self.rows.event({'event': 'recalled', 'time': time, 'worker': worker})

  def record_devices(self, workers: Mapping[int, Sequence[str]]) -> None:
    """Records the kinds of the devices on which workers compute, by rank."""
    self._files.record_workers(workers)

  def record_iteration(
    self, worker: int, phases_s: Mapping[str, float], time: float
  ) -> None:
    """Records the seconds of a worker's iteration, by phase, at its end.

    Warns of workers whose links have become slow, or are normal again.

    Args:
      worker: Index of the worker.
      phases_s: Seconds in each of accounting.PHASES, in this order.
      time: End of the iteration, seconds, clock of the run.
    """
    self.measures.add_iteration(worker, phases_s)
    if self._watch is not None:
      self._record_warnings(self._watch.iteration(worker, time, phases_s), time)

  def record_span(
    self, worker: int, phase: str, start: float, end: float, examples: int
  ) -> None:
    """Records the phase of a worker between two times, seconds.

    Args:
      phase: One of accounting.PHASES.
      examples: Examples of the iteration that the phase is part of.
    """
    self.accounting.seconds[phase] += end - start
    if end > start and self.rows.timeline:
      self.rows.span(worker, phase, start, end, examples)

  def add_loss(self, push: Push, iteration: int, loss: Any) -> None:
    """Adds the loss of a push that was just counted.

    Args:
      loss: Weighted sum over the examples, perhaps still on a device.
    """
    counts = self.accounting
    at = (counts.iterations, counts.updates, counts.examples)
    weight = push.examples if push.weight is None else push.weight
    self._losses.append(
      PushLoss(push.worker, iteration, weight, loss, Reached(push.time, *at))
    )

  def record_update(
    self, update: int, time: float, *, applied: bool = True
  ) -> None:
    """Records that an update was applied, or skipped, at `time` seconds."""
    self.measures.add_update(
      time, self.accounting.add_update(update, applied=applied)
    )

  def _fetch_losses(self) -> None:
    """Makes the losses that have not been counted numbers of this host."""
    if self._losses:
      losses = jax.device_get([each.loss for each in self._losses])
      self._losses = [
        each._replace(loss=loss)
        for each, loss in zip(self._losses, losses, strict=True)
      ]

  def count_losses(self) -> PushLoss | None:
    """Counts losses up to the first that is not finite; returns that one."""
    self._fetch_losses()
    finite = list(
      itertools.takewhile(lambda each: math.isfinite(each.loss), self._losses)
    )
    self._losses = self._losses[len(finite) :]
    for each in finite:
      if each.weight:
        self._thresholds.add_loss(float(each.loss) / each.weight, each.at)
    new_loss = sum(float(each.loss) for each in finite)
    new_weight = sum(each.weight for each in finite)
    for kind, (loss, weight) in self._sums.items():
      self._sums[kind] = loss + new_loss, weight + new_weight
    return self._losses[0] if self._losses else None

  def take_mean_loss(self, kind: str) -> float | None:
    """Returns the weighted mean loss since the last row of a kind.

    The next mean of this kind, 'log' or 'evaluation', begins here.
    """
    loss, weight = self._sums[kind]
    self._sums[kind] = 0.0, 0
    return loss / weight if weight else None

  def make_row(
    self,
    kind: str,
    time: float,
    *,
    learning_rate: float | None,
    loss_scales: Sequence[float],
    **measured: float | None,
  ) -> dict[str, Any]:
    """Returns a row of metrics.jsonl on the run so far.

    Args:
      kind: 'barrier', 'log' or 'evaluation'.
      learning_rate: Learning rate of the next update; None without one.
      loss_scales: Loss scale of each worker; empty without scaling.
      **measured: More fields, such as `loss`.
    """
    accounting = self.accounting
    wall_s = self._wall_s
    scaled = {}
    if loss_scales:
      scaled = {'loss_scale': min(loss_scales), 'skipped': accounting.skipped}
    return {
      'kind': kind,
      'time': time,
      'examples': accounting.examples,
      'epoch': accounting.examples / self._epoch,
      'iterations': accounting.iterations,
      'updates': accounting.updates,
      'loss': None,
      'accuracy': None,
      'learning_rate': learning_rate,
      'waiting_share': accounting.waiting_share,
      'staleness_mean': accounting.staleness_mean,
      **scaled,
      **measured,
      'wall_s': wall_s,
      'wall_examples_per_s': accounting.examples / wall_s,
    }

  def record_row(self, row: dict[str, Any]) -> None:
    """Writes a row to metrics.jsonl, and shows it."""
    self.rows.metric(row)
    self._console.show(row, self._figures)

  def record_evaluation(
    self, row: dict[str, Any], figures: Mapping[str, float] | None
  ) -> None:
    """Adds the row of an evaluation to metrics.jsonl, with its figures.

    The summary gets the figures of the last evaluation; thresholds get all.

    Args:
      row: Result of `make_row` when the evaluation became due; the figures are
        added to it.
      figures: Measures by name; None if the evaluation was left out, whose row
        has none then.
    """
    if figures is not None:
      self._figures = dict(figures)
      row.update(figures)
      at = [row[name] for name in ('iterations', 'updates', 'examples')]
      reached = Reached(row['time'], *at)
      self._thresholds.add_evaluation(figures, self._falling, reached)
    self.record_row(row)

  def summary(self, time: float, **more: Any) -> dict[str, Any]:
    """Returns the content of summary.json at `time` seconds."""
    others = {k: v for k, v in self._figures.items() if k != 'accuracy'}
    return {
      'final_accuracy': self._figures.get('accuracy'),
      **{f'final_{name}': value for name, value in others.items()},
      **self._thresholds.summary(),
      'time_to_interpolated': self._thresholds.interpolate(
        self.rows.evaluations(), self._falling
      ),
      'time_s': time,
      'wall_s': self._wall_s,
      **self.accounting.summary(),
      **self.measures.summary(time),
      **more,
    }

  @property
  def _wall_s(self) -> float:
    """Seconds of wall time, of this process and of earlier ones of the run."""
    return self._wall_before_s + clock.perf_counter() - self._start


def _traffic(row: Mapping[str, Any]) -> Traffic:
  """Returns the traffic of a row, from which slow links are detected."""
  parts = [row[f'{name}_s'] or 0.0 for name in ('compute', 'wait', 'push')]
  total = sum(parts)
  return Traffic(
    start=row['since'],
    iterations=row['iterations'],
    exposed=parts[2] / total if total else 0.0,
    slowness={
      (each['src'], each['dst']): each['planned_Bps'] / each['Bps']
      for each in row['rates']
      if each.get('Bps') and each['planned_Bps']
    },
  )
