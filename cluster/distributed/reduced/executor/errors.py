"""What goes wrong between the executors of a group."""

from cluster.transport.errors import Closed, Corrupt, TransportError


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
  """What has arrived from a worker is not what its executor should send.

  Attributes:
    worker: Its index.
    reason: Text.
  """

  def __init__(self, worker: int, reason: str):
    super().__init__(f'worker {worker}: {reason}')
    self.worker = worker
    self.reason = reason


class Abandoned(TransportError):
  """This worker, or another one, has given the generation up."""
