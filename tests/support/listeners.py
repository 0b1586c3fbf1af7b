"""A listener each of whose streams has a thread, for tests of streams."""

import threading
from collections.abc import Callable

import msgspec

from cluster.network.connection import Connection
from cluster.network.errors import TransportError
from cluster.network.streams import (
  CONTROL,
  HELLO,
  BaseListener,
  Port,
  Stream,
)


class Listener(BaseListener[Stream]):
  """A listener each of whose streams has a thread."""

  def __init__(
    self,
    port: Port,
    handle: Callable[[Stream, msgspec.Raw], None],
    *,
    service: str = CONTROL,
  ):
    """Starts to listen.

    Args:
      port: Port of this process.
      handle: Called with each stream and the encoded hello of its peer, in a
        thread of its own.  The stream ends when it returns; its exceptions are
        logged, and raised at the peer as Closed.
      service: Name that clients ask for, at most 32 bytes.

    Raises:
      TransportError: If the address cannot be listened on; raised from the
        error of the system, if that says why.
      ValueError: If the port offers the service already.
    """
    super().__init__(port, service)
    self._handle = handle
    self._offer()

  def _start(self, connection: Connection) -> None:
    stream = Stream(connection)
    if not self._add(stream):
      connection.close()
      return
    thread = threading.Thread(
      target=self._run, args=[stream], name=f'stream-{stream.peer}', daemon=True
    )
    try:
      thread.start()
    except RuntimeError:  # The port logs it, and closes the connection.
      self._remove(stream)
      raise

  def _run(self, stream: Stream) -> None:
    try:
      stream.close(self._serve(stream))
    finally:
      self._remove(stream)

  def _serve(self, stream: Stream) -> str:
    """Calls the handler of a stream; returns the reason of its end."""
    try:
      with self._limit_hello(stream):
        hello = stream.receive(HELLO, 0).header.copy()
    except TransportError as error:
      return self._log_refusal(stream, error)
    try:
      stream.send(None)
      self._handle(stream, hello)
    # Nobody waits for this thread: the error is logged, and sent to the client.
    except Exception as error:
      return self._log_end(stream, error)
    return ''
