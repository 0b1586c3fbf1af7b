"""State of one worker, from incarnation to incarnation and in checkpoints.

A worker's residual is the part of its pushes that its codec has not sent; with
local steps it also has the state of its inner optimizer.  Both count with the
push that leaves them: if a push is lost, other workers compute its examples,
and the worker returns to the state before it.  So no part of a gradient is
summed twice, and none is lost with a connection.
"""

import contextlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cluster.network.errors import TransportError
from cluster.network.messages import ResidualSaved, SaveResidual
from cluster.parameter_server.session import Send
from learning.shard_codec import ShardCodec
from outputs import checkpoints, serialization

_PART = 'worker'  # Prefix of the names of workers' parts.
_NEWEST = 3  # Iterations whose states are held: a request to save may be late.


class ResidualId(NamedTuple):
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
  def can_differ_from_zero(self) -> bool:
    """True if the residual can be other than 0."""
    return self.after is not None or bool(self.workers)


class WorkerState(NamedTuple):
  """State of a worker between two iterations.

  Attributes:
    codec: Codec states, one for each server.
    optimizer: State of the inner optimizer of local steps; () without.
  """

  codec: Any
  optimizer: Any = ()


class ResidualHistory:
  """Newest states of one worker.

  Attributes:
    has_recalled: Whether this incarnation continues with the state of an
      earlier one.
  """

  def __init__(
    self,
    codec: ShardCodec,
    index: int,
    directory: pathlib.Path,
    *,
    init_optimizer: Callable[[], Any] = lambda: (),
  ):
    """Creates a store without states.

    Args:
      codec: Codec of pushes and pulls.
      index: Index of the worker.
      directory: Folder of the run's checkpoints.
      init_optimizer: Returns the state of an inner optimizer at its start; ()
        without local steps.
    """
    self._codec = codec
    self._init_optimizer = init_optimizer
    self._index = index
    self._directory = directory
    self._states: dict[int | None, WorkerState] = {}
    self._begins = True
    self.has_recalled = False

  def begin(self) -> None:
    """Begins an incarnation."""
    self._begins = True

  def recall(self, residual: ResidualId) -> WorkerState:
    """Returns the state of an identity; an initial one without any."""
    states = self._find(residual)
    self.has_recalled = (
      self._begins and states is not None and residual.can_differ_from_zero
    )
    self._begins = False
    if states is None:
      states = self.init()
    self._states.pop(residual.after, None)  # It is the newest from here on.
    self._states[residual.after] = states
    return states

  def init(self) -> WorkerState:
    """Returns the state of a worker at its start."""
    return WorkerState(self._codec.init(self._index), self._init_optimizer())

  def record(self, iteration: int, states: WorkerState) -> None:
    """Stores the state after an iteration that may count."""
    newest = {**self._states, iteration: states}
    self._states = dict(list(newest.items())[-_NEWEST:])

  def answer(self, request: SaveResidual, send: Send) -> None:
    """Writes the state into a checkpoint, and reports whether it is there.

    Args:
      request: The request of the coordinator.
      send: Sends a message to the coordinator.
    """
    step, is_known, error = request.step, False, None
    try:
      is_known = self._save(step, ResidualId(*request.residual))
    except OSError as failure:
      error = f'{type(failure).__name__}: {failure}'
    with contextlib.suppress(TransportError):  # The coordinator notices, too.
      send(ResidualSaved(step, is_known, error))

  def _save(self, step: int, residual: ResidualId) -> bool:
    states = self._find(residual)
    if states is None:
      return False
    residuals = self._codec.residuals(states.codec)
    part = {'residuals': residuals, 'optimizer': states.optimizer}
    tree = serialization.freeze(part)()
    checkpoints.write(self._directory, step, worker_part(self._index), tree)
    return True

  def _find(self, residual: ResidualId) -> WorkerState | None:
    """Returns the state of an identity; None if it is not stored."""
    if residual.after is None:
      return self._read(residual)
    return self._states.get(residual.after)

  def _read(self, residual: ResidualId) -> WorkerState | None:
    """Returns the state to begin with; None without its checkpoint.

    Residuals of several workers are summed; the optimizer's state is the
    worker's own.
    """
    state, residuals = self.init(), []
    if residual.step is not None:
      if not set(residual.workers) <= {
        *workers_in_checkpoint(self._directory, residual.step)
      }:
        return None
      names = [worker_part(worker) for worker in residual.workers]
      parts = checkpoints.read(self._directory, residual.step, names)
      residuals = [part['residuals'] for part in parts.values()]
      if own := parts.get(worker_part(self._index)):
        state = state._replace(optimizer=own['optimizer'])
    return state._replace(codec=self._codec.inherit(state.codec, residuals))


def assign_residuals(
  step: int, workers: Sequence[int], count: int
) -> list[ResidualId]:
  """Returns the residuals that workers begin with, each assigned to one.

  A worker has its own residual, and with it its own optimizer's state.

  Args:
    step: Number of the checkpoint.
    workers: Workers whose states are in it.
    count: Number of workers now.
  """
  return [
    ResidualId(None, step, [each for each in workers if each % count == index])
    for index in range(count)
  ]


def workers_in_checkpoint(directory: pathlib.Path, step: int) -> list[int]:
  """Returns the workers whose states are in a checkpoint, ascending."""
  names = checkpoints.part_names(directory, step)
  return sorted(
    int(name.removeprefix(_PART)) for name in names if name.startswith(_PART)
  )


def worker_part(index: int) -> str:
  """Returns the name of a worker's part of checkpoints."""
  return f'{_PART}{index}'
