"""Evaluations that are due: of the right versions, one at a time.

Where time goes on meanwhile, at most one is being computed, and one waits for
it; each keeps its version.  If another one comes due by then, it takes the
place of the one that waits, whose row so stays without an accuracy.  What is
due is part of checkpoints, and nobody waits for it but the end of a run.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from absl import logging

from learning.learning import Evaluation, ParameterStore


@dataclasses.dataclass
class _Due:
  """An evaluation that is due.

  Attributes:
    row: What is written once its accuracy is known.
    version: Of the parameters.
    held: Number under which the store keeps them; None if it is passed over.
    accuracy: Once it has begun.
  """

  row: dict[str, Any]
  version: int
  held: int | None
  accuracy: Future | None = None


class Evaluations:
  """Says how good versions are, in the order in which it was asked.

  Attributes:
    newest: What was evaluated last beside accuracy, by name.
  """

  def __init__(
    self,
    *,
    store: ParameterStore,
    evaluate: Evaluation,
    later: Callable[[Callable[[], Any]], Future] | None,
  ):
    """Evaluates nothing yet.

    Args:
      store: Of the learner.
      evaluate: Gives the accuracy of a version.
      later: Calls a function in another thread, where time goes on meanwhile;
        None calls it at once.
    """
    self._store = store
    self._evaluate = evaluate
    self._later = later or _now
    self._due: list[_Due] = []
    self.newest: dict[str, float] = {}

  def warm_up(self) -> None:
    """Compiles the evaluation."""
    held = self._store.hold()
    self._look(self._store.version, self._store.read(held))
    self._store.drop(held)

  def add(self, row: dict[str, Any]) -> None:
    """Has the version of this moment evaluated, for a row."""
    for due in self._due[1:]:  # The first one is being computed.
      if due.held is not None:
        logging.log_every_n_seconds(
          logging.WARNING,
          'Evaluations take longer than config.eval_every: that of version %d, '
          'at %d examples, is left out.',
          10,
          due.version,
          due.row['examples'],
        )
        self._store.drop(due.held)
        due.held = None
    self._due.append(_Due(row, self._store.version, self._store.hold()))
    self._begin()

  @property
  def waiting(self) -> bool:
    """Whether any is due."""
    return bool(self._due)

  def fetch(
    self, *, wait: bool
  ) -> Iterator[tuple[dict[str, Any], float | None]]:
    """Yields rows and accuracies of those that have ended, or of all.

    The accuracy of what was left out is None.

    What else is evaluated is in the rows.

    Raises:
      FloatingPointError: If a parameter is not finite.
    """
    while self._due:
      self._begin()
      due = self._due[0]
      accuracy = None
      if due.held is not None:
        if not (wait or due.accuracy.done()):
          return
        self.newest = dict(due.accuracy.result())
        accuracy = self.newest.pop('accuracy')
        due.row.update(self.newest)
        self._store.drop(due.held)
      del self._due[0]
      yield due.row, accuracy

  def state(self) -> list[tuple[dict[str, Any], int, int | None]]:
    """Returns what is due; the store's state has the versions."""
    return [(due.row, due.version, due.held) for due in self._due]

  def restore(
    self, state: list[tuple[dict[str, Any], int, int | None]]
  ) -> None:
    """Goes back to where `state` was taken: begins anew what is due."""
    self._due = [_Due(*due) for due in state]

  def _begin(self) -> None:
    """Lets the first one be computed, if there is any and it is not yet."""
    due = self._due[0]
    if due.held is not None and due.accuracy is None:
      read = self._store.read(due.held)
      due.accuracy = self._later(lambda: self._look(due.version, read))

  def _look(
    self, version: int, read: Callable[[], tuple[Any, Any]]
  ) -> Mapping[str, float]:
    """Returns the accuracy of a version, and what else is evaluated."""
    params, stats = read()
    if not self._evaluate.is_finite(params):
      raise FloatingPointError(
        f'A parameter of version {version} is not finite.'
      )
    return self._evaluate(params, stats)


def _now(call: Callable[[], Any]) -> Future:
  """Calls a function at once; what it raises is raised here."""
  future: Future = Future()
  future.set_result(call())
  return future
