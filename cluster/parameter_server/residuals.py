"""Residuals of one worker, from incarnation to incarnation and in checkpoints.

A worker's residual is what its codec has not sent of gradients.  It counts with
the push that leaves it: if a push is lost, other workers compute its examples,
and the worker returns to the residual before it.  So no part of a gradient is
summed twice, and none is lost with a connection.
"""

import contextlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cluster.network.errors import TransportError
from learning.shard_codec import ShardCodec
from outputs import checkpoints, serialization

_PART = 'worker'  # Prefix of the names of workers' parts.
_NEWEST = 3  # Iterations whose states are held; an order to save may be late.


class Since(NamedTuple):
  """Identity of a residual: when, or in which checkpoint, it was left.

  Attributes:
    after: Iteration that left it; None before the first one that counts.
    step: Number of the checkpoint that it starts from in that case; None
      without one.
    workers: Workers whose residuals in the checkpoint it is the sum of.
  """

  after: int | None = None
  step: int | None = None
  workers: Sequence[int] = ()

  @property
  def any(self) -> bool:
    """True if the residual can be other than 0."""
    return self.after is not None or bool(self.workers)


class Remembered:
  """Newest codec states of one worker.

  Attributes:
    recalled: Whether this incarnation continues with a residual of an earlier
      one.
  """

  def __init__(self, codec: ShardCodec, index: int, directory: pathlib.Path):
    """Creates a store without states.

    Args:
      codec: Layout of what travels.
      index: Index of the worker.
      directory: Folder of the run's checkpoints.
    """
    self._codec = codec
    self._index = index
    self._directory = directory
    self._states: dict[int | None, Any] = {}
    self._begins = True
    self.recalled = False

  def begin(self) -> None:
    """Begins an incarnation."""
    self._begins = True

  def recall(self, since: Since) -> Any:
    """Returns the codec states of an identity; fresh ones if they are gone."""
    states = self._find(since)
    self.recalled = self._begins and states is not None and since.any
    self._begins = False
    if states is None:
      states = self._codec.init(self._index)
    self._states.pop(since.after, None)  # It is the newest from here on.
    self._states[since.after] = states
    return states

  def note(self, iteration: int, states: Any) -> None:
    """Stores the codec states after an iteration that may count."""
    newest = {**self._states, iteration: states}
    self._states = dict(list(newest.items())[-_NEWEST:])

  def answer(
    self, asked: dict[str, Any], say: Callable[[dict[str, Any]], None]
  ) -> None:
    """Writes the residual into a checkpoint, and reports whether it is there.

    Args:
      asked: `save`, the number of the checkpoint, and `since`, the identity of
        the residual, as the fields of `Since`.
      say: Function that sends a message to the coordinator.
    """
    step, known, error = asked['save'], False, None
    try:
      known = self._save(step, Since(*asked['since']))
    except OSError as failed:
      error = f'{type(failed).__name__}: {failed}'
    with contextlib.suppress(TransportError):  # The coordinator notices, too.
      say({'event': 'kept', 'step': step, 'known': known, 'error': error})

  def _save(self, step: int, since: Since) -> bool:
    states = self._find(since)
    if states is None:
      return False
    tree = serialization.freeze(self._codec.residuals(states))()
    checkpoints.write(self._directory, step, worker_part(self._index), tree)
    return True

  def _find(self, since: Since) -> Any:
    """Returns the codec states of an identity; None if they are gone."""
    if since.after is None:
      return self._read(since)
    return self._states.get(since.after)

  def _read(self, since: Since) -> Any:
    """Returns the states to begin with; None if their checkpoint is gone."""
    residuals: list[dict[str, Any]] = []
    if since.step is not None:
      if not set(since.workers) <= {
        *in_checkpoint(self._directory, since.step)
      }:
        return None
      names = [worker_part(worker) for worker in since.workers]
      parts = checkpoints.read(self._directory, since.step, names)
      residuals = [*parts.values()]
    fresh = self._codec.init(self._index)
    return self._codec.inherit(fresh, residuals)


def shared(step: int, workers: Sequence[int], count: int) -> list[Since]:
  """Returns the residuals that workers begin with, each assigned to one.

  Args:
    step: Number of the checkpoint.
    workers: Workers whose residuals are in it.
    count: Number of workers now.
  """
  return [
    Since(None, step, [each for each in workers if each % count == index])
    for index in range(count)
  ]


def in_checkpoint(directory: pathlib.Path, step: int) -> list[int]:
  """Returns the workers whose residuals are in a checkpoint, ascending."""
  names = checkpoints.part_names(directory, step)
  return sorted(
    int(name.removeprefix(_PART)) for name in names if name.startswith(_PART)
  )


def worker_part(index: int) -> str:
  """Returns the name of a worker's part of checkpoints."""
  return f'{_PART}{index}'
