"""TCP connections, with TLS or without, and coroutines that use them.

A connection is used in one of two ways: by an event loop, without blocking, or
by threads through a `Channel`, which blocks.  Handshakes are coroutines that
yield the socket events that they wait for, so that an event loop can run many
(`Port`) and a thread can run one (`run_steps`).
"""

import contextlib
import errno
import functools
import hashlib
import math
import os
import ssl
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from cluster.network.errors import Closed, Refused
from cluster.network.socket_loop import IN, OUT
from system import clock, net, threads

_Result = TypeVar('_Result')
# A coroutine that yields the socket events that it waits for.
Steps = Generator[int, None, _Result]
_MAX_IDLE_S = 2**15 - 1  # Largest keep-alive time that the system accepts.
# Of struct tcp_info: tcpi_bytes_acked and tcpi_busy_time, each u64.
_INFO_BYTES, _ACKNOWLEDGED, _BUSY_US = 256, 120, 168
# TCP keepalive ends an idle connection to a dead host after a minute.
_IDLE_S, _INTERVAL_S, _PROBES = 20, 10, 4
_PART_BYTES = 1 << 18  # Given to TLS at once.
_UNSENT_BYTES = 1 << 16
# Of records of TLS (RFC 8446): type, version, size.
_RECORD_HEADER = struct.Struct('>BHH')
_HANDSHAKE_RECORD, _MAX_RECORD_BYTES = 22, 1 << 14


class Connection:
  """A TCP connection between two processes, with TLS or without.

  Attributes:
    peer: 'address:port' of the other end.
    sock: Its socket.
  """

  def __init__(self, sock: net.Socket, peer: str):
    """Creates a connection of a socket, which will not block.

    Args:
      sock: Socket that is connected, or about to be.
      peer: 'address:port' of the other end.
    """
    self.sock = sock
    self.peer = peer
    self._ending = threads.Lock()
    sock.setblocking(False)

  def configure(self) -> None:
    """Sets the options of the socket: no delay, and TCP keepalive."""
    sock = self.sock
    sock.setsockopt(net.SOL_SOCKET, net.SO_KEEPALIVE, 1)
    for option, value in (
      (net.TCP_NODELAY, 1),
      (net.TCP_KEEPIDLE, _IDLE_S),
      (net.TCP_KEEPINTVL, _INTERVAL_S),
      (net.TCP_KEEPCNT, _PROBES),
    ):
      sock.setsockopt(net.IPPROTO_TCP, option, value)

  def limit_silence(self, timeout_s: float) -> None:
    """Makes the system end the connection if the peer does not answer.

    A peer whose program does not read what was sent counts as silent, too.

    Args:
      timeout_s: Seconds without an answer.
    """
    idle_s = max(int(min(timeout_s / 2, _MAX_IDLE_S)), 1)
    # 0 would disable the timeout.
    lost_ms = max(round(1000 * min(timeout_s, 4 * _MAX_IDLE_S)), 1)
    for option, value in (
      (net.TCP_USER_TIMEOUT, lost_ms),
      (net.TCP_KEEPIDLE, idle_s),
      (net.TCP_KEEPINTVL, max(idle_s // 4, 1)),
    ):
      self.sock.setsockopt(net.IPPROTO_TCP, option, value)

  def limit_unsent(self) -> None:
    """Limits the bytes that wait in the kernel to be sent to 64 KiB.

    By default they are megabytes, which take a slow link seconds.
    """
    self.sock.setsockopt(net.IPPROTO_TCP, net.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)

  @property
  def is_encrypted(self) -> bool:
    """True if the connection uses TLS."""
    return isinstance(self.sock, ssl.SSLSocket)

  @property
  def has_decrypted(self) -> bool:
    """True if TLS holds decrypted bytes, for which no socket event comes."""
    return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0

  @property
  def busy_s(self) -> float:
    """Seconds during which sent data was not yet acknowledged."""
    return self._info(_BUSY_US) / 1e6

  @property
  def acknowledged_bytes(self) -> int:
    """Number of sent bytes that the peer's system has acknowledged."""
    return self._info(_ACKNOWLEDGED)

  def _info(self, offset: int) -> int:
    """Returns a number of struct tcp_info; 0 if the system has none."""
    with contextlib.suppress(OSError):
      info = self.sock.getsockopt(net.IPPROTO_TCP, net.TCP_INFO, _INFO_BYTES)
      if len(info) >= offset + 8:
        (number,) = struct.unpack_from('=Q', info, offset)
        return int(number)
    return 0

  def encrypt(self, context: ssl.SSLContext, **options: Any) -> Steps[None]:
    """Starts TLS on the connection; options as of `wrap_socket`."""
    sock = context.wrap_socket(
      self.sock, do_handshake_on_connect=False, **options
    )
    self.sock = sock
    yield from retry(sock.do_handshake)

  def wait_for_bytes(self, count: int) -> Steps[None]:
    """Waits until the system has some bytes of the peer; receives none.

    Args:
      count: Number of the bytes; fewer if the peer has disconnected.
    """
    self.sock.setsockopt(net.SOL_SOCKET, net.SO_RCVLOWAT, count)
    yield IN
    self.sock.setsockopt(net.SOL_SOCKET, net.SO_RCVLOWAT, 1)

  def wait_for_tls(self) -> Steps[None]:
    """Waits until the peer's first TLS record has arrived, and checks its type.

    Raises:
      Refused: If the peer does not use TLS.
    """
    yield from self.wait_for_bytes(_RECORD_HEADER.size)
    peek = functools.partial(self.sock.recv, _RECORD_HEADER.size, net.MSG_PEEK)
    header = yield from retry(peek)
    if len(header) < _RECORD_HEADER.size:
      raise Closed('it has disconnected during the handshake')
    kind, _, size = _RECORD_HEADER.unpack(header)
    if kind != _HANDSHAKE_RECORD or size > _MAX_RECORD_BYTES:
      raise Refused('it does not use TLS')
    yield from self.wait_for_bytes(_RECORD_HEADER.size + size)

  def certificate_digest(self) -> bytes:
    """Returns the SHA-256 of the peer's certificate in its DER form."""
    found = None
    if isinstance(self.sock, ssl.SSLSocket):
      found = self.sock.getpeercert(binary_form=True)
    if not found:
      raise Closed('it has no certificate')
    return hashlib.sha256(found).digest()

  def receiver(self) -> Callable[[Sequence[memoryview]], int]:
    """Returns the function that receives into buffers, without blocking."""
    if not self.is_encrypted:
      return lambda buffers: self.sock.recvmsg_into(buffers)[0]

    def receive(buffers: Sequence[memoryview]) -> int:
      with _as_blocking():
        return self.sock.recv_into(buffers[0])

    return receive

  def sender(self) -> Callable[[Sequence[Any]], int]:
    """Returns the function that sends from buffers, without blocking."""
    if not self.is_encrypted:
      return self.sock.sendmsg

    def send(buffers: Sequence[Any]) -> int:
      with _as_blocking():
        return self.sock.send(buffers[0])

    return send

  def shut_down(self, how: int = net.SHUT_RDWR) -> None:
    """Ends the connection in one direction or both, from any thread.

    Args:
      how: SHUT_WR or SHUT_RDWR of `socket`.
    """
    # Once it is closed, another socket may have its number.
    with self._ending, contextlib.suppress(OSError):
      # That of SSLSocket would drop the state of TLS, which readers use.
      net.Socket.shutdown(self.sock, how)

  def close(self) -> None:
    """Closes the connection; the system still delivers bytes that were sent."""
    with self._ending:
      self.sock.close()


class Channel(Protocol):
  """A connection for threads: one that receives while another one sends.

  Waits end with OSError, or with 0 bytes received, once the connection is shut
  down by another thread.  A deadline is monotonic seconds, None for none; after
  it a wait ends with TimeoutError.
  """

  def receive(
    self, buffers: Sequence[memoryview], deadline: float | None = None
  ) -> int:
    """Waits for bytes; returns how many it has received, 0 at the end."""

  def send(self, buffers: Sequence[Any], deadline: float | None = None) -> None:
    """Sends all bytes of some buffers."""


class PlainChannel:
  """A `Channel` without TLS: every call is one of the system's."""

  def __init__(self, connection: Connection):
    """Creates the channel of a connection, whose socket will block."""
    self._sock = connection.sock
    self._sock.setblocking(True)

  def receive(
    self, buffers: Sequence[memoryview], deadline: float | None = None
  ) -> int:
    """Waits for bytes: see `Channel`."""
    if deadline is not None:
      _wait(self._sock, IN, deadline)
    if len(buffers) == 1:
      return self._sock.recv_into(buffers[0])
    return self._sock.recvmsg_into(buffers)[0]

  def send(self, buffers: Sequence[Any], deadline: float | None = None) -> None:
    """Sends all bytes: see `Channel`."""
    if len(buffers) == 1 and deadline is None:
      self._sock.sendall(buffers[0])
      return
    flags = 0 if deadline is None else net.MSG_DONTWAIT
    unsent = list(buffers)
    while unsent:
      if deadline is not None:
        _wait(self._sock, OUT, deadline)
      drop_sent(unsent, self._sock.sendmsg(unsent, (), flags))


class TlsChannel:
  """A `Channel` with TLS, whose state one thread at a time may use.

  A thread that waits for the socket does not hold the lock.
  """

  def __init__(self, connection: Connection):
    """Creates the channel of a connection."""
    self._sock = connection.sock
    self._lock = threads.Lock()

  def receive(
    self, buffers: Sequence[memoryview], deadline: float | None = None
  ) -> int:
    """Waits for bytes: see `Channel`."""
    limit = math.inf if deadline is None else deadline
    try:
      return self._retry(lambda: self._sock.recv_into(buffers[0]), limit)
    except ssl.SSLZeroReturnError:
      return 0

  def send(self, buffers: Sequence[Any], deadline: float | None = None) -> None:
    """Sends all bytes: see `Channel`."""
    limit = math.inf if deadline is None else deadline
    for buffer in buffers:
      unsent = memoryview(buffer).cast('B')
      while unsent:
        # OpenSSL expects the same bytes again after it had to wait.
        part = unsent[:_PART_BYTES]
        send = functools.partial(self._sock.send, part)
        unsent = unsent[self._retry(send, limit) :]

  def _retry(self, function: Callable[[], int], deadline: float) -> int:
    while True:
      # A peer that sends without a pause never lets it wait.
      if clock.monotonic() >= deadline:
        raise TimeoutError('no answer in time')
      try:
        with self._lock:
          return function()
      except ssl.SSLWantReadError:
        events = IN
      except ssl.SSLWantWriteError:
        events = OUT
      _wait(self._sock, events, deadline)


def open_channel(connection: Connection) -> Channel:
  """Returns a blocking channel over a connection."""
  if connection.is_encrypted:
    return TlsChannel(connection)
  return PlainChannel(connection)


def drop_sent(unsent: list[Any], count: int) -> None:
  """Removes bytes that were sent from the front of some buffers.

  Args:
    unsent: The buffers; changes in place.
    count: Number of the bytes.
  """
  while unsent and count >= len(unsent[0]):
    count -= len(unsent.pop(0))
  if count:
    unsent[0] = memoryview(unsent[0])[count:]


def run_steps(
  connection: Connection, steps: Steps[_Result], deadline: float
) -> _Result:
  """Runs a coroutine to its end in this thread; returns its result.

  Args:
    connection: The connection that it uses.
    steps: The coroutine.
    deadline: Monotonic time at which the connection gives up.

  Raises:
    TimeoutError: If the deadline has passed.
    Exception: As of the coroutine.
  """
  while True:
    try:
      events = next(steps)
    except StopIteration as end:
      result: _Result = end.value
      return result
    _wait(connection.sock, events, deadline)


def retry(function: Callable[[], _Result]) -> Steps[_Result]:
  """Calls a function until it does not have to wait for the socket."""
  while True:
    # A coroutine that waits within `except` keeps the exception and its frames.
    try:
      return function()
    except ssl.SSLWantWriteError:
      events = OUT
    except (BlockingIOError, ssl.SSLWantReadError):
      events = IN
    yield events


def connected(connection: Connection) -> Steps[None]:
  """Waits until a connection that has begun is open.

  Raises:
    OSError: If it cannot be opened.
  """
  yield OUT
  error = connection.sock.getsockopt(net.SOL_SOCKET, net.SO_ERROR)
  if error:
    raise OSError(error, os.strerror(error))


def receive_exactly(connection: Connection, size: int) -> Steps[bytes]:
  """Receives a number of bytes.

  Raises:
    Closed: If the connection ends before.
    OSError: If the connection is broken.
  """
  received = b''
  while len(received) < size:
    receive = functools.partial(connection.sock.recv, size - len(received))
    part = yield from retry(receive)
    if not part:
      raise Closed('it has disconnected during the handshake')
    received += part
  return received


def send_all(connection: Connection, data: bytes) -> Steps[None]:
  """Sends bytes.

  Raises:
    OSError: If the connection is broken.
  """
  while data:
    try:
      data = data[connection.sock.send(data) :]
      continue
    except (BlockingIOError, ssl.SSLWantWriteError):
      events = OUT
    except ssl.SSLWantReadError:
      events = IN
    yield events


def _wait(sock: net.Socket, events: int, deadline: float) -> None:
  """Waits for events of a socket.

  Raises:
    TimeoutError: If the deadline has passed.
  """
  number = sock.fileno()
  if number < 0:
    raise OSError(errno.EBADF, 'the connection is closed')
  poll = net.poll()
  poll.register(number, events)
  left_s = deadline - clock.monotonic()
  if left_s == math.inf:
    poll.poll()
  elif left_s <= 0 or not poll.poll(1000 * left_s):
    raise TimeoutError('no answer in time')


@contextlib.contextmanager
def _as_blocking() -> Iterator[None]:
  """Translates the errors of TLS for "would block" to BlockingIOError."""
  try:
    yield
  except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
    raise BlockingIOError from error
