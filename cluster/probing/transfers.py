"""Timed transfers between processes, over plain TCP.

A transfer goes on for a fixed time, and what arrives is counted in a window of
it: slow start is over by then, and what is still queued in the end does not
count.  Every test opens connections of its own and ends when all that they
carry has arrived, so that the next one finds empty links.
"""

import concurrent.futures
import contextlib
import hmac
import os
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

_HELLO = struct.Struct('!16sII')  # Key, number of the test, sender.
_READ = 2**20
_LAST = b'\1'  # Ends what is sent, and is nowhere else in it.
_BLOCK = os.urandom(2**16).replace(_LAST, b'\0')
# Bytes that may wait in the kernel beside those on their way: buffers of
# megabytes would keep slow links busy for seconds after a test.
_UNSENT = 2**16
LATE_S = 0.1  # How much later than others a process may hear that it begins.
_PINGS = 20
PINGS_S = 1.0  # After which there are no more of them.


class Broken(Exception):
  """A transfer has not gone as it should; says with whom."""


class Failure(Exception):
  """It cannot go on; says because of whom."""


class Peer(NamedTuple):
  """Where a process is.

  Attributes:
    name: For messages.
    host: IPv4 address.
    port: That its endpoint listens on.
  """

  name: str
  host: str
  port: int


def duration_s(seconds: float, late_s: float = LATE_S) -> float:
  """Returns how long transfers go on of which so many seconds are counted."""
  return 1.5 * seconds + late_s


class Endpoint:
  """Where the transfers of a process begin and end; a context manager.

  Attributes:
    port: That it listens on.
  """

  def __init__(self, host: str, *, timeout_s: float):
    """Listens from here on.

    Args:
      host: IPv4 address to listen on, and no other.
      timeout_s: Silence of another process after which it counts as lost.

    Raises:
      OSError: If the address cannot be listened on.
    """
    self._timeout_s = timeout_s
    self._server = socket.create_server((host, 0), backlog=4096)
    self._server.setblocking(False)
    self.port: int = self._server.getsockname()[1]
    self._out: list[tuple[int, socket.socket]] = []
    self._in: list[tuple[int, socket.socket]] = []

  def __enter__(self) -> 'Endpoint':
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def close(self) -> None:
    """Ends all connections, and listens no more."""
    self._hang_up()
    self._server.close()

  def meet(self, peers: Sequence[Peer], *, own: int, key: bytes) -> None:
    """Takes note of all processes.

    Args:
      peers: All, this one too.
      own: Which of them is this one.
      key: 16 bytes that nobody else knows.
    """
    self._peers, self._own, self._key = peers, own, key

  def connect(
    self, number: int, *, to: Sequence[int], of: Sequence[int], streams: int
  ) -> None:
    """Opens the connections of a test; ends those of one that has failed.

    Args:
      number: Of the test, the same for all that take part.
      to: Whom this process sends to.
      of: Whom it receives from.
      streams: Connections for each of them.

    Raises:
      Broken: If somebody cannot be reached, or does not come.
    """
    self._hang_up()
    hello = _HELLO.pack(self._key, number, self._own)
    for peer in [peer for peer in to for _ in range(streams)]:
      with self._named(peer):
        ends = self._peers[peer].host, self._peers[peer].port
        sock = socket.create_connection(ends, self._timeout_s)
        self._out.append((peer, sock))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        sock.sendall(hello)
    self._accept(number, Counter(dict.fromkeys(of, streams)))

  def ping(self) -> dict[int, float]:
    """Returns half of the shortest round trip, seconds, by receiver.

    The receivers have to call it too, and nobody may do both in one test.

    Raises:
      Broken: If a connection breaks.
    """
    for peer, sock in self._in:
      with self._named(peer):
        while _exactly(sock, 1) != _LAST:
          sock.sendall(b'\0')
    shortest: dict[int, float] = {}
    for peer, sock in self._out:
      with self._named(peer):
        one_way_s = _round_trip_s(sock) / 2
        shortest[peer] = min(shortest.get(peer, one_way_s), one_way_s)
    return shortest

  def transfer(
    self, seconds: float, late_s: float = LATE_S
  ) -> dict[int, float]:
    """Sends and receives, and closes the connections.

    Args:
      seconds: What arrives is counted for so long, after half as much.
      late_s: How much later than others a process may begin.

    Returns:
      Bytes per second of what has arrived, by sender.

    Raises:
      Broken: If a connection breaks, or is silent for too long.
    """
    start = time.monotonic()
    whole_s = duration_s(seconds, late_s)
    rates: Counter[int] = Counter()
    threads = len(self._out) + len(self._in)
    with concurrent.futures.ThreadPoolExecutor(threads or 1) as pool:
      sent = [
        pool.submit(self._send, *each, start + whole_s) for each in self._out
      ]
      received = [
        (
          peer,
          pool.submit(self._receive, peer, sock, start, seconds, whole_s),
        )
        for peer, sock in self._in
      ]
    # All have ended: if one has failed, then not because of this process.
    for future in sent:
      future.result()
    for peer, future in received:
      rates[peer] += future.result()
    self._hang_up()
    return dict(rates)

  def _send(self, peer: int, sock: socket.socket, until: float) -> None:
    with self._named(peer):
      while time.monotonic() < until:
        sock.send(_BLOCK)
      sock.sendall(_LAST)
      sock.shutdown(socket.SHUT_WR)

  def _receive(
    self,
    peer: int,
    sock: socket.socket,
    start: float,
    seconds: float,
    whole_s: float,
  ) -> float:
    deadline = start + whole_s + self._timeout_s
    with self._named(peer):
      return _received_Bps(sock, start + seconds / 2, seconds, deadline)

  def _accept(self, number: int, missing: Counter[int]) -> None:
    """Takes in the connections of a test; strangers hold nobody up.

    Args:
      number: Of the test.
      missing: How many of them are to come, by sender.
    """
    deadline = time.monotonic() + self._timeout_s
    with _Arrivals(self._server) as arrivals:
      while +missing:
        with self._named(min(+missing)):
          if (left_s := deadline - time.monotonic()) <= 0:
            raise TimeoutError('timed out')
          for sock, hello in arrivals.wait(left_s):
            peer = self._sender(hello, number)
            if missing[peer] > 0:
              missing[peer] -= 1
              sock.settimeout(self._timeout_s)
              self._in.append((peer, sock))
            else:
              sock.close()

  def _sender(self, hello: bytes, number: int) -> int | None:
    """Returns who has opened a connection of a test; None if nobody of us."""
    if len(hello) < _HELLO.size:
      return None
    key, test, peer = _HELLO.unpack(hello)
    ours = hmac.compare_digest(key, self._key) and test == number
    return peer if ours else None

  @contextlib.contextmanager
  def _named(self, peer: int) -> Iterator[None]:
    """Says whom it is about if a connection fails."""
    try:
      yield
    except OSError as error:
      why = str(error) or type(error).__name__
      raise Broken(f'{self._peers[peer].name}: {why}') from error

  def _hang_up(self) -> None:
    for _, sock in (*self._out, *self._in):
      sock.close()
    self._out, self._in = [], []


class _Arrivals:
  """Connections to a listener, and what they say first; a context manager."""

  def __init__(self, server: socket.socket):
    self._server = server
    self._said: dict[socket.socket, bytes] = {}  # By who has not said all.
    self._coming = selectors.DefaultSelector()
    self._coming.register(server, selectors.EVENT_READ)

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *exception: object) -> None:
    self._coming.close()
    for sock in self._said:
      sock.close()

  def wait(self, limit_s: float) -> Iterator[tuple[socket.socket, bytes]]:
    """Yields who has said a hello, or gone before its end, if anybody has."""
    for key, _ in self._coming.select(limit_s):
      sock: Any = key.fileobj
      with contextlib.suppress(BlockingIOError):
        if sock is self._server:
          new, _ = sock.accept()
          new.setblocking(False)
          self._said[new] = b''
          self._coming.register(new, selectors.EVENT_READ)
        elif self._has_said(sock):
          self._coming.unregister(sock)
          yield sock, self._said.pop(sock)

  def _has_said(self, sock: socket.socket) -> bool:
    try:
      more = sock.recv(_HELLO.size - len(self._said[sock]))
    except BlockingIOError:
      raise
    except OSError:
      return True
    self._said[sock] += more
    return not more or len(self._said[sock]) == _HELLO.size


def _received_Bps(
  sock: socket.socket, start: float, seconds: float, deadline: float
) -> float:
  """Returns the rate of what arrives in a window; reads all that is sent.

  The window is from the first arrival after its start to the first one after
  its end, so that it does not matter whether this thread was late for them.

  Args:
    sock: To read from.
    start: When the window begins.
    seconds: Its length.
    deadline: When all has to have arrived.

  Raises:
    OSError: If the connection breaks, or all this takes too long.
  """
  buffer = memoryview(bytearray(_READ))
  got, first, last = 0, None, None
  ending = b''
  while size := sock.recv_into(buffer):
    now = time.monotonic()
    got += size
    ending = buffer[size - 1 : size]
    if now >= start:
      first = first or (now, got)
    if now >= start + seconds:
      last = last or (now, got)
    if now > deadline:
      raise TimeoutError('what was sent has not arrived in time')
  if ending != _LAST:
    raise ConnectionError('the transfer has broken off')
  now = time.monotonic()
  if now < start + seconds / 2:
    raise TimeoutError('the transfer had ended before it was measured')
  first, last = first or (now, got), last or (now, got)
  # A flow that was hardly heard of was no fast one for a moment.
  return (last[1] - first[1]) / max(last[0] - first[0], seconds / 2)


def _round_trip_s(sock: socket.socket) -> float:
  """Returns the shortest of some round trips of one byte, seconds."""
  shortest_s = float('inf')
  begin = time.monotonic()
  for _ in range(_PINGS):
    start = time.monotonic()
    if start > begin + PINGS_S:
      break
    sock.sendall(b'\0')
    _exactly(sock, 1)
    shortest_s = min(shortest_s, time.monotonic() - start)
  sock.sendall(_LAST)
  return shortest_s


def _exactly(sock: socket.socket, size: int) -> bytes:
  """Returns so many bytes.

  Raises:
    OSError: If they do not come.
  """
  data = b''
  while len(data) < size:
    if not (more := sock.recv(size - len(data))):
      raise ConnectionError('the connection has ended')
    data += more
  return data
