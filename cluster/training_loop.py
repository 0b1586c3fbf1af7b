"""Training loop: one run from its first compilation to its summary.

The loop is the same for every runtime.  Each step of the runtime ends in
decisions of the scheme, after which `cluster.milestones` logs and evaluates the
run when that is due; between steps the loop saves checkpoints when they are
due, and it ends at the target or after a signal.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from absl import logging

from cluster.milestones import Milestones, SaveSchedule
from cluster.process.exits import Exit, Reason, Relinquished, find_reason
from cluster.process.stops import catch_stop_signals
from cluster.runtime import Runtime, Saving
from learning import compilations
from outputs.console import Console
from outputs.files import RunFiles
from outputs.recorder import Recorder
from outputs.transient import is_shortage
from system import processes


class Trained(NamedTuple):
  """Result of a run.

  Attributes:
    params: Parameters of the last version, a pytree like the model's; ()
      without a model.
    stats: Running statistics, such as those of batch normalisation; () if there
      are none.
    summary: Content of summary.json.
  """

  params: Any
  stats: Any
  summary: Mapping[str, Any]


@dataclasses.dataclass
class Run:
  """A run that is ready to start or to resume; call it, once, to train.

  Attributes:
    name: Name of the scheme, for the table that ends the run.
    runtime: Runtime, which carries out events.
    milestones: Milestones, which log and evaluate the run, and end it.
    recorder: Recorder of the run.
    files: Folder of the run, which is claimed.
    checkpoints: Writer and reader of the run's checkpoints.
    save_schedule: Schedule of the checkpoints.
    console: Display of the run.
    sizes: Bytes of each file at the checkpoint to resume from; None for a run
      that starts.
    called: Whether the run has been called.
    is_successor: Whether it continues the run of another process, without a
      restart.
    was_terminated: Returns whether this process got SIGTERM or SIGHUP before
      the run began.
  """

  name: str
  runtime: Runtime
  milestones: Milestones
  recorder: Recorder
  files: RunFiles
  checkpoints: Saving
  save_schedule: SaveSchedule
  console: Console
  sizes: Mapping[str, int] | None = None
  called: bool = False
  is_successor: bool = False
  was_terminated: Callable[[], bool] = lambda: False

  def restore(self) -> None:
    """Restores the newest readable checkpoint, if there is any.

    Raises:
      ValueError: If there are checkpoints and none can be read, or if a file
        has become shorter than it was at the checkpoint.
    """
    state = self.checkpoints.restore()
    if state is None:
      if self.files.has_earlier_starts and self.files.read_summary() is None:
        logging.warning(
          'The run in %s has begun before and has no checkpoint: it starts '
          'again from its first example, and its files with it.',
          self.files.workdir,
        )
    else:
      self.runtime.restore(state['runtime'])
      self.milestones.restore(state['milestones'])
      self.recorder.restore(state['recorder'])
      self.sizes = state['files']
      self.files.rows.check(state['files'])

  def take_over(
    self, state: Mapping[str, Any], age_s: float, manifest: Mapping[str, Any]
  ) -> Callable[[], None]:
    """Continues the run of another process that is lost.

    Args:
      state: State of that process.
      age_s: Seconds since that state, which the run's wall time includes.
      manifest: Manifest of this process.

    Returns:
      Function that takes the folder over; the runtime calls it before it
      records anything.

    Raises:
      OSError: If the files of the run cannot be copied.
      Relinquished: If a file is shorter than it was, as another process has
        begun the run again meanwhile.
    """
    self.milestones.take_over(state['milestones'])
    self.recorder.restore(state['recorder'], age_s=age_s)
    try:
      self.files.copy(manifest, state['files'])
    except ValueError as error:
      raise Relinquished(f'The run has begun again: {error}') from error
    self.sizes, self.is_successor = state['files'], True

    def publish() -> None:
      self.files.take_over(manifest)
      self.checkpoints.take_over(state['checkpoint'])

    return publish

  def __call__(self) -> Mapping[str, Any]:
    """Trains and returns the content of summary.json.

    The summary is written however the run ends, and says how.  After SIGTERM,
    SIGHUP or SIGINT a checkpoint is saved as well; a second SIGTERM or SIGINT
    ends the run at once.

    Raises:
      FloatingPointError: If a loss or a parameter is not finite.
      HandedOver: After SIGTERM or SIGHUP, if other processes continue the run.
      RuntimeError: If no event can happen any more, or on a second call.
      SystemExit: After SIGTERM or SIGHUP.
      KeyboardInterrupt: After SIGINT.
    """
    if self.called:
      raise RuntimeError('A run runs once; build another one.')
    self.called = True
    finished = None if self.is_successor else self.files.read_summary()
    if finished is None:
      summary = self._train()
    else:
      logging.info('The run in %s has finished before.', self.files.workdir)
      self.files.release()
      summary = finished
    self.console.table(self.name, summary)
    logging.info('Outputs are in %s', self.files.workdir)
    return summary

  def train(self) -> Trained:
    """Trains like a call, and returns the parameters with the summary.

    They are those of the last evaluation.

    Raises:
      RuntimeError: As a call; or if the run has finished before, and no
        checkpoint of this process has its parameters.
      Exception: As a call.
    """
    self.milestones.keeps_last = True
    summary = self()
    last = self.milestones.last
    if last is None:  # The run has finished before.
      if self.sizes is None:
        raise RuntimeError(
          f'The run in {self.files.workdir} has finished before, without '
          'checkpoints, which would have its parameters.'
        )
      last = self.milestones.read_version()
    return Trained(*last, summary)

  def _train(self) -> Mapping[str, Any]:
    """Trains from warm-up to summary."""
    if not self.is_successor:
      self.files.begin(
        num_workers=len(self.runtime.coordinator.workers),
        sizes=self.sizes,
        examples=self._examples,
      )
    ended, reason = 'interrupted', Reason.STOPPED
    warm, is_over = compilations.count(), True
    try:
      self._warm_up()
      warm = compilations.count()
      with self.console, catch_stop_signals(only_first=True) as signals:
        if self.was_terminated():
          signals.append(processes.SIGTERM)
        self._loop(signals)
        if signals:
          self._stop(signals[0])
      ended, reason = 'finished', Reason.FINISHED
    except Relinquished:
      is_over = False
      raise
    except Exception as error:
      # Others may have what this host lacks.
      is_over = not (is_shortage(error) and self.runtime.has_successor)
      ended, reason = f'{type(error).__name__}: {error}', find_reason(error)
      raise
    finally:
      if is_over:
        self.runtime.close()
        summary = self.recorder.summary(
          self.runtime.time,
          ended=ended,
          reason=str(reason),
          issued=self.runtime.coordinator.issued,
          outstanding=self.runtime.coordinator.outstanding,
          **self.runtime.summary(),
          compilations=compilations.count() - warm,
        )
        self.files.close(summary)
      else:  # Workers and files are another process's from now on.
        self.files.abandon()
    return summary

  def _warm_up(self) -> None:
    """Compiles training and evaluation; the run's wall time starts after it."""
    if self.is_successor:  # The workers do not wait for an evaluation.
      self.runtime.warm_up()
      return
    logging.info('Compiling ...')
    self.runtime.warm_up()
    self.milestones.warm_up()
    self.recorder.start_wall_clock()

  def _loop(self, signals: list[int]) -> None:
    """Steps until the run is complete, or until a signal; saves checkpoints."""
    if self.sizes is None:
      self.runtime.start()
    else:
      self.runtime.resume()
    with contextlib.closing(self.checkpoints):
      if not self.is_successor:
        self.save_schedule.restart(self._examples)
      while not self._is_over(signals):
        self.runtime.step()  # The milestones review every decision in it.
        if self._is_save_possible() and self.runtime.pause():
          self._save()
      if self.save_schedule.is_enabled:
        while not self.runtime.pause() or not self._is_over(signals):
          self.runtime.step()  # It may return to an earlier state.
        self._save()

  def _is_over(self, signals: list[int]) -> bool:
    """Returns whether the run is complete, or a signal ends it.

    Raises:
      HandedOver: After SIGTERM or SIGHUP, if other processes continue the run.
    """
    if self.milestones.finished:
      return True
    return bool(signals) and self.runtime.is_ended_by(signals[0])

  def _is_save_possible(self) -> bool:
    """Returns whether a checkpoint is due and the last one is on the disk.

    Raises:
      OSError: If the last one could not be written.
    """
    due = self.save_schedule.is_due(self._examples)
    if not self.checkpoints.is_writing():
      return due
    if due:
      logging.log_every_n_seconds(
        logging.WARNING,
        'A checkpoint is due, and the last one is still being written.',
        30,
      )
    return False

  def _save(self) -> None:
    """Saves a checkpoint, which is written while the run continues.

    Raises:
      Relinquished: If another process continues the run.
    """
    if self.files.is_superseded:
      raise Relinquished(f'{self.files.workdir} is of another coordinator.')
    self.checkpoints.save(
      {
        'runtime': self.runtime.state(),
        'milestones': self.milestones.state(),
        'recorder': self.recorder.state(),
        'files': self.files.rows.state(),
      }
    )
    self.save_schedule.restart(self._examples)

  def _stop(self, number: int) -> None:
    """Ends a run that a signal has stopped.

    Raises:
      KeyboardInterrupt: After SIGINT.
      SystemExit: After any other signal.
    """
    logging.info(
      'Stopped by %s; the same command with --workdir=%s %s.',
      processes.Signals(number).name,
      self.files.workdir,
      'resumes it' if self.save_schedule.is_enabled else 'starts from scratch',
    )
    if number == processes.SIGINT:
      raise KeyboardInterrupt
    name = processes.Signals(number).name
    raise Exit(128 + number, Reason.STOPPED, f'Stopped by {name}.')

  @property
  def _examples(self) -> int:
    """Number of examples in applied updates."""
    return self.recorder.accounting.examples
