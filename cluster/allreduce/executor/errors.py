"""Errors between the executors of a membership."""

import errno

from cluster.network.errors import Closed, Corrupt, TransportError


class PeerLost(Closed):
  """A worker's connection has ended, or cannot be opened.

  Attributes:
    worker: Index of the worker.
    reason: Text for the log.
  """

  def __init__(self, worker: int, reason: str):
    super().__init__(f'worker {worker}: {reason}')
    self.worker = worker
    self.reason = reason


class Damaged(Corrupt):
  """A worker has sent a frame that its executor should not send.

  Attributes:
    worker: Index of the worker.
    reason: Text for the log.
  """

  def __init__(self, worker: int, reason: str):
    super().__init__(f'worker {worker}: {reason}')
    self.worker = worker
    self.reason = reason


class ExecutorFailed(TransportError):
  """An executor cannot take part in a membership, whatever its peers are.

  Attributes:
    worker: Index of its worker.
    reason: Text for the log.
  """

  def __init__(self, worker: int, reason: str):
    super().__init__(f'the executor of worker {worker} failed: {reason}')
    self.worker = worker
    self.reason = reason


class Abandoned(TransportError):
  """An executor has abandoned the running membership epoch."""


# Errors of this process or host, which would also occur with other peers.
_LOCAL = (
  errno.EMFILE,
  errno.ENFILE,
  errno.ENOBUFS,
  errno.ENOMEM,
  errno.ENOSPC,
  errno.EADDRNOTAVAIL,
)


def is_local(error: Exception) -> bool:
  """Returns whether an error means that this process lacks a resource."""
  return isinstance(error, OSError) and error.errno in _LOCAL
