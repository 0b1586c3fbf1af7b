"""Residuals of one worker, from incarnation to incarnation and in checkpoints.

A worker's residual is the part of its gradients that its codec has not sent.
It counts with the push that leaves it: if a push is lost, other workers compute
its examples, and the worker returns to the residual before it.  So no part of a
gradient is summed twice, and none is lost with a connection.
"""

import contextlib
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from cluster.network.errors import TransportError
from cluster.network.messages import (
  ResidualSaved,
  RetainResidual,
  SaveResidual,
)
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


class ResidualHistory:
  """Newest codec states of one worker.

  Attributes:
    has_recalled: Whether this incarnation continues with a residual of an
      earlier one.
  """

  def __init__(self, codec: ShardCodec, index: int, directory: pathlib.Path):
    """Creates a store without states.

    Args:
      codec: Codec of pushes and pulls.
      index: Index of the worker.
      directory: Folder of the run's checkpoints.
    """
    self._codec = codec
    self._index = index
    self._directory = directory
    self._states: dict[int | None, Any] = {}
    # States that mirrors need, by mirror: identity and state.
    self._retained: dict[int, tuple[int, Any]] = {}
    self._begins = True
    self.has_recalled = False

  def begin(self) -> None:
    """Begins an incarnation."""
    self._begins = True

  def recall(self, residual: ResidualId) -> Any:
    """Returns the codec states of an identity; initial ones without any."""
    states = self._find(residual)
    self.has_recalled = (
      self._begins and states is not None and residual.can_differ_from_zero
    )
    self._begins = False
    if states is None:
      states = self._codec.init(self._index)
    self._states.pop(residual.after, None)  # It is the newest from here on.
    self._states[residual.after] = states
    return states

  def record(self, iteration: int, states: Any) -> None:
    """Stores the codec states after an iteration that may count."""
    newest = {**self._states, iteration: states}
    self._states = dict(list(newest.items())[-_NEWEST:])

  def retain(self, request: RetainResidual) -> None:
    """Retains the residual that a mirror refers to, until `release`."""
    residual = ResidualId(*request.residual)
    states = self._states.get(residual.after)
    if residual.after is not None and states is not None:
      self._retained[request.mirror] = residual.after, states

  def release(self, before: int) -> None:
    """Drops what mirrors of lower numbers have retained."""
    newest = {k: v for k, v in self._retained.items() if k >= before}
    self._retained = newest

  def answer(self, request: SaveResidual, send: Send) -> None:
    """Writes the residual into a checkpoint, and reports whether it is there.

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
    tree = serialization.freeze(self._codec.residuals(states))()
    checkpoints.write(self._directory, step, worker_part(self._index), tree)
    return True

  def _find(self, residual: ResidualId) -> Any:
    """Returns the codec states of an identity; None if they are not stored."""
    if residual.after is None:
      return self._read(residual)
    retained = dict(self._retained.values())
    return self._states.get(residual.after, retained.get(residual.after))

  def _read(self, residual: ResidualId) -> Any:
    """Returns the states to begin with; None without their checkpoint."""
    residuals: list[dict[str, Any]] = []
    if residual.step is not None:
      if not set(residual.workers) <= {
        *workers_in_checkpoint(self._directory, residual.step)
      }:
        return None
      names = [worker_part(worker) for worker in residual.workers]
      parts = checkpoints.read(self._directory, residual.step, names)
      residuals = [*parts.values()]
    fresh = self._codec.init(self._index)
    return self._codec.inherit(fresh, residuals)


def assign_residuals(
  step: int, workers: Sequence[int], count: int
) -> list[ResidualId]:
  """Returns the residuals that workers begin with, each assigned to one.

  Args:
    step: Number of the checkpoint.
    workers: Workers whose residuals are in it.
    count: Number of workers now.
  """
  return [
    ResidualId(None, step, [each for each in workers if each % count == index])
    for index in range(count)
  ]


def workers_in_checkpoint(directory: pathlib.Path, step: int) -> list[int]:
  """Returns the workers whose residuals are in a checkpoint, ascending."""
  names = checkpoints.part_names(directory, step)
  return sorted(
    int(name.removeprefix(_PART)) for name in names if name.startswith(_PART)
  )


def worker_part(index: int) -> str:
  """Returns the name of a worker's part of checkpoints."""
  return f'{_PART}{index}'
