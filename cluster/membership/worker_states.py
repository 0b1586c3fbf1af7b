"""State of one worker, from incarnation to incarnation and in checkpoints.

A worker's residual is the part of its pushes that its codec has not sent; with
local steps it also has the state of its inner optimizer.  Both count with the
push that leaves them: if a push is lost, other workers compute its examples,
and the worker returns to the state before it.  So no part of a gradient is
summed twice, and none is lost with a connection.
"""

import contextlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from cluster.membership.members import Member
from cluster.network.errors import InvalidMessage, TransportError
from cluster.network.messages import (
  ResidualSaved,
  RetainResidual,
  SaveResidual,
)
from outputs import checkpoints, serialization
from outputs.accounting import LostState, NewState
from outputs.recorder import Recorder
from system import threads

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


class ResidualCodec(Protocol):
  """Codec whose states hold residuals: see `learning.shard_codec`."""

  def init(self, worker: int) -> Any:
    """Returns the initial codec states of a worker."""

  def residuals(self, states: Any) -> Mapping[str, Any]:
    """Returns a worker's residuals by parameter."""

  def inherit(self, states: Any, residuals: Sequence[Any]) -> Any:
    """Returns codec states with the sum of others' residuals."""


class NoCodec:
  """A codec without residuals, for workers that hold theirs elsewhere."""

  def init(self, worker: int) -> tuple[()]:
    """Returns no state."""
    del worker
    return ()

  def residuals(self, states: tuple[()]) -> dict[str, Any]:
    """Returns no residual."""
    del states
    return {}

  def inherit(self, states: tuple[()], residuals: Sequence[Any]) -> tuple[()]:
    """Returns no state."""
    del residuals
    return states


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
    codec: ResidualCodec,
    index: int,
    directory: pathlib.Path,
    *,
    init_optimizer: Callable[[], Any] = lambda: (),
  ):
    """Creates a store without states.

    Args:
      codec: Codec of pushes.
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
    # States that mirrors need, by mirror: identity and state.
    self._retained: dict[int, tuple[int, WorkerState]] = {}
    self._begins = True
    self._first = ResidualId()  # Of the incarnation's first iteration.
    self.has_recalled = False

  def begin(self) -> None:
    """Begins an incarnation."""
    self._begins = True

  def recall(self, residual: ResidualId) -> WorkerState:
    """Returns the state of an identity; an initial one without any."""
    states = self._find(residual)
    if self._begins:
      self._begins, self._first = False, residual
      self.has_recalled = states is not None and residual.can_differ_from_zero
    elif residual != self._first:  # Else the iteration is repeated.
      self.has_recalled = False
    if states is None:
      states = self.init()
    others = {k: v for k, v in self._states.items() if k != residual.after}
    # It is the newest from here on; another thread may read at any time.
    self._states = {**others, residual.after: states}
    return states

  def init(self) -> WorkerState:
    """Returns the state of a worker at its start."""
    return WorkerState(self._codec.init(self._index), self._init_optimizer())

  def record(self, iteration: int, states: WorkerState) -> None:
    """Stores the state after an iteration that may count."""
    # An iteration has the number of a lost one if all return to a mirror.
    others = {k: v for k, v in self._states.items() if k != iteration}
    newest = [*others.items(), (iteration, states)]
    self._states = dict(newest[-_NEWEST:])

  def retain(self, request: RetainResidual) -> None:
    """Retains the state that a mirror refers to, until `release`."""
    residual = ResidualId(*request.residual)
    states = self._states.get(residual.after)
    if residual.after is not None and states is not None:
      self._retained[request.mirror] = residual.after, states

  def release(self, before: int) -> None:
    """Drops what mirrors of lower numbers have retained."""
    newest = {k: v for k, v in self._retained.items() if k >= before}
    self._retained = newest

  def answer(
    self, request: SaveResidual, send: Callable[[ResidualSaved], None]
  ) -> None:
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
    retained = dict(self._retained.values())
    return self._states.get(residual.after, retained.get(residual.after))

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


def lost_at_restart(
  workers: Sequence[int], unsaved: Sequence[int], count: int, time: float
) -> list[LostState]:
  """Returns the optimizer states that no worker continues with.

  Residuals pass to other workers; states of optimizers cannot be summed.

  Args:
    workers: Workers whose states are in the checkpoint.
    unsaved: Workers whose states it should have, but lacks.
    count: Number of workers now.
    time: Seconds on the run's clock.
  """
  fewer = [index for index in workers if index >= count]
  return [
    *(LostState(k, time, 'The checkpoint lacks it.') for k in unsaved),
    *(LostState(k, time, 'There are fewer workers now.') for k in fewer),
  ]


class PartRequests:
  """Requests to workers for their parts of checkpoints, and the answers.

  Methods may be called from any thread.
  """

  def __init__(self) -> None:
    """Starts without requests."""
    self._lock = threads.Lock()
    # Answers that are awaited, by worker, incarnation and checkpoint.
    self._parts: dict[tuple[int, int], dict[int, threads.Future[bool]]] = {}
    self._ended: dict[int, int] = {}  # Last incarnation, by worker.

  def request(
    self, index: int, member: Member, step: int, residual: ResidualId
  ) -> threads.Future[bool]:
    """Requests a worker's part of a checkpoint, which it writes itself.

    Args:
      index: The worker.
      member: Its record.
      step: Number of the checkpoint.
      residual: Identity of the state to write.

    Returns:
      A future: True once the part is written; False if the worker lacks that
      state or is lost; an OSError if it could not write.
    """
    part: threads.Future[bool] = threads.Future()
    key = index, member.incarnation
    with self._lock:
      if member.incarnation <= self._ended.get(index, -1):
        part.set_result(False)
        return part
      self._parts.setdefault(key, {})[step] = part
    if member.stream is not None:
      member.stream.send(SaveResidual(step, residual))
    return part

  def answer(self, index: int, number: int, message: ResidualSaved) -> None:
    """Handles the answer of an incarnation, unless that has ended.

    Raises:
      InvalidMessage: If the worker was not asked.
    """
    with self._lock:
      if number <= self._ended.get(index, -1):
        return
      part = self._parts.get((index, number), {}).pop(message.step, None)
    if part is None:
      raise InvalidMessage(f'Worker {index} answers what it was not asked.')
    if message.error is None:
      part.set_result(message.is_known)
    else:
      part.set_exception(OSError(f'Worker {index}: {message.error}'))

  def end(self, index: int, number: int) -> None:
    """Ends the requests to an incarnation that has ended."""
    with self._lock:
      self._ended[index] = max(number, self._ended.get(index, -1))
      parts = self._parts.pop((index, number), {})
    for part in parts.values():
      part.set_result(False)


def record_loss(
  recorder: Recorder, member: Member, index: int, time: float, reason: str
) -> None:
  """Lists a worker's optimizer state as lost, unless its process rejoins.

  Args:
    recorder: Recorder of the run.
    member: Record of the worker.
    index: Index of the worker.
    time: Seconds on the run's clock.
    reason: Reason for the loss, as text.
  """
  recorder.accounting.lost_states.append(LostState(index, time, reason))
  member.has_lost_state = True


def settle(
  recorder: Recorder,
  member: Member,
  index: int,
  time: float,
  *,
  recalled: bool,
) -> None:
  """Records the optimizer state that a worker begins with, after its push.

  Args:
    recorder: Recorder of the run.
    member: Record of the worker.
    index: Index of the worker.
    time: Seconds on the run's clock.
    recalled: Whether the worker continues with its own state of before.
  """
  accounting = recorder.accounting
  if recalled and member.has_lost_state:
    accounting.recover_state(index)
  if member.is_late and not recalled:
    accounting.new_states.append(NewState(index, time))
  member.has_lost_state = member.is_late = False
