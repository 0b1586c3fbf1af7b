"""Link between processes of this host that can be cut, for tests."""

import contextlib
import select
import socket
import threading

_SIZE = 2**16


class Link:
  """Forwards connections to an address; a context manager.

  Attributes:
    address: HOST:PORT to connect to.
    connections: Number of connections so far.
  """

  def __init__(self, address):
    """Starts to forward connections to an address."""
    host, _, port = address.partition(':')
    self._target = host, int(port)
    self._listener = socket.create_server(('127.0.0.1', 0))
    self.address = f'127.0.0.1:{self._listener.getsockname()[1]}'
    self.connections = 0
    self._ends = []
    self._whole = threading.Event()
    self._whole.set()
    threading.Thread(target=self._accept, daemon=True).start()

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    self._whole.set()
    self._listener.close()
    self.drop()

  def cut(self):
    """Stops forwarding; connections stay open."""
    self._whole.clear()

  def mend(self):
    """Forwards again."""
    self._whole.set()

  def drop(self):
    """Ends all connections."""
    for end in [*self._ends]:  # Not those of processes that reconnect.
      with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)

  def _accept(self):
    while True:
      try:
        here, _ = self._listener.accept()
      except OSError:
        return
      self.connections += 1
      threading.Thread(target=self._carry, args=[here], daemon=True).start()

  def _carry(self, here):
    self._whole.wait()
    with (
      contextlib.suppress(OSError),
      here,
      socket.create_connection(self._target) as there,
    ):
      self._ends += [here, there]
      other = {here: there, there: here}
      while True:
        for end in select.select([*other], [], [])[0]:
          data = end.recv(_SIZE)
          self._whole.wait()
          if not data:
            return
          other[end].sendall(data)
