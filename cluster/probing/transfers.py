"""Timed transfers between processes, over connections of the port.

A transfer takes a fixed time, and arriving bytes are counted in a window of it:
slow start is over by then, and bytes that are still queued in the end do not
count.  Every test opens connections of its own and ends when all bytes have
arrived, so that the next one finds empty links.
"""

import collections
import contextlib
import hmac
import os
import ssl
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

from cluster.network import sockets
from cluster.network.connection import (
  Connection,
  receive_exactly,
  run_steps,
)
from cluster.network.errors import TransportError
from cluster.network.handshake import open_connection
from cluster.network.port import Port
from system import clock, net, threads

PROBES = 'probes'  # Service of endpoints.
_HELLO = struct.Struct('!16sII')  # Key, number of the test, sender.
_READ = 2**20
# `tcpi_bytes_received` of `struct tcp_info` (Linux 4.1).
_RECEIVED, _RECEIVED_AT = struct.Struct('=Q'), 128
_LAST = b'\1'  # Last byte of a transfer; it occurs nowhere else in one.
# Calls of blocks of 64 KiB, and not the link, would limit transfers beyond 3
# GB/s.  TLS encrypts all of a block before it looks at the time.
_BLOCK = memoryview(os.urandom(2**20).replace(_LAST, b'\0'))
_TLS_BLOCK = _BLOCK[: 2**16]
_MAX_ARRIVED = 1024  # Connections that wait for a test.
LATE_S = 0.04  # Greatest delay between the starts of two processes in a test.
# Pings of a connection: their number, unless they take longer than a time, but
# a few in any case; and a limit of all.
_PINGS, _PINGING_S, _FEWEST_PINGS = 20, 0.01, 3
PINGS_S = 1.0


class Broken(Exception):
  """Raised if a transfer fails; names the peer."""


class Failure(Exception):
  """Raised if measuring cannot continue; names the process at fault."""


class Peer(NamedTuple):
  """The address of a process that takes part in transfers.

  Attributes:
    name: Name of the process, for error messages.
    host: Numeric address of its host.
    port: Port of its process.
  """

  name: str
  host: str
  port: int


def duration_s(seconds: float) -> float:
  """Returns the duration of a transfer, seconds.

  Args:
    seconds: Length of the window in which arriving bytes are counted.
  """
  return 1.5 * seconds + LATE_S


class Endpoint:
  """A process's end of all transfers; a context manager.

  Attributes:
    port: Number of the port.
  """

  def __init__(self, port: Port, *, timeout_s: float):
    """Starts to listen.

    Args:
      port: Port of this process.
      timeout_s: Silence of another process after which it counts as lost.

    Raises:
      TransportError: If the address cannot be listened on.
    """
    self._timeout_s = timeout_s
    self._own_port = port
    self._arrived: threads.SimpleQueue[Connection] = threads.SimpleQueue()
    port.offer(PROBES, self._take)
    _, self.port = sockets.split(port.address)
    self._out: list[tuple[int, net.Socket]] = []
    self._in: list[tuple[int, net.Socket]] = []

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def close(self) -> None:
    """Closes all connections, and stops to listen."""
    self._own_port.withdraw(PROBES)
    self._disconnect()
    with contextlib.suppress(threads.Empty):
      while True:
        self._arrived.get_nowait().close()

  def meet(self, peers: Sequence[Peer], *, own: int, key: bytes) -> None:
    """Sets the processes between which transfers take place.

    Args:
      peers: All processes, with this one.
      own: Index of this process among them.
      key: Secret of these processes, 16 bytes.
    """
    self._peers, self._own, self._key = peers, own, key

  def connect(
    self,
    number: int,
    *,
    receivers: Sequence[int],
    senders: Sequence[int],
    streams: int,
  ) -> None:
    """Opens the connections of a test, and closes those of an earlier test.

    Args:
      number: Number of the test, the same for all processes.
      receivers: Indices of the processes to which this one sends.
      senders: Indices of the processes from which it receives.
      streams: Number of connections for each of them.

    Raises:
      Broken: If a process cannot be reached, or does not connect in time.
    """
    self._disconnect()
    hello = _HELLO.pack(self._key, number, self._own)
    for peer in [peer for peer in receivers for _ in range(streams)]:
      with self._naming_peer(peer):
        connection = open_connection(
          sockets.join(self._peers[peer].host, self._peers[peer].port),
          self._own_port.security,
          PROBES,
          hello,
          timeout_s=self._timeout_s,
        )
        connection.sock.settimeout(self._timeout_s)
        self._out.append((peer, connection.sock))
        # Slow links would be busy for seconds after a test.
        connection.limit_unsent()
    self._accept(number, Counter(dict.fromkeys(senders, streams)))

  def ping(self) -> dict[int, float]:
    """Returns half of the shortest round trip, seconds, by receiver.

    The receivers have to call this method, too.  In a test, a process may be
    sender or receiver of pings, not both.

    Raises:
      Broken: If a connection breaks.
    """
    for peer, sock in self._in:
      with self._naming_peer(peer):
        while _receive_exactly(sock, 1) != _LAST:
          sock.sendall(b'\0')
    shortest: dict[int, float] = {}
    for peer, sock in self._out:
      with self._naming_peer(peer):
        one_way_s = _measure_round_trip_s(sock) / 2
        shortest[peer] = min(shortest.get(peer, one_way_s), one_way_s)
    return shortest

  def transfer(self, seconds: float) -> dict[int, float]:
    """Sends and receives over all connections, and closes them.

    Args:
      seconds: Length of the window in which arriving bytes are counted; it
        begins after half of that.

    Returns:
      Bytes per second that have arrived, by sender.

    Raises:
      Broken: If a connection breaks, or is silent for too long.
    """
    start = clock.monotonic()
    whole_s = duration_s(seconds)
    rates: dict[int, float] = collections.defaultdict(float)
    count = len(self._out) + len(self._in)
    with threads.ThreadPoolExecutor(count or 1) as pool:
      sending = [
        pool.submit(self._send, *each, start + whole_s) for each in self._out
      ]
      receiving = [
        (
          peer,
          pool.submit(self._receive, peer, sock, start, seconds, whole_s),
        )
        for peer, sock in self._in
      ]
    # All have ended: if one has failed, then not because of this process.
    for sent in sending:
      sent.result()
    for peer, rate in receiving:
      rates[peer] += rate.result()
    self._disconnect()
    return dict(rates)

  def _send(self, peer: int, sock: net.Socket, until: float) -> None:
    block = _TLS_BLOCK if isinstance(sock, ssl.SSLSocket) else _BLOCK
    with self._naming_peer(peer):
      while clock.monotonic() < until:
        sock.send(block)
      sock.sendall(_LAST)
      sock.shutdown(net.SHUT_WR)

  def _receive(
    self,
    peer: int,
    sock: net.Socket,
    start: float,
    seconds: float,
    whole_s: float,
  ) -> float:
    deadline = start + whole_s + self._timeout_s
    with self._naming_peer(peer):
      return _measure_rate_Bps(sock, start + seconds / 2, seconds, deadline)

  def _accept(self, number: int, missing: Counter[int]) -> None:
    """Accepts the connections of a test.

    Others, such as those of a test that has failed, are closed.

    Args:
      number: Number of the test.
      missing: Number of connections to accept, by sender.
    """
    deadline = clock.monotonic() + self._timeout_s
    while +missing:
      left_s = max(deadline - clock.monotonic(), 0.0)
      try:
        connection = self._arrived.get(timeout=left_s)
      except threads.Empty:
        name = self._peers[min(+missing)].name
        raise Broken(f'{name}: timed out') from None
      peer = self._sender(connection, number, deadline)
      if peer is not None and missing[peer] > 0:
        missing[peer] -= 1
        connection.sock.settimeout(self._timeout_s)
        self._in.append((peer, connection.sock))
      else:
        connection.close()

  def _take(self, connection: Connection) -> None:
    """Takes an authenticated client, unless too many wait for a test."""
    if self._arrived.qsize() < _MAX_ARRIVED:
      self._arrived.put(connection)
    else:
      connection.close()

  def _sender(
    self, connection: Connection, number: int, deadline: float
  ) -> int | None:
    """Returns the sender that has opened a connection; None for others."""
    try:
      # It was sent with the handshake.
      steps = receive_exactly(connection, _HELLO.size)
      hello = run_steps(connection, steps, deadline)
    except (TransportError, OSError):
      return None
    key, test, peer = _HELLO.unpack(hello)
    is_valid = hmac.compare_digest(key, self._key) and test == number
    return int(peer) if is_valid else None

  @contextlib.contextmanager
  def _naming_peer(self, peer: int) -> Iterator[None]:
    """Turns an error of a connection into one that names the peer."""
    try:
      yield
    except (TransportError, OSError) as error:
      reason = str(error) or type(error).__name__
      raise Broken(f'{self._peers[peer].name}: {reason}') from error

  def _disconnect(self) -> None:
    for _, sock in (*self._out, *self._in):
      sock.close()
    self._out, self._in = [], []


def _measure_rate_Bps(
  sock: net.Socket, start: float, seconds: float, deadline: float
) -> float:
  """Returns the rate at which bytes arrive in a window; reads to the end.

  The window is from the first arrival after its start to the first one after
  its end, so that it does not matter whether this thread was late for them.
  The kernel counts the bytes: what a late thread finds waiting has come before.

  Args:
    sock: Connection to read from.
    start: Start of the window, monotonic seconds.
    seconds: Length of the window.
    deadline: Time at which all bytes have to have arrived, monotonic seconds.

  Raises:
    OSError: If the connection breaks, or the transfer takes too long.
  """
  buffer = memoryview(bytearray(_READ))
  first, last = None, None
  ending = b''
  while size := sock.recv_into(buffer):
    now = clock.monotonic()
    ending = bytes(buffer[size - 1 : size])
    if now >= start and not first:
      first = now, _count_received(sock)
    if now >= start + seconds and not last:
      last = now, _count_received(sock)
    if now > deadline:
      raise TimeoutError('what was sent has not arrived in time')
  if ending != _LAST:
    raise ConnectionError('the transfer has broken off')
  now = clock.monotonic()
  if now < start + seconds / 2:
    raise TimeoutError('the transfer had ended before it was measured')
  if not last:
    last = now, _count_received(sock)
  first = first or last
  # A flow of few arrivals has not been a fast one for a moment.
  return (last[1] - first[1]) / max(last[0] - first[0], seconds / 2)


def _count_received(sock: net.Socket) -> int:
  """Returns the bytes that have arrived at a connection, read or not."""
  size = _RECEIVED_AT + _RECEIVED.size
  info = sock.getsockopt(net.IPPROTO_TCP, net.TCP_INFO, size)
  (count,) = _RECEIVED.unpack_from(info, _RECEIVED_AT)
  return int(count)


def _measure_round_trip_s(sock: net.Socket) -> float:
  """Returns the shortest of several round trips of one byte, seconds."""
  shortest_s = float('inf')
  begin = clock.monotonic()
  for count in range(_PINGS):
    start = clock.monotonic()
    limit_s = PINGS_S if count < _FEWEST_PINGS else _PINGING_S
    if start > begin + limit_s:
      break
    sock.sendall(b'\0')
    _receive_exactly(sock, 1)
    shortest_s = min(shortest_s, clock.monotonic() - start)
  sock.sendall(_LAST)
  return shortest_s


def _receive_exactly(sock: net.Socket, size: int) -> bytes:
  """Receives a number of bytes.

  Raises:
    OSError: If the connection ends before.
  """
  data = b''
  while len(data) < size:
    if not (more := sock.recv(size - len(data))):
      raise ConnectionError('the connection has ended')
    data += more
  return data
