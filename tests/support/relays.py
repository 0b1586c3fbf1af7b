"""Somebody between two ends of a connection, for tests."""

import contextlib
import socket
import threading
import time


class Relay:
  """Passes on what it gets, on a port of its own; use as a context.

  Attributes:
    address: 'host:port' to connect to.
    passed: Bytes that clients have sent so far, passed on or not.
    seen: What they were.
  """

  def __init__(self, address, most_bytes=None, reads=True, back_Bps=None):
    """Listens.

    Args:
      address: Where to pass it on to.
      most_bytes: Of a client; all that comes later is swallowed.  None: any.
      reads: Whether what the listener sends is read.
      back_Bps: Bytes per second that clients get at most; None for any.
    """
    host, _, port = address.rpartition(':')
    self._there = host, int(port)
    self._most = float('inf') if most_bytes is None else most_bytes
    self._reads, self._back_Bps = reads, back_Bps
    self._socket = socket.create_server(('127.0.0.1', 0))
    self.address = f'127.0.0.1:{self._socket.getsockname()[1]}'
    self.passed, self.seen = 0, bytearray()
    self._open = [self._socket]
    self._stalled, self._closed = threading.Event(), threading.Event()
    threading.Thread(target=self._accept, daemon=True).start()

  def __enter__(self):
    return self

  def stall(self):
    """Reads no more, of nobody."""
    self._stalled.set()

  def __exit__(self, *exception):
    self._closed.set()
    for end in self._open:
      with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
      end.close()

  def _accept(self):
    with contextlib.suppress(OSError):
      while True:
        near, _ = self._socket.accept()
        far = socket.create_connection(self._there)
        self._open += [near, far]
        for pair in ((near, far), (far, near)):
          threading.Thread(target=self._pass, args=pair, daemon=True).start()

  def _pass(self, source, target):
    towards = target.getpeername() == self._there
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
      # Whoever is cut off at one end is told at the other.
      stack.callback(source.shutdown, socket.SHUT_RDWR)
      while towards or self._reads:
        data = source.recv(65536)
        if self._stalled.is_set():
          self._closed.wait()
        if not data:
          target.shutdown(socket.SHUT_WR)
          stack.pop_all()
          return
        if towards:
          self.seen += data
          left, self.passed = self._most - self.passed, self.passed + len(data)
          data = data[: int(min(max(left, 0), len(data)))]
        elif self._back_Bps:
          time.sleep(len(data) / self._back_Bps)
        target.sendall(data)
      stack.pop_all()
