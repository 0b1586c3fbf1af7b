"""Long-lived streams of messages between processes, over Arrow Flight.

One stream is one DoExchange call on a connection of its own.  `Listener`
accepts streams and `connect` opens them; both complete the handshake.  The
stream itself is in `calls`, and the messages on it are in `messages`.
"""

import atexit
import contextlib
import functools
import logging as log
import os
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow.flight as flight
from absl import logging

from cluster.network import sockets
from cluster.network.admission import WAIT_S, PendingConnections
from cluster.network.calls import ERRORS, GRACE_S, Incoming, Stream, chunked
from cluster.network.errors import (
  Closed,
  Corrupt,
  Refused,
  TransportError,
  ended,
)
from cluster.network.frames import SCHEMA
from cluster.network.handshake import Security, receive_hello, send_hello
from cluster.network.interfaces import interface_address
from cluster.network.rate_limited_log import RateLimitedLog
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

# gRPC would log bytes of unknown peers as they are, control characters too.
# Refusals are logged here.
os.environ.setdefault('GRPC_VERBOSITY', 'NONE')
_RETRY_S = 0.05
_calling = threading.Lock()  # So that new sockets are those of one call.


class Listener:
  """Accepts streams on one address; a context manager.

  Attributes:
    address: 'host:port' of the listener.
  """

  def __init__(
    self,
    host: str,
    port: int,
    handle: Callable[[Stream, msgspec.Raw], None],
    security: Security,
    *,
    wait_s: float = WAIT_S,
  ):
    """Starts to listen.

    Args:
      host: IPv4 address to listen on, and no other.
      port: Port to listen on; 0 for any that is free.
      handle: Called with each stream and the encoded hello of its peer, in a
        thread of its own.  The stream ends when it returns; its exceptions are
        logged, and raised at the peer as Closed.
      security: Credentials with both `certificate` and `key`, or neither.
      wait_s: Limit of the handshake, seconds.

    Raises:
      TransportError: If the address cannot be listened on; raised from the
        error of the system, if that says why.
      ValueError: If `host` is not an address of one interface, or one of
        `certificate` and `key` is missing.
    """
    expected = 'the IPv4 address of an interface'
    require(sockets.is_specific(host), 'host', expected, host)
    valid = bool(security.certificate) == bool(security.key)
    require(valid, 'security', 'both certificate and key', 'one of them')
    try:
      # gRPC would not say why.
      if port and (refusal := sockets.refusal(host, port)):
        raise refusal
      self._server = _Server(host, port, handle, security, wait_s)
    except ERRORS as error:
      why = sockets.refusal(host, port) or error
      raise TransportError(f'{host}:{port}: {why}') from why
    self.address = f'{host}:{self._server.port}'
    self._closing = threading.Lock()
    self._thread: threading.Thread | None = None
    atexit.register(self.close, 0.0)

  def __enter__(self) -> 'Listener':
    return self

  def __exit__(self, *exception: Any) -> None:
    self.close(GRACE_S)

  def close(self, grace_s: float) -> None:
    """Stops to accept streams, and ends all that are open.

    Args:
      grace_s: Seconds that they are given to end by themselves.  Threads of
        `handle` that do not wait for a stream are given up to 2 s more.
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


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # No stubs.
  def __init__(
    self,
    host: str,
    port: int,
    handle: Callable[[Stream, msgspec.Raw], None],
    security: Security,
    wait_s: float,
  ):
    pair = (security.certificate, security.key)
    super().__init__(
      f'grpc+tls://{host}:{port}' if pair[0] else f'grpc://{host}:{port}',
      tls_certificates=[pair] if pair[0] else None,
    )
    self._address = f'{host}:{self.port}'
    self._handle = handle
    self._security = security
    self._refusals, self._failures = RateLimitedLog(), RateLimitedLog()
    self._ends = RateLimitedLog()
    self._pending = PendingConnections(self.port, self._refusals, wait_s)
    self._streams: set[Stream] = set()
    self._changing = threading.Lock()

  def open_streams(self) -> list[Stream]:
    with self._changing:
      return list(self._streams)

  def shutdown(self) -> None:
    super().shutdown()
    self._pending.close()
    self._refusals.close()
    self._failures.close()

  def do_exchange(
    self, context: Any, descriptor: Any, reader: Any, writer: Any
  ) -> None:
    peer = urllib.parse.unquote(context.peer()).partition(':')[2]
    cut = functools.partial(sockets.shut_down, self.port, peer)
    stream = Stream(reader, writer, peer, cut, lambda: None)
    with self._changing:
      self._streams.add(stream)
    try:
      writer.begin(SCHEMA)
      stream.close(self._serve(stream))
    except ERRORS as error:
      self._refusals.write(f'{peer}: {error}')
      raise
    finally:
      with self._changing:
        self._streams.remove(stream)

  def _serve(self, stream: Stream) -> str:
    """Calls the handler of a stream; returns the reason of its end."""
    try:
      with self._pending.count_handshake() as is_allowed:
        if not is_allowed:
          raise Closed('too many handshakes are pending')
        hello = receive_hello(stream, self._security, self._address)
    except TransportError as error:
      return _log_refusal(self._refusals, stream, error)
    try:
      with self._pending.admit(stream.peer):
        stream.send(None)
        self._handle(stream, hello)
    except Closed as error:
      self._ends.write(str(error), level=log.INFO)
      return str(error)
    except TransportError as error:
      return _log_refusal(self._failures, stream, error)
    # Flight would swallow it: it is logged here, and sent to the client.
    except Exception as error:
      text = f'{stream.peer}: the handler of the stream failed'
      self._failures.write(text, level=log.ERROR, error=error)
      return f'{type(error).__name__}: {error}'
    return ''


def connect(
  address: str, hello: object, security: Security, timeout_s: float
) -> Stream:
  """Returns a stream to a listener, waiting for the listener if need be.

  Args:
    address: 'host:port' of the listener.
    hello: Message that its handler is called with.
    security: Credentials of this process, of which `key` is not used.
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
  address: str, hello: object, security: Security, deadline: float
) -> Stream:
  left_s = max(0.0, deadline - time.monotonic())
  host = address.rpartition(':')[0]
  if not (sockets.is_specific(host) or security.tls_name):
    security = security._replace(tls_name=host)
  try:
    # As a number, by which the listener knows itself.
    there = sockets.resolved(address)
  except OSError as error:
    raise ended(address, error) from error
  stream = call(there, security, left_s)
  timer = threading.Timer(left_s, stream.cancel, ['no answer'])
  timer.start()
  try:
    send_hello(stream, security, there, hello)
    sockets.keep_alive(there)
  except TransportError:
    stream.close()
    raise
  finally:
    timer.cancel()
  return stream


def call(address: str, security: Security, wait_s: float) -> Stream:
  """Returns a stream whose handshake has not begun.

  Args:
    address: IPv4 'address:port' of the listener.
    security: Credentials of the encryption; the token is not used.
    wait_s: Limit of the connection, seconds.

  Raises:
    Closed: If there is no connection.
  """
  client = flight.FlightClient(
    f'grpc+tls://{address}' if security.certificate else f'grpc://{address}',
    tls_root_certs=security.certificate or None,
    override_hostname=security.tls_name or None,
    generic_options=[
      # A connection for each stream, of which the listener may cut one.
      ('grpc.use_local_subchannel_pool', 1),
      ('grpc.enable_http_proxy', 0),
      # Also the limit of a connection, which is 20 s otherwise.
      ('grpc.min_reconnect_backoff_ms', int(1e3 * wait_s)),
    ],
  )
  if not _calling.acquire(timeout=wait_s):
    raise Closed(f'{address}: other connections are being opened')
  try:
    before = sockets.to(address)
    writer, reader = client.do_exchange(
      flight.FlightDescriptor.for_command(b'')
    )
    writer.begin(SCHEMA)
    mine = sockets.to(address) - before
  except ERRORS as error:
    client.close()
    raise ended(address, error) from error
  finally:
    _calling.release()

  def cut() -> None:
    reader.cancel()
    # gRPC would wait for writes that it has begun, without a limit.
    sockets.shut_down_to(address, mine)

  finish = functools.partial(_finish, reader, writer, client)
  return Stream(reader, writer, address, cut, finish)


def _log_refusal(
  refusals: RateLimitedLog, stream: Stream, error: TransportError
) -> str:
  """Logs the error for which a stream ends; returns it as text."""
  why = str(error).removeprefix(f'{stream.peer}: ')
  refusals.write(f'{stream.peer}: refused: {why}')
  return why


def _finish(reader: Any, writer: Any, client: Any) -> None:
  with contextlib.suppress(*ERRORS):
    writer.done_writing()
  with contextlib.suppress(StopIteration, *ERRORS):
    while True:
      reader.read_chunk()
  with contextlib.suppress(*ERRORS):
    writer.close()
  client.close()
