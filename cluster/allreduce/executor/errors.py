"""Errors between the executors of a membership."""

import errno

from cluster.network.errors import Closed, Corrupt, TransportError


class PeerLost(Closed):
  """A worker's connection has ended, or cannot be made.

  Attributes:
    worker: Its index.
    reason: Text.
  """

  def __init__(self, worker: int, reason: str):
    super().__init__(f'worker {worker}: {reason}')
    self.worker = worker
    self.reason = reason


class Damaged(Corrupt):
  """A worker has sent a frame that its executor should not send.

  Attributes:
    worker: Its index.
    reason: Text.
  """

  def __init__(self, worker: int, reason: str):
    super().__init__(f'worker {worker}: {reason}')
    self.worker = worker
    self.reason = reason


class ExecutorFailed(TransportError):
  """An executor that cannot take part in a generation, whoever its peers are.

  Attributes:
    worker: Index of its worker.
    reason: Text.
  """

  def __init__(self, worker: int, reason: str):
    super().__init__(f'the executor of worker {worker} failed: {reason}')
    self.worker = worker
    self.reason = reason


class Abandoned(TransportError):
  """An executor has abandoned the running generation."""


# Of this process or host: other peers would fare no better.
_LOCAL = (
  errno.EMFILE,
  errno.ENFILE,
  errno.ENOBUFS,
  errno.ENOMEM,
  errno.ENOSPC,
  errno.EADDRNOTAVAIL,
)


def is_local(error: Exception) -> bool:
  """Returns whether an error says that this process lacks something."""
  return isinstance(error, OSError) and error.errno in _LOCAL
