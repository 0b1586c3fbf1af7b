"""One run from its first compilation to its summary, whatever the runtime."""

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging

from cluster.runtime import Runtime, Saving
from learning import compilations
from outputs.console import Console
from outputs.files import RunFiles
from outputs.recorder import Recorder

# What ends a run early: SLURM sends the first before it takes a node away.
_STOPS = (signal.SIGTERM, signal.SIGINT)
# Handlers: none that Python could restore, and to ignore the signal.
_UNTOUCHED = (None, signal.SIG_IGN)


@dataclasses.dataclass
class Run:
  """A run that is ready to start or to go on; call it, once, to train.

  Attributes:
    name: The scheme's, for the table that ends the run.
    runtime: Runs the events.
    recorder: Follows the run.
    files: Where its outputs go; the folder is claimed.
    checkpoints: Of this run.
    console: Where it is shown.
    sizes: Of the files at the checkpoint that it goes on from; None if it
      starts.
    called: Whether the run was started.
  """

  name: str
  runtime: Runtime
  recorder: Recorder
  files: RunFiles
  checkpoints: Saving
  console: Console
  sizes: Mapping[str, int] | None = None
  called: bool = False

  def restore(self) -> None:
    """Goes back to the newest checkpoint, if there is any.

    Raises:
      ValueError: If there are checkpoints and none can be read, or if a file
        lacks what was in it then.
    """
    state = self.checkpoints.restore()
    if state is not None:
      self.runtime.restore(state['runtime'])
      self.recorder.restore(state['recorder'])
      self.sizes = state['files']
      self.files.check(self.sizes)

  def __call__(self) -> Mapping[str, Any]:
    """Trains and returns what summary.json holds.

    Whatever ends the run, summary.json is written and says what it was.  After
    SIGTERM or SIGINT there is a checkpoint as well; a second one ends the run
    at once.

    Raises:
      FloatingPointError: If a loss or a parameter is not finite.
      RuntimeError: If nobody is left who could go on, or on a second call.
      SystemExit: After SIGTERM.
      KeyboardInterrupt: After SIGINT.
    """
    if self.called:
      raise RuntimeError('A run runs once; build another one.')
    self.called = True
    summary = self.files.finished()
    if summary is None:
      summary = self._train()
    else:
      logging.info('The run in %s has finished before.', self.files.workdir)
      self.files.release()
    self.console.table(self.name, summary)
    logging.info('Outputs are in %s', self.files.workdir)
    return summary

  def _train(self) -> Mapping[str, Any]:
    self.files.begin(
      num_workers=len(self.runtime.coordinator.workers),
      sizes=self.sizes,
      examples=self.recorder.accounting.examples,
    )
    ended, warm = 'interrupted', 0
    try:
      logging.info('Compiling ...')
      self.runtime.warm_up()
      self.recorder.warm_up()
      warm = compilations.count()
      with self.console, _stops() as stops:
        self._loop(stops)
      ended = 'finished'
    except Exception as error:
      ended = f'{type(error).__name__}: {error}'
      raise
    finally:
      self.runtime.close()
      summary = self.recorder.summary(
        self.runtime.time,
        ended=ended,
        issued=self.runtime.coordinator.issued,
        outstanding=self.runtime.coordinator.outstanding,
        **self.runtime.summary(),
        compilations=compilations.count() - warm,
      )
      self.files.close(summary)
    return summary

  def _loop(self, stops: list[int]) -> None:
    recorder, checkpoints = self.recorder, self.checkpoints
    (self.runtime.start if self.sizes is None else self.runtime.resume)()
    with contextlib.closing(checkpoints):
      checkpoints.begin(recorder.accounting.examples)
      while not (recorder.finished or stops):
        self.runtime.step()
        if (
          checkpoints.due(recorder.accounting.examples) and self.runtime.pause()
        ):
          self._save()
      if checkpoints.wanted:
        while not self.runtime.pause():
          self.runtime.step()
        self._save()
    if stops:
      logging.info(
        'Stopped by %s; the same command with --workdir=%s %s.',
        signal.Signals(stops[0]).name,
        self.files.workdir,
        'goes on' if checkpoints.wanted else 'starts anew',
      )
      if stops[0] == signal.SIGINT:
        raise KeyboardInterrupt
      raise SystemExit(128 + stops[0])

  def _save(self) -> None:
    state = {
      'runtime': self.runtime.state(),
      'recorder': self.recorder.state(),
      'files': self.files.state(),
    }
    self.checkpoints.save(state, examples=self.recorder.accounting.examples)


@contextlib.contextmanager
def _stops() -> Iterator[list[int]]:
  """Yields a list that gets the signal which asks the process to stop."""
  stops: list[int] = []
  if threading.current_thread() is not threading.main_thread():
    yield stops  # Only the main thread may handle signals.
    return

  def stop(number: int, frame: object) -> None:
    del frame
    stops.append(number)
    for each, handler in before.items():
      signal.signal(each, handler)  # The next one acts as it always did.

  # What is ignored stays so: processes in the background get no SIGINT.
  heeded = [n for n in _STOPS if signal.getsignal(n) not in _UNTOUCHED]
  before = {number: signal.signal(number, stop) for number in heeded}
  try:
    yield stops
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
