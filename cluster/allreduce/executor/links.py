"""Connections between executors, and how both ends find out who the other is.

A connection goes one way: who has sent on a hop connects to who receives.  The
greeting is that of `cluster.network.handshake` in messages of fixed sizes:
neither end sends the token, the listener shows first that it knows it, and a
client's proof covers what it says of itself.  Under TLS, if the security has a
certificate, all of it is encrypted.
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
from typing import Any, NamedTuple

from cluster.allreduce.executor.loop import IN, OUT
from cluster.network.errors import Closed, Refused
from cluster.network.handshake import (
  CLIENT,
  LISTENER,
  NONCE_BYTES,
  Security,
  proof,
)

Steps = Generator[int, None, Any]  # Yields the events that it waits for.
_PURPOSE = b'syncopate reduce 1'
_MAGIC = b'syncred1'
_HELLO = struct.Struct('<QII')
_YES, _NO = b'\1', b'\0'
_BACKLOG = 4096
_LONGEST_S = 2**15 - 1  # Without a word, that the system takes.
_INFO_BYTES, _BUSY_US = 256, 168  # Of struct tcp_info: tcpi_busy_time, u64.


class Hello(NamedTuple):
  """The first frame of a client on a connection.

  Attributes:
    generation: That it is for.
    sender: Index of the client's worker.
    receiver: Index of the worker that it means to reach.
  """

  generation: int
  sender: int
  receiver: int


class Contexts(NamedTuple):
  """TLS contexts of both roles; both are None without TLS."""

  listener: ssl.SSLContext | None
  client: ssl.SSLContext | None


def contexts(security: Security) -> Contexts:
  """Returns what encrypts, as the security says.

  Raises:
    ssl.SSLError: If it is no certificate and its key.
  """
  if not security.certificate:
    return Contexts(None, None)
  listener = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
  client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  for context in (listener, client):
    context.minimum_version = ssl.TLSVersion.TLSv1_3
  client.load_verify_locations(cadata=security.certificate.decode())
  # It is read from files only: these are in memory.
  with _in_memory(security.certificate) as chain, _in_memory(security.key) as k:
    listener.load_cert_chain(chain, k)
  return Contexts(listener, client)


def listening(host: str) -> socket.socket:
  """Returns a socket that listens on a free port of one address.

  Raises:
    OSError: If it cannot.
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


class Link:
  """A connection and its socket, with TLS or without.

  Attributes:
    peer: 'address:port' of the other end.
    sock: The socket.
  """

  def __init__(self, sock: socket.socket, peer: str, timeout_s: float):
    """Takes a socket.

    Args:
      sock: Connected, or about to be.
      peer: 'address:port' of the other end.
      timeout_s: Seconds after which a peer that does not answer is gone.
    """
    self.sock = sock
    self.peer = peer
    sock.setblocking(False)
    idle_s = max(int(min(timeout_s / 2, _LONGEST_S)), 1)
    lost_ms = max(round(1000 * min(timeout_s, 4 * _LONGEST_S)), 1)  # 0: never.
    for option, value in (
      (socket.TCP_NODELAY, 1),
      (socket.TCP_USER_TIMEOUT, lost_ms),
      (socket.TCP_KEEPIDLE, idle_s),
      (socket.TCP_KEEPINTVL, max(idle_s // 4, 1)),
    ):
      sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

  @property
  def secured(self) -> bool:
    """True if the connection uses TLS."""
    return isinstance(self.sock, ssl.SSLSocket)

  @property
  def buffered(self) -> bool:
    """True if TLS holds decrypted bytes, for which no socket event comes."""
    return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0

  @property
  def busy_s(self) -> float:
    """Seconds in which it had something to send that was not confirmed."""
    with contextlib.suppress(OSError):
      info = self.sock.getsockopt(
        socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES
      )
      if len(info) >= _BUSY_US + 8:
        return struct.unpack_from('=Q', info, _BUSY_US)[0] / 1e6
    return 0.0

  def secure(self, context: ssl.SSLContext, **names: Any) -> Steps:
    """Puts TLS on it."""
    self.sock = context.wrap_socket(
      self.sock, do_handshake_on_connect=False, **names
    )
    yield from _patiently(self.sock.do_handshake)

  def receiver(self) -> Callable[[Sequence[memoryview]], int]:
    """Returns what `frames.Reader` receives with."""
    if not self.secured:
      return lambda buffers: self.sock.recvmsg_into(buffers)[0]

    def receive(buffers: Sequence[memoryview]) -> int:
      with _as_blocking():
        return self.sock.recv_into(buffers[0])

    return receive

  def sender(self) -> Callable[[Sequence[Any]], int]:
    """Returns what `frames.Writer` sends with."""
    if not self.secured:
      return self.sock.sendmsg

    def send(buffers: Sequence[Any]) -> int:
      with _as_blocking():
        return self.sock.send(buffers[0])

    return send

  def close(self) -> None:
    """Closes it; what has been sent still goes."""
    self.sock.close()


def answer(
  link: Link, security: Security, context: ssl.SSLContext | None, address: str
) -> Steps:
  """Finds out, as the listener, who has connected; returns its `Hello`.

  The client then waits for `admit` or `refuse`.

  Args:
    link: New.
    security: The listener's.
    context: Of TLS, if there is any.
    address: 'address:port' that is listened on.

  Raises:
    TransportError: If it is a stranger, or goes.
    OSError: If the connection is broken.
  """
  if context:
    yield from link.secure(context, server_side=True)
  said = yield from _received(link, len(_MAGIC) + NONCE_BYTES)
  if not said.startswith(_MAGIC):
    raise Refused('it does not greet')
  ours = secrets.token_bytes(NONCE_BYTES)
  numbers = said[len(_MAGIC) :].hex(), ours.hex()
  code = _proof(security, LISTENER, *numbers, address)
  yield from _send(link, ours + code)
  said = yield from _received(link, len(code) + _HELLO.size)
  hello = said[len(code) :]
  expected = _proof(security, CLIENT, *numbers, f'{address} {hello.hex()}')
  if not hmac.compare_digest(said[: len(code)], expected):
    raise Refused('its token is not ours')
  return Hello(*_HELLO.unpack(hello))


def ask(
  link: Link,
  security: Security,
  context: ssl.SSLContext | None,
  host: str,
  hello: Hello,
  shown: Callable[[], None],
) -> Steps:
  """Shows a listener, as the client, who has connected; waits to be let in.

  Args:
    link: That connects to its `peer`.
    security: The client's.
    context: Of TLS, if there is any.
    host: What a certificate names, unless the security says something else.
    hello: To say to who knows the token.
    shown: Called once each end has shown that it does: from there on it is for
      the listener to say when.

  Raises:
    TransportError: If the listener is a stranger, refuses or goes.
    OSError: If there is no connection.
  """
  yield OUT
  error = link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
  if error:
    raise OSError(error, os.strerror(error))
  if context:
    name = security.tls_name or host
    yield from link.secure(context, server_hostname=name)
  ours = secrets.token_bytes(NONCE_BYTES)
  yield from _send(link, _MAGIC + ours)
  size = len(_proof(security, LISTENER, ours.hex(), ours.hex(), ''))
  said = yield from _received(link, NONCE_BYTES + size)
  numbers = ours.hex(), said[:NONCE_BYTES].hex()
  expected = _proof(security, LISTENER, *numbers, link.peer)
  if not hmac.compare_digest(said[NONCE_BYTES:], expected):
    raise Refused('the token is not that of the listener')
  text = _HELLO.pack(*hello)
  code = _proof(security, CLIENT, *numbers, f'{link.peer} {text.hex()}')
  yield from _send(link, code + text)
  shown()
  said = yield from _received(link, len(_YES))
  if said != _YES:
    raise Refused('it does not expect us')


def admit(link: Link) -> None:
  """Completes the handshake with a client.

  Raises:
    OSError: If it is gone.
  """
  link.sock.send(_YES)


def refuse(link: Link) -> None:
  """Tells a client, if it still listens, that it is not let in."""
  with contextlib.suppress(OSError):
    link.sock.send(_NO)


def _proof(security: Security, *parts: Any) -> bytes:
  return bytes.fromhex(proof(security.token, *parts, purpose=_PURPOSE))


def _patiently(function: Callable[[], Any]) -> Steps:
  """Calls a function until it does not have to wait for the socket."""
  while True:
    try:
      return function()
    except ssl.SSLWantWriteError:
      yield OUT
    except (BlockingIOError, ssl.SSLWantReadError):
      yield IN


def _received(link: Link, size: int) -> Steps:
  said = b''
  while len(said) < size:
    receive = functools.partial(link.sock.recv, size - len(said))
    part = yield from _patiently(receive)
    if not part:
      raise Closed('it has gone before it was let in')
    said += part
  return said


def _send(link: Link, text: bytes) -> Steps:
  # So little always finds room on a new connection.
  sent = yield from _patiently(lambda: link.sock.send(text))
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
  """Gives the path of a file that no other process can open."""
  number = os.memfd_create('pem', os.MFD_CLOEXEC)
  try:
    os.write(number, content)
    yield f'/proc/self/fd/{number}'
  finally:
    os.close(number)
