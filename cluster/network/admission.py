"""Who has connected to a listener and has not been let in yet.

gRPC takes in a connection, and the whole of its first message, before anybody
here hears of it.  So a thread looks at the sockets: who has not shown in time
that it may come in, or sends more than that takes, is cut off, as are the
oldest if there are too many.  Who is let in is looked after by the system.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator

from cluster.network import sockets
from cluster.network.rate_limited_log import Sayings

WAIT_S = 20.0  # From connecting to being let in; whoever waits tries again.
_MOST_BYTES = 1 << 17  # Until then: of TLS, HTTP/2, the schema and the hello.
_MOST = 512  # Connections, and calls on them, that are not let in yet.
_LOOK_S = 0.2


class Door:
  """Of one listener; it has a thread."""

  def __init__(self, port: int, sayings: Sayings, wait_s: float):
    """Looks after the connections of a port.

    Args:
      port: That is listened on.
      sayings: Logs who was cut off.
      wait_s: From connecting to being let in.
    """
    self._port = port
    self._sayings = sayings
    self._wait_s = wait_s
    self._lock = threading.Lock()
    self._calls = 0  # That greet.
    self._inside: Counter[str] = Counter()  # Streams, by peer.
    self._left = False  # Whether one has ended since the last look.
    self._since: dict[str, float] = {}  # Strangers, by number of the socket.
    self._known: set[str] = set()  # Sockets that need no other look.
    self._closed = threading.Event()
    threading.Thread(target=self._watch, daemon=True).start()

  @contextlib.contextmanager
  def outside(self) -> Iterator[bool]:
    """Counts a call that is not let in yet; gives whether it may try."""
    with self._lock:
      self._calls += 1
      may = self._calls <= _MOST
    try:
      yield may
    finally:
      with self._lock:
        self._calls -= 1

  @contextlib.contextmanager
  def inside(self, peer: str) -> Iterator[None]:
    """Lets a peer in for as long as a stream of it goes on."""
    with self._lock:
      self._inside[peer] += 1
    try:
      yield
    finally:
      with self._lock:
        self._inside[peer] -= 1
        self._inside += Counter()  # Without those of which none is left.
        self._left = True

  def close(self) -> None:
    """Looks no more."""
    self._closed.set()

  def _watch(self) -> None:
    while not self._closed.wait(_LOOK_S):
      self._look(time.monotonic())

  def _look(self, now: float) -> None:
    """Cuts off who is to be."""
    with self._lock:
      if self._left:  # Its connection may go on without a stream.
        self._known.clear()
        self._left = False
    # Who does not tell has to be looked at.
    with contextlib.suppress(OSError):
      if sockets.of_port(self._port) <= self._known:
        self._since = {}
        return
    files = sockets.numbers()
    self._known &= files.keys()
    strangers = {}
    for number in files.keys() - self._known:
      since = self._since.get(number, now)
      # It may have gone, or be one of another family.
      with contextlib.suppress(OSError):
        if self._may_stay(files[number], now - since):
          self._known.add(number)
        else:
          strangers[number] = since
    oldest = sorted(strangers, key=strangers.__getitem__)
    for number in oldest[: max(len(oldest) - _MOST, 0)]:
      with (
        contextlib.suppress(OSError),
        sockets.looked_at(files[number]) as end,
      ):
        self._cut(end, f'there are {len(oldest)} who wait')
    self._since = strangers

  def _may_stay(self, file: str, waited_s: float) -> bool:
    """Returns whether a socket needs no other look; cuts it off if it must."""
    with sockets.looked_at(file) as end:
      if end.port != self._port or not end.peer:
        return True
      sent = end.received_bytes
      with self._lock:
        inside = self._inside[end.peer] > 0
      if inside:
        end.keep_alive()
      elif sent > _MOST_BYTES:
        self._cut(end, f'it has sent {sent} bytes before it was let in')
      elif waited_s > self._wait_s:
        self._cut(end, f'it has not greeted within {self._wait_s:g} s')
      return inside

  def _cut(self, end: sockets.End, why: str) -> None:
    self._sayings.say(f'{end.peer}: refused: {why}')
    end.shut_down()
