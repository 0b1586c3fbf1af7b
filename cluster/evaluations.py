"""Queue of evaluations: each of its own version, one computed at a time.

Where time passes during an evaluation, one is computed and at most one waits;
each holds its version in the parameter store.  An evaluation that becomes due
meanwhile replaces the waiting one, whose row then has no measures.  The queue
is part of checkpoints.  Only the end of a run waits for it.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from absl import logging

from learning.learning import Evaluation, ParameterStore
from system import threads

Row = dict[str, Any]  # Of metrics.jsonl.
RunInThread = Callable[[Callable[[], Any]], threads.Future[Any]]


@dataclasses.dataclass
class _Entry:
  """An evaluation in the queue.

  Attributes:
    row: Row that is written once the figures are known.
    version: Version of the parameters.
    held: Handle by which the store holds the version; None if the evaluation
      was left out.
    figures: Future of the figures; None before the computation begins.
  """

  row: Row
  version: int
  held: int | None
  figures: threads.Future[Mapping[str, float]] | None = None


class Evaluations:
  """Queue of evaluations, which come out in the order in which they went in."""

  def __init__(
    self,
    *,
    store: ParameterStore,
    evaluate: Evaluation,
    run_in_thread: RunInThread | None,
  ):
    """Creates an empty queue.

    Args:
      store: Parameter store whose versions are evaluated.
      evaluate: Function from parameters and statistics to figures.
      run_in_thread: Function that calls another one in a thread, where time
        passes meanwhile; None to call it at once.
    """
    self._store = store
    self._evaluate = evaluate
    self._run = run_in_thread or _call_now
    self._queue: list[_Entry] = []

  def __len__(self) -> int:
    """Returns the number of evaluations that have not been taken out."""
    return len(self._queue)

  def warm_up(self) -> None:
    """Compiles the evaluation."""
    handle = self._store.hold()
    self._compute(self._store.version, self._store.read(handle))
    self._store.free(handle)

  def add(self, row: Row) -> None:
    """Queues an evaluation of the current version.

    A queued evaluation whose computation has not begun is left out.

    Args:
      row: Row of metrics.jsonl to which the evaluation's figures belong.
    """
    for entry in self._queue[1:]:  # The first one is being computed.
      if entry.held is not None:
        logging.log_every_n_seconds(
          logging.WARNING,
          'Evaluations take longer than config.eval_every: that of version %d, '
          'at %d examples, is left out.',
          10,
          entry.version,
          entry.row['examples'],
        )
        self._store.free(entry.held)
        entry.held = None
    self._queue.append(_Entry(row, self._store.version, self._store.hold()))
    self._start_first()

  def take(
    self, *, wait: bool
  ) -> Iterator[tuple[Row, Mapping[str, float] | None]]:
    """Removes finished evaluations from the queue and yields them.

    Args:
      wait: True to wait for all others, too.

    Yields:
      Each row, and its figures; None for an evaluation that was left out.

    Raises:
      FloatingPointError: If a parameter or a measure is not finite.
    """
    while self._queue:
      self._start_first()
      entry = self._queue[0]
      figures = None
      if entry.held is not None and entry.figures is not None:
        if not (wait or entry.figures.done()):
          return
        figures = entry.figures.result()
        self._store.free(entry.held)
      del self._queue[0]
      yield entry.row, figures

  def state(self) -> list[tuple[Row, int, int | None]]:
    """Returns the queue for a checkpoint, without the versions to evaluate.

    The parameter store saves these.
    """
    return [(entry.row, entry.version, entry.held) for entry in self._queue]

  def restore(self, state: list[tuple[Row, int, int | None]]) -> None:
    """Replaces the queue by that of a checkpoint; evaluations start again."""
    self._queue = [_Entry(*entry) for entry in state]

  def repeat(self, version: int) -> bool:
    """Evaluates a version for its row, which was left out.

    Args:
      version: Version of the row.

    Returns:
      Whether it is still the current version, whose row is in the queue.
    """
    for entry in self._queue:
      if entry.version == version == self._store.version:
        entry.held = self._store.hold()
        self._start_first()
        return True
    return False

  def _start_first(self) -> None:
    """Starts the computation of the first evaluation, if it has not begun."""
    entry = self._queue[0]
    if entry.held is not None and entry.figures is None:
      read = self._store.read(entry.held)
      entry.figures = self._run(lambda: self._compute(entry.version, read))

  def _compute(
    self, version: int, read: Callable[[], tuple[Any, Any]]
  ) -> Mapping[str, float]:
    """Returns the measures of a version by name."""
    params, stats = read()
    if not self._evaluate.is_finite(params):
      raise FloatingPointError(
        f'A parameter of version {version} is not finite.'
      )
    return self._evaluate(params, stats)


def _call_now(call: Callable[[], Any]) -> threads.Future[Any]:
  """Calls a function in this thread, which raises what the call raises."""
  future: threads.Future[Any] = threads.Future()
  future.set_result(call())
  return future
