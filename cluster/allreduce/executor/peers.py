"""Connections of an executor to and from others, until a membership has them.

A connection goes one way: the sending worker of a hop connects to the receiving
one.  The port of the process opens and authenticates connections.  The client
then sends its `Hello`, and waits until the receiver admits or refuses it: a
client of a later membership epoch waits until that epoch is formed here.
"""

import contextlib
import functools
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from cluster.network.connection import Connection, Steps, receive_exactly
from cluster.network.errors import Closed, Refused, TransportError
from cluster.network.port import WAIT_S, Attempt, Port
from cluster.network.rate_limited_log import RateLimitedLog
from cluster.network.socket_loop import IN, SocketLoop
from system import clock

SUMS = 'sums'  # Service of executors.
_HELLO = struct.Struct('<QIII')
_YES, _NO = b'\1', b'\0'
# Least limit of clients that wait.
_LIMIT = 256
_ERRORS = (TransportError, OSError)


class Hello(NamedTuple):
  """First bytes of a client on a connection.

  Attributes:
    membership_epoch: Number of the membership epoch that it is for.
    sender: Index of the client's worker.
    receiver: Index of the worker that it intends to reach.
    lane: Number of the lane whose chunks it carries.
  """

  membership_epoch: int
  sender: int
  receiver: int
  lane: int


class _Exchange(NamedTuple):
  """Bytes that a connection waits for.

  Attributes:
    is_inbound: Whether a client has connected to this executor.
    steps: The coroutine.
    deadline_s: Monotonic time after which it is ended.
    on_done: Called with the coroutine's result.
    on_error: Called with the reason for which it has failed.
  """

  is_inbound: bool
  steps: Steps[Any]
  deadline_s: float
  on_done: Callable[[Any], None]
  on_error: Callable[[Exception], None]


class Peers:
  """Connections of one executor that no membership has yet.

  All methods but `open` run in the executor's event-loop thread.
  """

  def __init__(
    self,
    loop: SocketLoop,
    port: Port,
    *,
    index: int,
    workers: int,
    timeout_s: float,
    on_client: Callable[[Connection, Hello], bool],
  ):
    """Starts without connections.

    Args:
      loop: Event loop of the executor.
      port: Port of this process.
      index: Index of this worker.
      workers: Number of workers that may connect at once.
      timeout_s: Seconds after which a peer that does not answer is lost.
      on_client: Called with each client; returns whether it takes the
        connection.  If not, the connection waits to be claimed.
    """
    self._loop, self._port = loop, port
    self._index, self._timeout_s = index, timeout_s
    self._on_client = on_client
    self._limit = max(_LIMIT, 2 * workers)  # Outdated ones may be among them.
    self._log = RateLimitedLog()
    self._attempts: set[Attempt] = set()
    self._exchanges: dict[Connection, _Exchange] = {}
    self._waiting: dict[Connection, Hello] = {}
    self._is_closed = False

  def open(self, on_shortage: Callable[[OSError], None]) -> str:
    """Offers the executor's service; returns the address of the port.

    Args:
      on_shortage: Called with the reason for which no connection can be
        accepted, repeatedly once that has lasted for half of `timeout_s`.

    Raises:
      TransportError: If the address cannot be listened on.
      ssl.SSLError: If the certificate is invalid, or does not match the key.
    """

    def note_shortage(error: OSError, lasting_s: float) -> None:
      if lasting_s > self._timeout_s / 2:
        self._loop.post(lambda: on_shortage(error))

    self._port.offer(SUMS, self._take, note_shortage)
    return self._port.address

  @property
  def num_waiting(self) -> int:
    """Number of clients that wait for a later membership epoch."""
    return len(self._waiting)

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
      address: Numeric 'address:port' of its executor.
      host: Host of the address before it was resolved.
      hello: Sent to the executor.
      on_done: Called once it has admitted this worker, which may take longer
        than a handshake: the caller has a time limit of its own, after which
        it calls `cancel_outgoing`.
      on_error: Called with the reason for which it failed.
    """

    def wait_for_admission(connection: Connection) -> None:
      self._attempts.discard(attempt)
      if attempt.is_cancelled:
        connection.close()
        return
      connection.limit_silence(self._timeout_s)
      self._start(
        connection,
        _Exchange(
          False,
          _receive_admission(connection),
          math.inf,
          lambda _: on_done(connection),
          on_error,
        ),
      )

    def fail(error: Exception) -> None:
      self._attempts.discard(attempt)
      if not attempt.is_cancelled:
        on_error(error)

    def post_failure(error: Exception) -> None:
      self._loop.post(lambda: fail(error))

    attempt = self._port.connect(
      address,
      host,
      SUMS,
      _HELLO.pack(*hello),
      limit_s=self._timeout_s,
      on_done=lambda c: self._post(c, lambda: wait_for_admission(c)),
      on_error=post_failure,
    )
    self._attempts.add(attempt)

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
    """Refuses a client, and logs the reason."""
    with contextlib.suppress(OSError):
      connection.sock.send(_NO)
    connection.close()
    self._log.write(f'{connection.peer}: refused: {reason}')

  def refuse_outdated(self, connection: Connection, hello: Hello) -> None:
    """Refuses a client of a membership epoch that has ended."""
    reason = f'membership epoch {hello.membership_epoch} has ended'
    self.refuse(connection, reason)

  def cancel_outgoing(self) -> None:
    """Ends connections of this worker that others have not admitted."""
    for attempt in self._attempts:
      attempt.cancel()
    self._attempts.clear()
    for connection, running in [*self._exchanges.items()]:
      if not running.is_inbound:
        self._drop(connection)

  def tick(self) -> bool:
    """Ends overdue exchanges; returns whether it has to be called again."""
    now = clock.monotonic()
    for connection, running in [*self._exchanges.items()]:
      if now > running.deadline_s:
        self._drop(connection)
        running.on_error(Closed('no hello in time'))
    return bool(self._exchanges)

  def close(self) -> None:
    """Ends the service, and closes all connections that are not admitted."""
    self._is_closed = True
    self._port.withdraw(SUMS)
    self.cancel_outgoing()
    for connection in [*self._exchanges, *self._waiting]:
      self._drop(connection)
    self._log.close()

  def _take(self, connection: Connection) -> None:
    """Takes an authenticated client; in the thread of the port."""
    self._post(connection, lambda: self._receive_hello(connection))

  def _post(self, connection: Connection, function: Callable[[], None]) -> None:
    """Has the executor's thread use a connection; closes it if that ended."""
    if not self._loop.post(function):
      connection.close()

  def _receive_hello(self, connection: Connection) -> None:
    if self._is_closed:  # It has waited behind the end of the thread.
      connection.close()
      return
    connection.limit_silence(self._timeout_s)

    def log_refusal(error: Exception) -> None:
      reason = str(error).removeprefix(f'{connection.peer}: ')
      self._log.write(f'{connection.peer}: refused: {reason}')

    self._start(
      connection,
      _Exchange(
        True,
        receive_exactly(connection, _HELLO.size),
        clock.monotonic() + WAIT_S,
        functools.partial(self._decide, connection),
        log_refusal,
      ),
    )

  def _decide(self, connection: Connection, data: bytes) -> None:
    """Hands over a client, or lets it wait."""
    hello = Hello(*_HELLO.unpack(data))
    if hello.receiver != self._index:
      self.refuse(connection, f'it looks for worker {hello.receiver}')
    elif not self._on_client(connection, hello):
      if len(self._waiting) >= self._limit:
        self._drop(next(iter(self._waiting)))
      self._waiting[connection] = hello
      # The client sends nothing until it is admitted: an event is its end.
      self._loop.watch(connection.sock, IN, lambda _: self._drop(connection))

  def _start(self, connection: Connection, new: _Exchange) -> None:
    self._exchanges[connection] = new
    self._loop.is_ticking = True
    self._step(connection)

  def _step(self, connection: Connection) -> None:
    running = self._exchanges[connection]
    with contextlib.ExitStack() as stack:
      # Unexpected errors close the connection, too.
      stack.callback(self._drop, connection)
      try:
        events = next(running.steps)
        self._loop.watch(
          connection.sock, events, lambda _: self._step(connection)
        )
      except StopIteration as end:
        del self._exchanges[connection]
        self._loop.forget(connection.sock)
        running.on_done(end.value)
      except _ERRORS as error:
        self._drop(connection)
        running.on_error(error)
      stack.pop_all()

  def _drop(self, connection: Connection) -> None:
    self._exchanges.pop(connection, None)
    self._waiting.pop(connection, None)
    self._loop.forget(connection.sock)
    connection.close()


def admit(connection: Connection) -> None:
  """Admits a client, which may send frames from then on.

  Raises:
    OSError: If the client has disconnected.
  """
  connection.sock.send(_YES)


def _receive_admission(connection: Connection) -> Steps[None]:
  verdict = yield from receive_exactly(connection, len(_YES))
  if verdict != _YES:
    raise Refused('it does not expect us')
