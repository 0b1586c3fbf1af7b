"""A worker's life in a served run: its streams to the coordinator and all servers."""

import queue
from collections.abc import Callable, Sequence

from absl import logging

from cluster.membership.joining import drop
from cluster.membership.process import Settings
from cluster.membership.session import Session
from cluster.network.heartbeat import within
from cluster.network.messages import (
  PIECE_SIZES,
  TO_WORKER,
  Activity,
  Evaluate,
  FromWorker,
  Progress,
  SaveResidual,
  ServerAddresses,
  ToWorker,
  WorkerConnection,
)
from cluster.network.streams import (
  Closed,
  Refused,
  Stream,
  TransportError,
  connect,
)

Send = Callable[[FromWorker], None]


class ParameterServerSession(Session[ToWorker]):
  """See `Session`.

  Attributes:
    streams: To the servers.
    pieces: Bytes of the pieces in which each server takes pushes; may be empty.
  """

  def __init__(
    self,
    coordinator: str,
    index: int,
    settings: Settings,
    *,
    save: Callable[[SaveResidual, Send], object],
    evaluate: Callable[[Evaluate, Send], object],
    progress: Callable[[], Progress],
    hung: Callable[[str], None],
  ):
    """Joins the coordinator: see `Session`.

    Args:
      coordinator: HOST:PORT.
      index: Of the worker.
      settings: What all processes of the run agree on.
      save: Called with a request to write a part of a checkpoint, and the
        function that sends the answer, in a thread of the heartbeat.
      evaluate: Called likewise with a request for an evaluation.
      progress: Returns the progress that every heartbeat carries.
      hung: As of `Session`.

    Raises:
      TransportError: If it cannot be joined.
    """
    self._servers: queue.SimpleQueue[ServerAddresses] = queue.SimpleQueue()
    self._settings, self._save, self._evaluate = settings, save, evaluate
    self.streams: list[Stream] = []
    self.pieces: list[Sequence[int]] = []
    super().__init__(
      coordinator,
      index,
      settings,
      schema=TO_WORKER,
      progress=progress,
      receive=self._take,
      hung=hung,
      on_end=self._cancel,
    )
    self._hello = WorkerConnection(index, self.incarnation)

  def meet(self) -> None:
    """Connects to all servers, once the coordinator has said where they are.

    Raises:
      TransportError: If the coordinator has ended this life meanwhile.
    """
    servers = self._servers.get().addresses
    for address in servers:
      stream = self._connected(address)
      self.stack.callback(drop, stream)
      with within(stream, self._timeout_s):
        self.pieces.append(stream.receive(PIECE_SIZES).header.sizes)
      self.streams.append(stream)
      met = f'connected to {len(self.streams)} of {len(servers)} servers'
      self.send(Activity(met))

  def _connected(self, address: str) -> Stream:
    """Returns a stream to a server, as soon as it can be reached."""
    while not self.heartbeat.ended.is_set():
      try:
        settings = self._settings
        return connect(
          address, self._hello, settings.security, settings.timeout_s
        )
      except Refused:
        raise
      except TransportError as error:
        logging.info('Still waiting for a server: %s', error)
    raise Closed('The coordinator has ended this life.')

  def _take(self, message: ToWorker) -> None:
    match message:
      case SaveResidual():
        self._save(message, self.send)
      case Evaluate():
        self._evaluate(message, self.send)
      case ServerAddresses():
        self._servers.put(message)

  def _cancel(self) -> None:
    self._servers.put(ServerAddresses(()))
    for stream in list(self.streams):
      stream.cancel()
