"""TCP relays that deliver bytes after a fixed delay, for latency in a lab.

Linux delays packets with netem, which not every kernel has.  A relay in front
of a listener delays bytes instead, in both directions.  TCP acknowledges them
at the relay, so that its own windows do not see the delay: what a relay shows
is the cost of waiting for messages, not that of TCP's congestion control.
"""

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable

_READ_BYTES = 1 << 18


class DelayedRelay:
  """A listener whose connections lead to another one, with a delay.

  Attributes:
    address: 'host:port' to connect to.
  """

  def __init__(self, host: str, target: str, delay_s: float):
    """Starts to listen.

    Args:
      host: IPv4 address to listen on.
      target: 'host:port' of the listener that connections lead to.
      delay_s: Seconds from the arrival of bytes to their delivery.
    """
    self._listener = socket.create_server((host, 0))
    self.address = '{}:{}'.format(*self._listener.getsockname())
    name, _, port = target.rpartition(':')
    self._target = name, int(port)
    self._delay_s = delay_s
    threading.Thread(target=self._accept, daemon=True).start()

  def close(self) -> None:
    """Stops to listen; open connections stay."""
    self._listener.close()

  def _accept(self) -> None:
    with contextlib.suppress(OSError):
      while True:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._target)
        for each in (client, server):
          each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._forward(client, server)
        self._forward(server, client)

  def _forward(self, source: socket.socket, sink: socket.socket) -> None:
    """Starts to deliver the bytes of one socket to another one."""
    arrived: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def receive() -> None:
      data = b'-'
      while data:
        data = b''
        with contextlib.suppress(OSError):
          data = source.recv(_READ_BYTES)
        arrived.put((time.monotonic() + self._delay_s, data))

    def deliver() -> None:
      while True:
        at_s, data = arrived.get()
        time.sleep(max(at_s - time.monotonic(), 0.0))
        with contextlib.suppress(OSError):
          if not data:
            sink.shutdown(socket.SHUT_WR)
            return
          sink.sendall(data)

    self._start(receive)
    self._start(deliver)

  def _start(self, function: Callable[[], None]) -> None:
    threading.Thread(target=function, daemon=True).start()
