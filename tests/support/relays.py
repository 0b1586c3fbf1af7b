"""Relay between two ends of a connection, for tests."""

import contextlib
import socket
import threading
import time


class Relay:
  """Relay that forwards bytes to an address; a context manager.

  Attributes:
    address: 'host:port' to connect to.
    passed: Number of bytes that clients have sent, forwarded or not.
    received: These bytes.
  """

  def __init__(
    self, address, most_bytes=None, reads=True, back_Bps=None, rate_Bps=None
  ):
    """Starts to listen on a free port.

    Args:
      address: Address to forward to.
      most_bytes: Bytes of a client that are forwarded; later ones are dropped.
        None for no limit.
      reads: True to read bytes of the listener.
      back_Bps: Largest rate towards clients, bytes per second; None for any.
      rate_Bps: The same towards the listener; the relay queues 64 KiB then.
    """
    host, _, port = address.rpartition(':')
    self._there = host, int(port)
    self._most = float('inf') if most_bytes is None else most_bytes
    self._reads, self._back_Bps, self._rate_Bps = reads, back_Bps, rate_Bps
    self._socket = socket.create_server(('127.0.0.1', 0))
    if rate_Bps:  # Connections have the option of their listening socket.
      self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**15)
    self.address = f'127.0.0.1:{self._socket.getsockname()[1]}'
    self.passed, self.received = 0, bytearray()
    self._open = [self._socket]
    self._stalled, self._closed = threading.Event(), threading.Event()
    threading.Thread(target=self._accept, daemon=True).start()

  def __enter__(self):
    return self

  def stall(self):
    """Stops reading from either end."""
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
      # A connection that ends on one side ends on the other.
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
          self.received += data
          allowed = max(self._most - self.passed, 0)
          self.passed += len(data)
          data = data[: int(min(allowed, len(data)))]
          if self._rate_Bps:
            time.sleep(len(data) / self._rate_Bps)
        elif self._back_Bps:
          time.sleep(len(data) / self._back_Bps)
        target.sendall(data)
      stack.pop_all()
