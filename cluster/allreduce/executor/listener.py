"""Listener of an executor, and clients that it has not admitted yet.

Strangers can neither block it nor fill its memory: a handshake has a time
limit, their number is limited, and refusals are logged at a limited rate.  A
client that knows the token but belongs to a later membership epoch waits until
that epoch is formed here.
"""

import contextlib
import functools
import math
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from cluster.allreduce.executor import handshake
from cluster.allreduce.executor.handshake import Connection, Hello
from cluster.allreduce.executor.socket_loop import IN, SocketLoop
from cluster.network.admission import WAIT_S
from cluster.network.errors import Closed, TransportError
from cluster.network.handshake import Security
from cluster.network.rate_limited_log import RateLimitedLog

# Least limits of running handshakes, and of clients that wait.
_LIMIT = 256
_PAUSE_S = 0.1  # Between two attempts to accept connections.
_ERRORS = (TransportError, OSError)


class _Handshake(NamedTuple):
  """A handshake that runs.

  Attributes:
    is_inbound: Whether a client has connected to this executor.
    steps: The coroutine.
    deadline_s: Monotonic time after which it is ended.
    on_done: Called with the coroutine's result.
    on_error: Called with the reason for which it has failed.
  """

  is_inbound: bool
  steps: handshake.Steps[Any]
  deadline_s: float
  on_done: Callable[[Any], None]
  on_error: Callable[[Exception], None]


class ExecutorListener:
  """Listener of one executor; its methods run in the event-loop thread.

  Attributes:
    address: 'host:port' that it listens on.
  """

  def __init__(
    self,
    loop: SocketLoop,
    sock: socket.socket,
    security: Security,
    contexts: handshake.TlsContexts,
    *,
    index: int,
    workers: int,
    timeout_s: float,
    on_client: Callable[[Connection, Hello], bool],
    on_shortage: Callable[[OSError], None],
  ):
    """Creates a listener, which accepts connections once `open` is called.

    Args:
      loop: Event loop of the executor.
      sock: Listening socket.
      security: Credentials of this worker.
      contexts: Its TLS contexts.
      index: Index of this worker.
      workers: Number of workers that may connect at once.
      timeout_s: Seconds after which a peer that does not answer is lost.
      on_client: Called with each client that knows the token; returns whether
        it takes the connection.  If not, the connection waits to be claimed.
      on_shortage: Called with the reason for which no connection can be
        accepted, repeatedly once that has lasted for half of `timeout_s`.
    """
    self.address = '{}:{}'.format(*sock.getsockname())
    self._loop, self._sock, self._security = loop, sock, security
    self._index, self._timeout_s = index, timeout_s
    self._on_client, self._on_shortage = on_client, on_shortage
    self._limit = max(_LIMIT, 2 * workers)  # Strangers may be among them.
    self._contexts = contexts
    self._resume_s: float | None = None  # Monotonic; while accepting pauses.
    # Monotonic seconds of the first and last failure in a row to accept.
    self._failing_s: tuple[float, float] | None = None
    self._log = RateLimitedLog()
    self._handshakes: dict[Connection, _Handshake] = {}
    self._waiting: dict[Connection, Hello] = {}

  @property
  def num_waiting(self) -> int:
    """Number of clients that wait for a later membership epoch."""
    return len(self._waiting)

  def open(self) -> None:
    """Starts to accept connections."""
    self._resume_s = None
    self._loop.watch(self._sock, IN, self._accept)

  def reopen(self) -> None:
    """Resumes to accept connections after a short pause."""
    self._resume_s = time.monotonic() + _PAUSE_S
    self._loop.is_ticking = True

  def connect(
    self,
    address: str,
    host: str,
    hello: Hello,
    on_done: Callable[[Connection], None],
    on_error: Callable[[Exception], None],
  ) -> None:
    """Connects to another worker.

    Args:
      address: IPv4 'address:port' of its listener.
      host: Host of the address before it was resolved.
      hello: Sent to the listener.
      on_done: Called once it has admitted this worker, which may take longer
        than a handshake: the caller has a time limit of its own, after which
        it calls `cancel_outgoing`.
      on_error: Called with the reason for which it failed.
    """
    sock = None
    try:
      sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
      connection = Connection(sock, address, self._timeout_s)
      ip, _, port = address.rpartition(':')
      with contextlib.suppress(BlockingIOError):
        sock.connect((ip, int(port)))
    except OSError as error:
      if sock:
        sock.close()
      on_error(error)
      return

    def remove_deadline() -> None:
      running = self._handshakes[connection]
      self._handshakes[connection] = running._replace(deadline_s=math.inf)

    steps = handshake.initiate(
      connection,
      self._security,
      self._contexts.client,
      host,
      hello,
      remove_deadline,
    )
    deadline_s = time.monotonic() + self._timeout_s
    self._start(
      connection,
      _Handshake(
        False, steps, deadline_s, lambda _: on_done(connection), on_error
      ),
    )

  def claim(self, membership_epoch: int) -> list[tuple[Connection, Hello]]:
    """Returns clients that wait for an epoch; refuses those of earlier ones."""
    claimed = []
    for connection, hello in [*self._waiting.items()]:
      if hello.membership_epoch <= membership_epoch:
        del self._waiting[connection]
        self._loop.forget(connection.sock)
        if hello.membership_epoch == membership_epoch:
          claimed.append((connection, hello))
        else:
          self.refuse_outdated(connection, hello)
    return claimed

  def refuse(self, connection: Connection, reason: str) -> None:
    """Refuses a client that knows the token, and logs the reason."""
    handshake.refuse(connection)
    connection.close()
    self._log.write(f'{connection.peer}: refused: {reason}')

  def refuse_outdated(self, connection: Connection, hello: Hello) -> None:
    """Refuses a client of a membership epoch that has ended."""
    reason = f'membership epoch {hello.membership_epoch} has ended'
    self.refuse(connection, reason)

  def cancel_outgoing(self) -> None:
    """Ends the handshakes of this worker with others."""
    for connection, running in [*self._handshakes.items()]:
      if not running.is_inbound:
        self._drop(connection)

  def tick(self) -> bool:
    """Ends overdue handshakes, and resumes to accept connections.

    Returns:
      Whether it has to be called again.
    """
    now = time.monotonic()
    if self._resume_s is not None and now >= self._resume_s:
      self.open()
    for connection, running in [*self._handshakes.items()]:
      if now > running.deadline_s:
        self._drop(connection)
        late = f'{connection.peer}: it did not complete the handshake in time'
        running.on_error(Closed(late))
    return bool(self._handshakes) or self._resume_s is not None

  def close(self) -> None:
    """Closes the listener, and all connections that are not admitted."""
    self._loop.forget(self._sock)
    self._sock.close()
    for connection in [*self._handshakes, *self._waiting]:
      self._drop(connection)
    self._log.close()

  def _accept(self, events: int) -> None:
    del events
    try:
      sock, (host, port) = self._sock.accept()
    except (BlockingIOError, ConnectionAbortedError):
      return
    except OSError as error:
      self._pause(error)
      return
    self._failing_s = None
    try:
      connection = Connection(sock, f'{host}:{port}', self._timeout_s)
    except OSError as error:
      sock.close()
      self._log.write(f'{host}:{port}: refused: {error}')
      return
    steps = handshake.answer(
      connection, self._security, self._contexts.listener, self.address
    )

    def log_refusal(error: Exception) -> None:
      reason = str(error).removeprefix(f'{connection.peer}: ')
      self._log.write(f'{connection.peer}: refused: {reason}')

    inbound = [c for c, each in self._handshakes.items() if each.is_inbound]
    if len(inbound) >= self._limit:
      self._drop(inbound[0])
    deadline_s = time.monotonic() + WAIT_S
    on_done = functools.partial(self._authenticated, connection)
    self._start(
      connection, _Handshake(True, steps, deadline_s, on_done, log_refusal)
    )

  def _pause(self, error: OSError) -> None:
    """Pauses accepting connections: the process lacks descriptors.

    The system queues clients meanwhile.  Sleeping in this thread would delay
    the peers that are connected already.
    """
    now = time.monotonic()
    self._log.write(f'{self.address}: no connection is accepted: {error}')
    self._loop.forget(self._sock)
    self.reopen()
    first, last = self._failing_s or (now, now)
    if now - last > 10 * _PAUSE_S:
      first = now
    self._failing_s = first, now
    if now - first > self._timeout_s / 2:
      self._on_shortage(error)

  def _authenticated(self, connection: Connection, hello: Hello) -> None:
    """Hands over a client that knows the token, or lets it wait."""
    if hello.receiver != self._index:
      self.refuse(connection, f'it looks for worker {hello.receiver}')
    elif not self._on_client(connection, hello):
      if len(self._waiting) >= self._limit:
        self._drop(next(iter(self._waiting)))
      self._waiting[connection] = hello
      # The client sends nothing until it is admitted: an event is its end.
      self._loop.watch(connection.sock, IN, lambda _: self._drop(connection))

  def _start(self, connection: Connection, new: _Handshake) -> None:
    self._handshakes[connection] = new
    self._loop.is_ticking = True
    self._step(connection)

  def _step(self, connection: Connection) -> None:
    running = self._handshakes[connection]
    with contextlib.ExitStack() as stack:
      # Unexpected errors close the connection, too.
      stack.callback(self._drop, connection)
      try:
        events = next(running.steps)
        self._loop.watch(
          connection.sock, events, lambda _: self._step(connection)
        )
      except StopIteration as end:
        del self._handshakes[connection]
        self._loop.forget(connection.sock)
        running.on_done(end.value)
      except _ERRORS as error:
        self._drop(connection)
        running.on_error(error)
      stack.pop_all()

  def _drop(self, connection: Connection) -> None:
    self._handshakes.pop(connection, None)
    self._waiting.pop(connection, None)
    self._loop.forget(connection.sock)
    connection.close()
