"""Limits on connections that have not completed the handshake.

gRPC accepts a connection, and reads its whole first message, before the program
is called.  So a thread watches the sockets of a listener.  It cuts off a peer
that has not completed the handshake in time, or has sent more than that takes,
and the oldest ones if there are too many.  TCP keepalive watches the admitted
ones.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator

from cluster.network import sockets
from cluster.network.rate_limited_log import RateLimitedLog

WAIT_S = 20.0  # Limit of the handshake; clients try again.
_MOST_BYTES = 1 << 17  # Of TLS, HTTP/2, the schema and the hello.
_MOST = 512  # Pending connections, and pending calls on them.
_POLL_S = 0.2


class PendingConnections:
  """Pending connections of one listener, watched by a thread."""

  def __init__(self, port: int, log: RateLimitedLog, wait_s: float):
    """Starts to watch the connections of a port.

    Args:
      port: Port of the listener.
      log: Log of the connections that are cut off.
      wait_s: Limit from the connection to the end of the handshake, seconds.
    """
    self._port = port
    self._log = log
    self._wait_s = wait_s
    self._lock = threading.Lock()
    self._calls = 0  # Number of handshakes that are running.
    self._admitted: Counter[str] = Counter()  # Streams, by peer.
    self._has_ended = False  # Whether a stream has ended since the last check.
    self._since: dict[str, float] = {}  # Start of each pending, by socket.
    self._checked: set[str] = set()  # Sockets that need no other check.
    self._closed = threading.Event()
    threading.Thread(target=self._watch, daemon=True).start()

  @contextlib.contextmanager
  def count_handshake(self) -> Iterator[bool]:
    """Counts a handshake; yields False if too many are running."""
    with self._lock:
      self._calls += 1
      is_allowed = self._calls <= _MOST
    try:
      yield is_allowed
    finally:
      with self._lock:
        self._calls -= 1

  @contextlib.contextmanager
  def admit(self, peer: str) -> Iterator[None]:
    """Admits a peer's connection while one of its streams is open."""
    with self._lock:
      self._admitted[peer] += 1
    try:
      yield
    finally:
      with self._lock:
        self._admitted[peer] -= 1
        self._admitted += Counter()  # Drops peers without a stream.
        self._has_ended = True

  def close(self) -> None:
    """Stops to watch."""
    self._closed.set()

  def _watch(self) -> None:
    while not self._closed.wait(_POLL_S):
      self._check(time.monotonic())

  def _check(self, now: float) -> None:
    """Checks all connections, and cuts off those beyond the limits."""
    with self._lock:
      if self._has_ended:  # Its connection may stay open without a stream.
        self._checked.clear()
        self._has_ended = False
    # A kernel without this list makes all sockets be looked at.
    with contextlib.suppress(OSError):
      if sockets.of_port(self._port) <= self._checked:
        self._since = {}
        return
    files = sockets.numbers()
    self._checked &= files.keys()
    pending = {}
    for number in files.keys() - self._checked:
      since = self._since.get(number, now)
      # It may be closed by now, or be of another family.
      with contextlib.suppress(OSError):
        if self._is_settled(files[number], now - since):
          self._checked.add(number)
        else:
          pending[number] = since
    oldest = sorted(pending, key=pending.__getitem__)
    for number in oldest[: max(len(oldest) - _MOST, 0)]:
      with (
        contextlib.suppress(OSError),
        sockets.opened(files[number]) as end,
      ):
        self._cut(end, f'{len(oldest)} connections are pending')
    self._since = pending

  def _is_settled(self, file: str, waited_s: float) -> bool:
    """Returns whether a socket needs no other check; may cut it off.

    Args:
      file: File descriptor of the socket.
      waited_s: Seconds since the connection was seen first.
    """
    with sockets.opened(file) as end:
      if end.port != self._port or not end.peer:
        return True
      received = end.received_bytes
      with self._lock:
        is_admitted = self._admitted[end.peer] > 0
      if is_admitted:
        end.keep_alive()
      elif received > _MOST_BYTES:
        self._cut(end, f'it has sent {received} bytes before its admission')
      elif waited_s > self._wait_s:
        self._cut(end, f'no handshake within {self._wait_s:g} s')
      return is_admitted

  def _cut(self, end: sockets.End, why: str) -> None:
    self._log.write(f'{end.peer}: refused: {why}')
    end.shut_down()
