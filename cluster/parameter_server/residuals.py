"""What a worker remembers of gradients, from life to life and in checkpoints.

It is that of pushes which counted: one that was lost on its way does not, as
others compute its examples, and what its codec remembered before is remembered
again.  So no part of a gradient is summed twice, and none gets lost with a
connection.
"""

import contextlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cluster.network.errors import TransportError
from cluster.network.messages import FromWorker, ResidualSaved, SaveResidual
from outputs import stores
from wire import kept
from wire.flat import Flat

_LAST = 3  # Iterations whose states are there; an order to save may come late.


class Since(NamedTuple):
  """What a worker is to remember.

  Attributes:
    after: It is that after this iteration; None before the first that counted.
    step: Of the checkpoint from which it starts then; None for no checkpoint.
    workers: Of those in the checkpoint whose place it takes.
  """

  after: int | None = None
  step: int | None = None
  workers: Sequence[int] = ()

  @property
  def any(self) -> bool:
    """Whether there is anything to remember."""
    return self.after is not None or bool(self.workers)


class Remembered:
  """Of one worker.

  Attributes:
    recalled: Whether this life goes on with what was remembered before it.
  """

  def __init__(self, flat: Flat, index: int, directory: pathlib.Path):
    """Remembers nothing.

    Args:
      flat: Of what travels.
      index: Which worker.
      directory: Of the run's checkpoints.
    """
    self._flat = flat
    self._index = index
    self._directory = directory
    self._known: dict[int | None, Any] = {}
    self._begins = True
    self.recalled = False

  def begin(self) -> None:
    """Begins a life."""
    self._begins = True

  def recall(self, since: Since) -> Any:
    """Returns what is remembered; nothing, if what is meant is not known."""
    states = self._of(since)
    self.recalled = self._begins and states is not None and since.any
    self._begins = False
    if states is None:
      states = self._flat.init(self._index)
    self._known.pop(since.after, None)  # It is the newest from here on.
    self._known[since.after] = states
    return states

  def note(self, iteration: int, states: Any) -> None:
    """Remembers what it is after an iteration that may count."""
    known = {**self._known, iteration: states}
    self._known = dict(list(known.items())[-_LAST:])

  def answer(
    self, request: SaveResidual, say: Callable[[FromWorker], None]
  ) -> None:
    """Writes what is kept into a checkpoint, and says whether it is there.

    Args:
      request: The request of the coordinator.
      say: Tells the coordinator.
    """
    step, known, error = request.step, False, None
    try:
      known = self._save(step, Since(*request.residual))
    except OSError as failed:
      error = f'{type(failed).__name__}: {failed}'
    with contextlib.suppress(TransportError):  # The coordinator notices, too.
      say(ResidualSaved(step, known, error))

  def _save(self, step: int, since: Since) -> bool:
    states = self._of(since)
    if states is None:
      return False
    tree = kept.named(self._flat, states)
    stores.write(of_worker(self._directory, self._index) / str(step), tree)
    return True

  def _of(self, since: Since) -> Any:
    if since.after is None:
      return self._first(since)
    return self._known.get(since.after)

  def _first(self, since: Since) -> Any:
    """Returns what a worker begins with; None if its checkpoint is gone."""
    folders = [
      of_worker(self._directory, worker) / str(since.step)
      for worker in since.workers
    ]
    if not all(folder.is_dir() for folder in folders):
      return None
    fresh = self._flat.init(self._index)
    return kept.given(self._flat, fresh, list(map(stores.read, folders)))


def shared(step: int, workers: Sequence[int], count: int) -> list[Since]:
  """Returns what workers of today begin with: each part is somebody's.

  Args:
    step: Number of the checkpoint.
    workers: Who has parts in it.
    count: How many workers there are today.
  """
  return [
    Since(None, step, [each for each in workers if each % count == index])
    for index in range(count)
  ]


def in_checkpoint(directory: pathlib.Path, step: int) -> list[int]:
  """Returns which workers have parts in a checkpoint, ascending."""
  found = directory.glob(f'worker*/{step}')
  return sorted(int(path.parent.name.removeprefix('worker')) for path in found)


def of_worker(directory: pathlib.Path, index: int) -> pathlib.Path:
  """Returns the folder of one worker's parts of checkpoints."""
  return directory / f'worker{index}'
