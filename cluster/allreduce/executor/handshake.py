"""Connections between executors, and the handshake that authenticates them.

A connection goes one way: the sending worker of a hop connects to the receiving
one.  The handshake is that of `cluster.network.handshake` in messages of fixed
sizes: neither end sends the token, the listener proves first that it knows it,
and a client's proof covers its own `Hello`.  If there is a certificate, TLS
encrypts all of it.
"""

import contextlib
import functools
import hmac
import os
import secrets
import socket
import ssl
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from cluster.allreduce.executor.socket_loop import IN, OUT
from cluster.network.errors import Closed, Refused
from cluster.network.handshake import (
  CLIENT,
  LISTENER,
  NONCE_BYTES,
  Security,
  proof,
)

_Result = TypeVar('_Result')
# A coroutine that yields the socket events that it waits for.
Steps = Generator[int, None, _Result]
_PURPOSE = b'syncopate reduce 1'
_MAGIC = b'syncred1'
_HELLO = struct.Struct('<QII')
_YES, _NO = b'\1', b'\0'
_BACKLOG = 4096
_MAX_IDLE_S = 2**15 - 1  # Largest keep-alive time that the system accepts.
_INFO_BYTES, _BUSY_US = 256, 168  # Of struct tcp_info: tcpi_busy_time, u64.


class Hello(NamedTuple):
  """First frame of a client on a connection.

  Attributes:
    membership_epoch: Number of the membership epoch that it is for.
    sender: Index of the client's worker.
    receiver: Index of the worker that it intends to reach.
  """

  membership_epoch: int
  sender: int
  receiver: int


class TlsContexts(NamedTuple):
  """TLS contexts of both roles; both are None without TLS."""

  listener: ssl.SSLContext | None
  client: ssl.SSLContext | None


def make_tls_contexts(security: Security) -> TlsContexts:
  """Returns the TLS contexts for a certificate and its key.

  Raises:
    ssl.SSLError: If the certificate is invalid, or does not match the key.
  """
  if not security.certificate:
    return TlsContexts(None, None)
  listener = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
  client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  for context in (listener, client):
    context.minimum_version = ssl.TLSVersion.TLSv1_3
  client.load_verify_locations(cadata=security.certificate.decode())
  # The ssl module reads certificate chains from files only.
  with _in_memory(security.certificate) as chain, _in_memory(security.key) as k:
    listener.load_cert_chain(chain, k)
  return TlsContexts(listener, client)


def open_listener(host: str) -> socket.socket:
  """Returns a socket that listens on a free port of one address.

  Raises:
    OSError: If the address cannot be bound.
  """
  sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
  try:
    sock.bind((host, 0))
    sock.listen(_BACKLOG)
    sock.setblocking(False)
  except OSError:
    sock.close()
    raise
  return sock


class Connection:
  """A TCP connection between two executors, with TLS or without.

  Attributes:
    peer: 'address:port' of the other end.
    sock: Its socket.
  """

  def __init__(self, sock: socket.socket, peer: str, timeout_s: float):
    """Sets the options of a socket.

    Args:
      sock: Socket that is connected, or about to be.
      peer: 'address:port' of the other end.
      timeout_s: Seconds after which a peer that does not answer is lost.
    """
    self.sock = sock
    self.peer = peer
    sock.setblocking(False)
    idle_s = max(int(min(timeout_s / 2, _MAX_IDLE_S)), 1)
    # 0 would disable the timeout.
    lost_ms = max(round(1000 * min(timeout_s, 4 * _MAX_IDLE_S)), 1)
    for option, value in (
      (socket.TCP_NODELAY, 1),
      (socket.TCP_USER_TIMEOUT, lost_ms),
      (socket.TCP_KEEPIDLE, idle_s),
      (socket.TCP_KEEPINTVL, max(idle_s // 4, 1)),
    ):
      sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

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
    with contextlib.suppress(OSError):
      info = self.sock.getsockopt(
        socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES
      )
      if len(info) >= _BUSY_US + 8:
        (busy_us,) = struct.unpack_from('=Q', info, _BUSY_US)
        return float(busy_us / 1e6)
    return 0.0

  def encrypt(self, context: ssl.SSLContext, **options: Any) -> Steps[None]:
    """Starts TLS on the connection; options as of `wrap_socket`."""
    sock = context.wrap_socket(
      self.sock, do_handshake_on_connect=False, **options
    )
    self.sock = sock
    yield from _retry(sock.do_handshake)

  def receiver(self) -> Callable[[Sequence[memoryview]], int]:
    """Returns the function with which a `frames.Reader` receives."""
    if not self.is_encrypted:
      return lambda buffers: self.sock.recvmsg_into(buffers)[0]

    def receive(buffers: Sequence[memoryview]) -> int:
      with _as_blocking():
        return self.sock.recv_into(buffers[0])

    return receive

  def sender(self) -> Callable[[Sequence[Any]], int]:
    """Returns the function with which a `frames.Writer` sends."""
    if not self.is_encrypted:
      return self.sock.sendmsg

    def send(buffers: Sequence[Any]) -> int:
      with _as_blocking():
        return self.sock.send(buffers[0])

    return send

  def close(self) -> None:
    """Closes the connection; the system still delivers bytes that were sent."""
    self.sock.close()


def answer(
  connection: Connection,
  security: Security,
  context: ssl.SSLContext | None,
  address: str,
) -> Steps[Hello]:
  """Authenticates a client, as the listener; returns its `Hello`.

  The client then waits for `admit` or `refuse`.

  Args:
    connection: New connection.
    security: Credentials of the listener.
    context: TLS context; None without TLS.
    address: 'address:port' of the listener.

  Raises:
    TransportError: If the client does not know the token, or disconnects.
    OSError: If the connection is broken.
  """
  if context:
    yield from connection.encrypt(context, server_side=True)
  request = yield from _receive(connection, len(_MAGIC) + NONCE_BYTES)
  if not request.startswith(_MAGIC):
    raise Refused('it sends no handshake')
  nonce = secrets.token_bytes(NONCE_BYTES)
  nonces = request[len(_MAGIC) :].hex(), nonce.hex()
  code = _proof(security, LISTENER, *nonces, address)
  yield from _send(connection, nonce + code)
  response = yield from _receive(connection, len(code) + _HELLO.size)
  hello = response[len(code) :]
  expected = _proof(security, CLIENT, *nonces, f'{address} {hello.hex()}')
  if not hmac.compare_digest(response[: len(code)], expected):
    raise Refused('its token is not ours')
  return Hello(*_HELLO.unpack(hello))


def initiate(
  connection: Connection,
  security: Security,
  context: ssl.SSLContext | None,
  host: str,
  hello: Hello,
  on_authenticated: Callable[[], None],
) -> Steps[None]:
  """Authenticates a listener, as the client; waits until it admits us.

  Args:
    connection: Connection to the listener, its `peer`.
    security: Credentials of the client.
    context: TLS context; None without TLS.
    host: Name in the certificate, unless the security has another one.
    hello: Sent to the listener once it has proved that it knows the token.
    on_authenticated: Called once each end has proved that it knows the token:
      from then on the listener decides when it admits the client.

  Raises:
    TransportError: If the listener does not know the token, refuses the client
      or disconnects.
    OSError: If there is no connection.
  """
  yield OUT
  error = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
  if error:
    raise OSError(error, os.strerror(error))
  if context:
    name = security.tls_name or host
    yield from connection.encrypt(context, server_hostname=name)
  nonce = secrets.token_bytes(NONCE_BYTES)
  yield from _send(connection, _MAGIC + nonce)
  size = len(_proof(security, LISTENER, nonce.hex(), nonce.hex(), ''))
  response = yield from _receive(connection, NONCE_BYTES + size)
  nonces = nonce.hex(), response[:NONCE_BYTES].hex()
  expected = _proof(security, LISTENER, *nonces, connection.peer)
  if not hmac.compare_digest(response[NONCE_BYTES:], expected):
    raise Refused('the token is not that of the listener')
  text = _HELLO.pack(*hello)
  code = _proof(security, CLIENT, *nonces, f'{connection.peer} {text.hex()}')
  yield from _send(connection, code + text)
  on_authenticated()
  response = yield from _receive(connection, len(_YES))
  if response != _YES:
    raise Refused('it does not expect us')


def admit(connection: Connection) -> None:
  """Completes the handshake with a client.

  Raises:
    OSError: If the client has disconnected.
  """
  connection.sock.send(_YES)


def refuse(connection: Connection) -> None:
  """Notifies a client, if it is still connected, that it is refused."""
  with contextlib.suppress(OSError):
    connection.sock.send(_NO)


def _proof(security: Security, *parts: Any) -> bytes:
  return bytes.fromhex(proof(security.token, *parts, purpose=_PURPOSE))


def _retry(function: Callable[[], _Result]) -> Steps[_Result]:
  """Calls a function until it does not have to wait for the socket."""
  while True:
    try:
      return function()
    except ssl.SSLWantWriteError:
      yield OUT
    except (BlockingIOError, ssl.SSLWantReadError):
      yield IN


def _receive(connection: Connection, size: int) -> Steps[bytes]:
  received = b''
  while len(received) < size:
    receive = functools.partial(connection.sock.recv, size - len(received))
    part = yield from _retry(receive)
    if not part:
      raise Closed('it has disconnected during the handshake')
    received += part
  return received


def _send(connection: Connection, text: bytes) -> Steps[None]:
  # A new connection always has room for so few bytes.
  sent = yield from _retry(lambda: connection.sock.send(text))
  if sent != len(text):
    raise Closed('it does not receive')


@contextlib.contextmanager
def _as_blocking() -> Iterator[None]:
  """Translates the errors of TLS for "would block" to BlockingIOError."""
  try:
    yield
  except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
    raise BlockingIOError from error


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
  """Yields the path of a file that no other process can open."""
  number = os.memfd_create('pem', os.MFD_CLOEXEC)
  try:
    os.write(number, content)
    yield f'/proc/self/fd/{number}'
  finally:
    os.close(number)
