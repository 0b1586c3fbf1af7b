"""Session of a worker: its streams to the coordinator and to all servers."""

from collections.abc import Callable, Sequence

from absl import logging

from cluster.membership.joining import drop
from cluster.membership.process import Settings
from cluster.membership.session import Session
from cluster.network.errors import expect
from cluster.network.heartbeat import within
from cluster.network.messages import (
  PIECE_SIZES,
  TO_WORKER,
  Activity,
  Evaluate,
  FetchMirror,
  FromWorker,
  HostServer,
  MirrorCompleted,
  Progress,
  RetainResidual,
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
  push_service,
)
from cluster.probing.rates import TrafficReporter
from diagnosis.server_links import MOST_SERVERS
from system import threads

REPORT_S = 1.0  # Between two reports on traffic.
MirrorRequest = RetainResidual | FetchMirror | MirrorCompleted | HostServer
# Sends a message to the coordinator.
Send = Callable[[FromWorker], None]


class ParameterServerSession(Session[ToWorker]):
  """A session that also has a stream to each server: see `Session`.

  Attributes:
    streams: Streams to the servers, in the order of their shares.
    piece_sizes: Bytes of the pieces of pushes to each server; empty for a
      server that takes pushes as a whole.
  """

  def __init__(
    self,
    coordinator: str | Callable[[], str],
    index: int,
    settings: Settings,
    *,
    save: Callable[[SaveResidual, Send], object],
    evaluate: Callable[[Evaluate, Send], object],
    mirror: Callable[[MirrorRequest, Send], object],
    push_bytes: Sequence[int],
    progress: Callable[[], Progress],
    on_hang: Callable[[str], None],
    on_lost: Callable[[], None] = lambda: None,
  ):
    """Creates the session: connects to the coordinator.

    Args:
      coordinator: As of `Session`.
      index: Rank of the worker.
      settings: Settings of all processes of the run.
      save: Called with a request to write a part of a checkpoint, and the
        function that sends the answer, in a thread of the heartbeat.
      evaluate: Called likewise with a request for an evaluation.
      mirror: Called likewise with a request about mirrors.
      push_bytes: Bytes of a push to each server, in the order of their shares.
      progress: Returns the progress that every heartbeat carries.
      on_hang: As of `Session`.
      on_lost: Called from another thread once the session has ended.

    Raises:
      TransportError: If the coordinator cannot be reached.
    """
    self._addresses: threads.SimpleQueue[ServerAddresses] = (
      threads.SimpleQueue()
    )
    self._settings, self._save, self._evaluate = settings, save, evaluate
    self._mirror, self._on_lost = mirror, on_lost
    self._push_bytes = push_bytes
    self.streams: list[Stream] = []
    self.piece_sizes: list[Sequence[int]] = []
    super().__init__(
      coordinator,
      index,
      settings,
      schema=TO_WORKER,
      progress=progress,
      receive=self._take,
      on_hang=on_hang,
      on_end=self._cancel,
    )
    self._hello = WorkerConnection(index, self.incarnation, settings.process)

  def connect(self) -> None:
    """Connects to all servers, once the coordinator has sent their addresses.

    Raises:
      TransportError: If the coordinator has ended the session meanwhile.
      InvalidMessage: If there are other servers, or one takes pushes of another
        size.
    """
    addresses, expected = self._addresses.get().addresses, self._push_bytes
    if self.heartbeat.ended.is_set():
      raise Closed('The coordinator has ended the session.')
    valid = len(addresses) == len(expected)
    expect(valid, 'addresses', f'{len(expected)} servers', addresses)
    for server, address in enumerate(addresses):
      stream = self._connect(server, address)
      self.stack.callback(drop, stream)
      with within(stream, self._timeout_s):
        sizes = stream.receive(PIECE_SIZES).header.sizes
      valid = not sizes or sum(sizes) == expected[server]
      expect(valid, 'sizes', f'{expected[server]} bytes in all', sizes)
      self.piece_sizes.append(sizes)
      self.streams.append(stream)
      connected = f'{len(self.streams)} of {len(addresses)} servers'
      self.send(Activity(f'connected to {connected}'))

  def report_traffic(self) -> None:
    """Starts to report what the streams have sent, if there are several.

    Not if there are so many that the coordinator would not compare them.
    """
    if 1 < len(self.streams) <= MOST_SERVERS:
      self.stack.enter_context(
        TrafficReporter(self._traffic, self.send, REPORT_S)
      )

  def _traffic(self) -> dict[int, Stream]:
    """Returns the streams by server, which know what they have sent."""
    return dict(enumerate(self.streams))

  def _connect(self, server: int, address: str) -> Stream:
    """Returns a stream to a server, as soon as it can be reached."""
    settings = self._settings
    while not self.heartbeat.ended.is_set():
      try:
        return connect(
          address,
          self._hello,
          settings.security,
          settings.timeout_s,
          service=push_service(server),
        )
      except Refused:
        raise
      except TransportError as error:
        logging.info('Still waiting for a server: %s', error)
    raise Closed('The coordinator has ended the session.')

  def _take(self, message: ToWorker) -> None:
    match message:
      case SaveResidual():
        self._save(message, self.send)
      case Evaluate():
        self._evaluate(message, self.send)
      case ServerAddresses():
        self._addresses.put(message)
      case _:
        self._mirror(message, self.send)

  def _cancel(self) -> None:
    self._on_lost()
    self._addresses.put(ServerAddresses(()))
    for stream in list(self.streams):
      stream.cancel()
