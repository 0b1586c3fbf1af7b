"""The listening port of a process, which all its services share.

One event-loop thread accepts connections, runs their handshakes, and hands
authenticated ones to the service that the peer has asked for.  It also opens
connections for services that must not block.  Threads that serve streams and
the data thread of the allreduce never wait for a handshake.

Strangers can neither delay authorised peers nor fill the memory.  The numbers
of pending handshakes are limited, in total and per address.  At a limit a
random pending one is dropped, of the address that has most: a flood of silent
connections drops mostly its own.  A handshake takes a few milliseconds, so an
authorised peer behind the same address succeeds at its first attempts.  (If the
oldest were dropped, a flood that is faster than a round trip would drop all.)
A pending connection holds at most 104 bytes of its peer.  TLS costs time and
memory, so it starts once a peer's whole first record is there, for a few at a
time.  Refusals are logged at a limited rate.

If the event loop fails, which no known error causes, the process ends with the
code 75: its services could neither accept nor open connections, and others
would wait for them.
"""

import os
import random
import ssl
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from absl import logging

from cluster.network import handshake, sockets
from cluster.network.connection import Connection, Steps
from cluster.network.errors import Closed, TransportError
from cluster.network.handshake import RETRIES, RETRY_S, Dropped, Security
from cluster.network.rate_limited_log import RateLimitedLog
from cluster.network.socket_loop import IN, SocketLoop
from configs.checks import require
from system import clock, processes, threads

WAIT_S = 20.0  # Limit of a handshake; clients try again.
_MAX_PENDING = 512  # Connections that have not completed the handshake.
_MAX_PENDING_OF_HOST = 256
_MAX_TLS = 32  # Of those, connections that use TLS.
_MAX_ACCEPTED = 64  # Connections accepted before others have their turn.
_PAUSE_S = 0.1  # Between two attempts to accept connections.
_ERRORS = (TransportError, OSError)


class Service(NamedTuple):
  """A service that is offered on a port.

  Attributes:
    on_connection: Called with each authenticated connection, which the service
      owns from then on; in the thread of the port, which it must not block.
    on_shortage: Called with the reason for which no connection can be accepted,
      and the seconds for which that has lasted, repeatedly; likewise.
  """

  on_connection: Callable[[Connection], None]
  on_shortage: Callable[[OSError, float], None]


class Port:
  """A port on one address, open while at least one service is offered.

  Attributes:
    host: IPv4 or IPv6 address that it listens on, and no other.
    security: Credentials of all connections.
    wait_s: Limit of a handshake, seconds.
  """

  def __init__(
    self,
    host: str,
    port: int,
    security: Security,
    *,
    wait_s: float = WAIT_S,
  ):
    """Creates a port, which is not open yet.

    Args:
      host: IPv4 or IPv6 address of one interface.
      port: Port to listen on; 0 for any that is free.
      security: Credentials of all connections.
      wait_s: Limit of a handshake, seconds.

    Raises:
      ValueError: If `host` is not an address of one interface.
    """
    expected = 'the IPv4 or IPv6 address of an interface'
    require(sockets.is_specific(host), 'host', expected, host)
    self.host, self.security = host, security
    self.wait_s = wait_s
    self._port = port
    self._changing = threads.Lock()
    self._services: dict[bytes, Service] = {}
    self._acceptor: _Acceptor | None = None

  @property
  def address(self) -> str:
    """The port's 'address:port'.

    Raises:
      RuntimeError: If no service is offered.
    """
    acceptor = self._acceptor
    if acceptor is None:
      raise RuntimeError('The port is not open.')
    return acceptor.address

  def offer(
    self,
    service: str,
    on_connection: Callable[[Connection], None],
    on_shortage: Callable[[OSError, float], None] = lambda *_: None,
  ) -> None:
    """Offers a service; opens the port if it is the first one.

    Args:
      service: Name of the service, at most 32 bytes.
      on_connection: See `Service`.
      on_shortage: See `Service`.

    Raises:
      TransportError: If the address cannot be listened on, or the process has
        no descriptors left.
      ssl.SSLError: If the certificate is invalid, or does not match the key.
      ValueError: If the service is offered already, or one of `certificate` and
        `key` is missing.
    """
    valid = bool(self.security.certificate) == bool(self.security.key)
    require(valid, 'security', 'both certificate and key', 'one of them')
    name = handshake.name_service(service)
    with self._changing:
      is_new = name not in self._services
      require(is_new, 'service', 'one that is not offered yet', service)
      if self._acceptor is None:
        where = sockets.join(self.host, self._port)
        try:
          self._acceptor = _Acceptor(
            self.host, self._port, self.security, self._services, self.wait_s
          )
        except ssl.SSLError:
          raise
        except OSError as error:
          raise TransportError(f'{where}: {error}') from error
      self._services[name] = Service(on_connection, on_shortage)

  def withdraw(self, service: str) -> None:
    """Ends a service, but not its connections; closes the port if it is last.

    Not for the port's own thread.
    """
    with self._changing:
      self._services.pop(handshake.name_service(service), None)
      if not self._services and self._acceptor:
        acceptor, self._acceptor = self._acceptor, None
        acceptor.close()

  def connect(
    self,
    address: str,
    name: str,
    service: str,
    first: bytes,
    *,
    limit_s: float,
    on_done: Callable[[Connection], None],
    on_error: Callable[[Exception], None],
  ) -> 'Attempt':
    """Begins a connection to another process, without waiting for it.

    A connection that the listener drops is opened again some times, as it drops
    random ones while it is flooded.  The port has to be open.

    Args:
      address: Numeric address of the other process.
      name: Its host before it was resolved, which a certificate names.
      service: Service to ask for.
      first: First bytes to the service.
      limit_s: Limit of the handshake, seconds.
      on_done: Called with the connection in the port's thread.
      on_error: Called with the reason of a failure, likewise.
    """
    attempt = Attempt(
      address,
      name,
      handshake.name_service(service),
      first,
      clock.monotonic() + limit_s,
      on_done,
      on_error,
    )
    acceptor = self._acceptor
    if acceptor is None or not acceptor.start(attempt):
      on_error(Closed('the port is closed'))
    return attempt


class Attempt:
  """A connection that is being opened.

  Attributes:
    is_cancelled: Whether its result is no longer wanted.
  """

  def __init__(
    self,
    address: str,
    name: str,
    service: bytes,
    first: bytes,
    deadline_s: float,
    on_done: Callable[[Connection], None],
    on_error: Callable[[Exception], None],
  ):
    """Creates an attempt; arguments as of `Port.connect`."""
    self.address, self.name = address, name
    self.service, self.first = service, first
    self.deadline_s = deadline_s
    self.on_done, self.on_error = on_done, on_error
    self.retries = 0
    self.is_cancelled = False

  def cancel(self) -> None:
    """Ends the attempt, whose functions are then no longer called."""
    self.is_cancelled = True


class _Pending:
  """A handshake that runs.

  Attributes:
    steps: The coroutine.
    deadline_s: Monotonic time after which it is ended.
    host: Address or network of a client: see `sockets.origin`; '' for a
      connection of this process.
    on_done: Called with the coroutine's result.
    on_error: Called with the reason for which it has failed.
    has_tls: Whether it counts among the handshakes of TLS.
  """

  def __init__(
    self,
    steps: Steps[Any],
    deadline_s: float,
    host: str,
    on_done: Callable[[Any], None],
    on_error: Callable[[Exception], None],
  ):
    self.steps, self.deadline_s, self.host = steps, deadline_s, host
    self.on_done, self.on_error = on_done, on_error
    self.has_tls = False


class _Acceptor:
  """Listening socket and handshakes of a port that is open.

  Methods with a leading underscore run in the thread of its event loop.

  Attributes:
    address: 'address:port' that it listens on.
  """

  def __init__(
    self,
    host: str,
    port: int,
    security: Security,
    services: dict[bytes, Service],
    wait_s: float,
  ):
    self._security, self._services = security, services
    self._wait_s = wait_s
    self._listener_context = handshake.listener_context(security)
    self._client_context = handshake.client_context(security)
    self._certificate = handshake.certificate_digest(security)
    self._log = RateLimitedLog()
    self._pending: dict[Connection, _Pending] = {}
    self._of_host: dict[str, list[Connection]] = {}  # Inbound ones.
    self._num_inbound = 0
    self._is_closing = False
    self._retries: list[tuple[float, Attempt]] = []
    self._resume_s: float | None = None  # Monotonic; while accepting pauses.
    # Monotonic seconds of the first and last failure in a row to accept.
    self._failing_s: tuple[float, float] | None = None
    self._sock = sockets.listen(host, port)
    where = self._sock.getsockname()
    self.address = sockets.join(*where[:2])
    try:
      self._loop = SocketLoop(
        f'port-{where[1]}',
        after_events=lambda: None,
        tick=self._tick,
        on_error=lambda _: self._pause(),
        on_exit=self._finish,
      )
    except OSError:
      self._sock.close()
      raise
    self._loop.post(self._resume)

  def close(self) -> None:
    """Closes the port and all connections that are not authenticated."""
    self._is_closing = True
    self._loop.close()

  def start(self, attempt: Attempt) -> bool:
    """Begins a connection; returns whether the port is still open."""
    return self._loop.post(lambda: self._open(attempt))

  def _resume(self) -> None:
    self._resume_s = None
    self._loop.watch(self._sock, IN, self._accept)

  def _pause(self) -> None:
    self._resume_s = clock.monotonic() + _PAUSE_S
    self._loop.is_ticking = True

  def _accept(self, events: int) -> None:
    del events
    for _ in range(_MAX_ACCEPTED):
      try:
        sock, (host, port, *_) = self._sock.accept()
      except (BlockingIOError, ConnectionAbortedError):
        return
      except OSError as error:
        self._note_shortage(error)
        return
      self._failing_s = None
      peer = sockets.join(host, port)
      try:
        connection = Connection(sock, peer)
      except OSError as error:
        sock.close()
        self._log.write(f'{peer}: refused: {error}')
        continue
      self._answer(connection, sockets.origin(host))

  def _answer(self, connection: Connection, host: str) -> None:
    """Starts the handshake of a client."""
    own = self._of_host.setdefault(host, [])
    if len(own) >= _MAX_PENDING_OF_HOST:
      self._drop_one(own)
    elif self._num_inbound >= _MAX_PENDING:
      most = max(map(len, self._of_host.values()))
      self._drop_one(
        [
          c
          for each in self._of_host.values()
          if len(each) == most
          for c in each
        ]
      )
    own = self._of_host.setdefault(host, [])
    own.append(connection)
    self._num_inbound += 1
    steps = handshake.answer(
      connection,
      self._security,
      self._listener_context,
      self.address,
      self._certificate,
      self._services,
      lambda: self._start_tls(connection),
    )
    self._start(
      connection,
      _Pending(
        steps,
        clock.monotonic() + self._wait_s,
        host,
        lambda service: self._hand_over(connection, service),
        lambda error: self._log_refusal(connection, error),
      ),
    )

  def _drop_one(self, candidates: list[Connection]) -> None:
    """Drops a random pending connection."""
    dropped = random.choice(candidates)
    self._log.write(
      f'{dropped.peer}: refused: {self._num_inbound} handshakes are pending'
    )
    self._drop(dropped)

  def _start_tls(self, connection: Connection) -> None:
    """Counts a handshake of TLS; drops another one if there are too many."""
    if self._listener_context is None:
      return
    pending = self._pending
    with_tls = [each for each in pending if pending[each].has_tls]
    if len(with_tls) >= _MAX_TLS:
      counts = Counter(pending[each].host for each in with_tls)
      most = max(counts.values())
      self._drop_one([c for c in with_tls if counts[pending[c].host] == most])
    pending[connection].has_tls = True

  def _hand_over(self, connection: Connection, name: bytes) -> None:
    service = self._services.get(name)
    if service is None:  # It was withdrawn meanwhile.
      connection.close()
      return
    is_taken = False
    try:
      service.on_connection(connection)
      is_taken = True
    finally:
      if not is_taken:  # For example without threads.
        connection.close()

  def _log_refusal(self, connection: Connection, error: Exception) -> None:
    reason = str(error).removeprefix(f'{connection.peer}: ')
    self._log.write(f'{connection.peer}: refused: {reason}')

  def _note_shortage(self, error: OSError) -> None:
    """Pauses accepting connections: the process lacks descriptors.

    The system queues clients meanwhile.
    """
    now = clock.monotonic()
    self._log.write(f'{self.address}: no connection is accepted: {error}')
    self._loop.forget(self._sock)
    self._pause()
    first, last = self._failing_s or (now, now)
    if now - last > 10 * _PAUSE_S:
      first = now
    self._failing_s = first, now
    for service in [*self._services.values()]:
      service.on_shortage(error, now - first)

  def _open(self, attempt: Attempt) -> None:
    """Begins a connection of this process."""
    if attempt.is_cancelled:
      return
    if self._sock.fileno() < 0:
      attempt.on_error(Closed('the port is closed'))
      return
    sock = None
    try:
      sock = sockets.start_connecting(attempt.address)
      connection = Connection(sock, attempt.address)
    except OSError as error:
      if sock:
        sock.close()
      attempt.on_error(error)
      return
    self._start(
      connection,
      _Pending(
        handshake.initiate(
          connection,
          self._security,
          self._client_context,
          attempt.name,
          attempt.service,
          attempt.first,
        ),
        attempt.deadline_s,
        '',
        lambda _: self._deliver(connection, attempt),
        lambda error: self._fail(attempt, error),
      ),
    )

  def _deliver(self, connection: Connection, attempt: Attempt) -> None:
    if attempt.is_cancelled:
      connection.close()
    else:
      attempt.on_done(connection)

  def _fail(self, attempt: Attempt, error: Exception) -> None:
    if attempt.is_cancelled:
      return
    retry_s = clock.monotonic() + RETRY_S
    is_dropped = isinstance(error, Dropped) and retry_s < attempt.deadline_s
    if is_dropped and attempt.retries < RETRIES:
      attempt.retries += 1
      self._retries.append((retry_s, attempt))
      self._loop.is_ticking = True
    else:
      attempt.on_error(error)

  def _start(self, connection: Connection, pending: _Pending) -> None:
    self._pending[connection] = pending
    self._loop.is_ticking = True
    self._step(connection)

  def _step(self, connection: Connection) -> None:
    pending = self._pending[connection]
    is_expected = False
    try:
      events = next(pending.steps)
      self._loop.watch(
        connection.sock, events, lambda _: self._step(connection)
      )
      is_expected = True
    except StopIteration as end:
      self._loop.forget(connection.sock)
      self._remove(connection)
      is_expected = True
      pending.on_done(end.value)
    except _ERRORS as error:
      self._drop(connection)
      is_expected = True
      pending.on_error(error)
    except Exception as error:
      self._drop(connection)
      is_expected = True
      if pending.host:
        raise
      pending.on_error(error)
    finally:
      if not is_expected:  # An unexpected error closes the connection, too.
        self._drop(connection)

  def _drop(self, connection: Connection) -> None:
    self._loop.forget(connection.sock)
    self._remove(connection)
    connection.close()

  def _remove(self, connection: Connection) -> None:
    pending = self._pending.pop(connection, None)
    if pending and pending.host:
      self._num_inbound -= 1
      own = self._of_host[pending.host]
      own.remove(connection)
      if not own:
        del self._of_host[pending.host]

  def _tick(self) -> None:
    """Ends overdue handshakes, and resumes what was postponed."""
    now = clock.monotonic()
    if self._resume_s is not None and now >= self._resume_s:
      self._resume()
    for connection, pending in [*self._pending.items()]:
      if now > pending.deadline_s and connection in self._pending:
        self._drop(connection)
        late = f'no handshake within {self._wait_s:g} s'
        if not pending.host:
          late = 'it did not complete the handshake in time'
        pending.on_error(Closed(f'{connection.peer}: {late}'))
    due = [attempt for when, attempt in self._retries if when <= now]
    self._retries = [each for each in self._retries if each[0] > now]
    for attempt in due:
      self._open(attempt)
    is_waiting = bool(self._pending or self._retries)
    self._loop.is_ticking = is_waiting or self._resume_s is not None

  def _finish(self, error: Exception | None) -> None:
    # A port that is being closed has no service left.
    if error is not None and not self._is_closing:
      _end_process(self.address, error)
    self._loop.forget(self._sock)
    self._sock.close()
    failed = Closed('the port is closed')
    for connection, pending in [*self._pending.items()]:
      self._drop(connection)
      if not pending.host:
        pending.on_error(failed)
    for _, attempt in self._retries:
      self._fail(attempt, failed)
    self._log.close()


def _end_process(address: str, error: Exception) -> NoReturn:
  """Ends the process, whose port has failed; a restart may help.

  Not by an exception: threads of services wait for connections.
  """
  try:
    logging.error(
      'The port %s has failed, and this process ends with the code %d: %r',
      address,
      os.EX_TEMPFAIL,
      error,
    )
    sys.stdout.flush()
    sys.stderr.flush()
  finally:
    processes.exit_now(os.EX_TEMPFAIL)
