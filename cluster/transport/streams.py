"""Long-lived streams of messages between processes, over Arrow Flight.

One stream is one DoExchange call on a connection of its own.  A message is a
header, plain JSON, and a body in chunks of bytes, each with a checksum; chunks
travel as soon as they are sent and are handed over as soon as they arrive.
"""

import atexit
import contextlib
import fcntl
import functools
import hmac
import ipaddress
import os
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow.flight as flight
from absl import logging

from cluster.transport.messages import (
  ERRORS,
  GRACE_S,
  SCHEMA,
  Closed,
  Corrupt,
  Incoming,
  Refused,
  Stream,
  TransportError,
  chunked,
  ended,
)
from configs.checks import require

__all__ = [
  'Closed',
  'Corrupt',
  'Incoming',
  'Listener',
  'Refused',
  'Security',
  'Stream',
  'TransportError',
  'chunked',
  'connect',
  'interface_address',
]

_RETRY_S = 0.05
_SIOCGIFADDR = 0x8915


class Security(NamedTuple):
  """What both ends need to trust each other.

  Attributes:
    token: Bearer token, the same at both ends; '' for none.
    certificate: PEM, the listener's, which must name the address that clients
      connect to; b'' for no encryption.
    key: PEM, of the certificate; listeners only.
  """

  token: str = ''
  certificate: bytes = b''
  key: bytes = b''


class Listener:
  """Accepts streams on one address; a context manager.

  Attributes:
    address: 'host:port' that is listened on.
  """

  def __init__(
    self,
    host: str,
    port: int,
    handle: Callable[[Stream, Any], None],
    security: Security,
  ):
    """Listens from here on.

    Args:
      host: IPv4 address to listen on, and no other.
      port: 0 for any that is free.
      handle: Called with each stream and the hello of its peer, in a thread of
        its own.  The stream ends when it returns; what it raises is logged,
        and raised at the peer as Closed.
      security: Both `certificate` and `key`, or neither.

    Raises:
      TransportError: If the address cannot be listened on.
      ValueError: If `host` is not an address of one interface, or one of
        `certificate` and `key` is missing.
    """
    expected = 'the IPv4 address of an interface'
    require(_is_specific(host), 'host', expected, host)
    valid = bool(security.certificate) == bool(security.key)
    require(valid, 'security', 'both certificate and key', 'one of them')
    try:
      self._server = _Server(host, port, handle, security)
    except ERRORS as error:
      raise TransportError(f'{host}:{port}: {error}') from error
    self.address = f'{host}:{self._server.port}'
    self._closing = threading.Lock()
    self._thread: threading.Thread | None = None
    atexit.register(self.close, 0.0)

  def __enter__(self) -> 'Listener':
    return self

  def __exit__(self, *exception: Any) -> None:
    self.close(GRACE_S)

  def close(self, grace_s: float) -> None:
    """Accepts no more streams and ends all that there are.

    Args:
      grace_s: Seconds that they are given to end by themselves.  Up to 2 s
        more are given to threads of `handle` that do not wait for a stream.
    """
    with self._closing:
      if self._thread is not None:
        return
      atexit.unregister(self.close)
      # Returns when every call has ended.
      self._thread = threading.Thread(target=self._server.shutdown, daemon=True)
      self._thread.start()
      self._thread.join(grace_s)
      deadline = time.monotonic() + GRACE_S
      while self._thread.is_alive() and time.monotonic() < deadline:
        for stream in self._server.open_streams():
          stream.cancel('the listener has closed')
        self._thread.join(0.1)
      if self._thread.is_alive():
        logging.warning(
          '%s: %d streams are still handled after %g s',
          self.address,
          len(self._server.open_streams()),
          grace_s + GRACE_S,
        )


class _Server(flight.FlightServerBase):
  def __init__(
    self, host: str, port: int, handle: Callable, security: Security
  ):
    pair = (security.certificate, security.key)
    super().__init__(
      f'grpc+tls://{host}:{port}' if pair[0] else f'grpc://{host}:{port}',
      tls_certificates=[pair] if pair[0] else None,
      middleware={'token': _Tokens(security.token)},
    )
    self._handle = handle
    self._streams: set[Stream] = set()
    self._changing = threading.Lock()

  def open_streams(self) -> list[Stream]:
    with self._changing:
      return list(self._streams)

  def do_exchange(
    self, context: Any, descriptor: Any, reader: Any, writer: Any
  ) -> None:
    peer = urllib.parse.unquote(context.peer()).partition(':')[2]
    if not context.get_middleware('token').valid:
      logging.warning('%s: refused, as its token is not ours', peer)
      raise flight.FlightUnauthenticatedError('The token is another one.')
    cut = functools.partial(_shut_down, self.port, peer)
    stream = Stream(reader, writer, peer, cut, lambda: None)
    with self._changing:
      self._streams.add(stream)
    try:
      writer.begin(SCHEMA)
      stream.close(self._handled(stream))
    finally:
      with self._changing:
        self._streams.remove(stream)

  def _handled(self, stream: Stream) -> str:
    """Returns why the handler of a stream has ended."""
    try:
      hello = stream.receive().header
      stream.send(None)
      self._handle(stream, hello)
    except Closed as error:
      logging.info('%s', error)
      return str(error)
    # Nobody above would see it: it is told to both sides here.
    except Exception as error:
      logging.exception('%s: the handler of the stream failed', stream.peer)
      return f'{type(error).__name__}: {error}'
    return ''


class _Tokens(flight.ServerMiddlewareFactory):
  def __init__(self, token: str):
    self._expected = f'Bearer {token}'.encode() if token else b''

  def start_call(
    self, info: Any, headers: Mapping[str, list[str]]
  ) -> '_Checked':
    got = ''.join(headers.get('authorization', [])).encode()
    return _Checked(hmac.compare_digest(got, self._expected))


class _Checked(flight.ServerMiddleware):
  def __init__(self, valid: bool):
    self.valid = valid


def connect(
  address: str, hello: Any, security: Security, timeout_s: float
) -> Stream:
  """Returns a stream, once the listener is there.

  Args:
    address: 'host:port' of the listener.
    hello: Plain JSON that its handler is called with.
    security: `key` is not used.
    timeout_s: Seconds to wait for the listener and for its answer.

  Raises:
    Refused: If the token is not that of the listener.
    Closed: If there is no answer in time; says what went wrong last.
  """
  deadline = time.monotonic() + timeout_s
  while True:
    try:
      return _opened(address, hello, security, deadline)
    except Closed as error:
      if time.monotonic() + _RETRY_S >= deadline:
        raise Closed(f'No stream within {timeout_s:g} s; {error}') from error
    time.sleep(_RETRY_S)


def _opened(
  address: str, hello: Any, security: Security, deadline: float
) -> Stream:
  left_s = max(0.0, deadline - time.monotonic())
  client = flight.FlightClient(
    f'grpc+tls://{address}' if security.certificate else f'grpc://{address}',
    tls_root_certs=security.certificate or None,
    generic_options=[
      # A connection for each stream, of which the listener may cut one.
      ('grpc.use_local_subchannel_pool', 1),
      ('grpc.enable_http_proxy', 0),
      # For connecting, too, which is otherwise given 20 s.
      ('grpc.min_reconnect_backoff_ms', int(1e3 * left_s)),
    ],
  )
  token = f'Bearer {security.token}'.encode()
  headers = [(b'authorization', token)] if security.token else []
  try:
    writer, reader = client.do_exchange(
      flight.FlightDescriptor.for_command(b''),
      flight.FlightCallOptions(headers=headers),
    )
    writer.begin(SCHEMA)
  except ERRORS as error:
    client.close()
    raise ended(address, error) from error
  finish = functools.partial(_finish, reader, writer, client)
  stream = Stream(reader, writer, address, reader.cancel, finish)
  timer = threading.Timer(left_s, stream.cancel, ['no answer'])
  timer.start()
  try:
    with contextlib.suppress(Closed):  # `receive` knows why.
      stream.send(hello)
    stream.receive()
  except TransportError:
    stream.close()
    raise
  finally:
    timer.cancel()
  return stream


def _is_specific(host: str) -> bool:
  try:
    return not ipaddress.IPv4Address(host).is_unspecified
  except ValueError:
    return False


def _finish(reader: Any, writer: Any, client: Any) -> None:
  with contextlib.suppress(*ERRORS):
    writer.done_writing()
  with contextlib.suppress(StopIteration, *ERRORS):
    while True:
      reader.read_chunk()
  with contextlib.suppress(*ERRORS):
    writer.close()
  client.close()


def _shut_down(port: int, peer: str) -> None:
  """Shuts down the connection of a port of this process to a peer.

  Flight has no way to end a call at the side of the server.
  """
  for name in os.listdir('/proc/self/fd'):
    with contextlib.suppress(OSError), _duplicate(int(name)) as end:
      if end.family not in (socket.AF_INET, socket.AF_INET6):
        continue
      here, there = end.getsockname(), end.getpeername()
      # gRPC has sockets of IPv6, in which these are mapped.
      address = f'{there[0].removeprefix("::ffff:")}:{there[1]}'
      if here[1] == port and address == peer:
        end.shutdown(socket.SHUT_RDWR)


def _duplicate(number: int) -> socket.socket:
  """Returns another handle of a socket, so that no other file can take over.

  Raises:
    OSError: If there is no such file, or it is not a socket.
  """
  duplicate = os.dup(number)
  try:
    return socket.socket(fileno=duplicate)
  except OSError:
    os.close(duplicate)
    raise


def interface_address(name: str) -> str:
  """Returns the IPv4 address of a network interface of this host (Linux).

  Raises:
    ValueError: If there is no such interface or it has no such address; names
      those that there are.
  """
  found = {}
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    for _, interface in socket.if_nameindex():
      request = struct.pack('256s', interface.encode())
      with contextlib.suppress(OSError):  # It has no IPv4 address.
        reply = fcntl.ioctl(probe, _SIOCGIFADDR, request)
        found[interface] = socket.inet_ntoa(reply[20:24])
  require(name in found, 'interface', f'one of {sorted(found)}', name)
  return found[name]
