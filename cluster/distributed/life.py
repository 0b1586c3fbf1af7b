"""A life of a worker: its streams to the lead and to all servers."""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Self

from absl import logging

from cluster.distributed.joining import dropped, join
from cluster.transport.heart import Heart, within
from cluster.transport.streams import (
  Closed,
  Refused,
  Security,
  Stream,
  TransportError,
  connect,
)


class Life:
  """A context manager, within which the streams are open.

  Attributes:
    number: Which life of its worker, from 0.
    streams: To the servers.
    pieces: Bytes of the pieces in which each server takes pushes; may be none.
    heart: Of the stream to the lead.
  """

  def __init__(
    self,
    lead: str,
    hello: dict[str, Any],
    *,
    security: Security,
    timeout_s: float,
    start_s: float,
    with_beats: Callable[[], dict[str, Any]],
    hung: Callable[[str], None],
  ):
    """Joins the lead.

    Args:
      lead: HOST:PORT.
      hello: What the worker says of itself.
      security: Of all streams.
      timeout_s: Silence after which the lead counts as lost.
      start_s: How long to try to join it.
      with_beats: Returns what every beat says.
      hung: Called with what the lead has said, from another thread, if the
        context does not end then.

    Raises:
      TransportError: If it cannot be joined.
    """
    self._control, welcome = join(
      lead, hello, security=security, timeout_s=timeout_s, start_s=start_s
    )
    self.number = welcome['life']
    self._key = {'worker': hello['worker'], 'life': self.number}
    self._security = security
    self._timeout_s = timeout_s
    self._hung = hung
    self._told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    self._heeded = threading.Event()
    self._stack = contextlib.ExitStack()
    self._stack.callback(dropped, self._control)
    self.streams: list[Stream] = []
    self.pieces: list[list[int]] = []
    self.heart = Heart(
      self._control,
      timeout_s=timeout_s,
      ending=self._cut,
      told=self._told.put,
      with_beats=with_beats,
    )

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *exception: Any) -> None:
    self._heeded.set()
    self._stack.close()

  def say(self, header: dict[str, Any]) -> None:
    """Tells the lead something, unless it has ended this life."""
    if not self.heart.ended.is_set():
      self._control.send(header)

  def meet(self) -> None:
    """Connects to all servers, once the lead has said where they are.

    Raises:
      TransportError: If the lead has ended this life meanwhile.
    """
    servers = self._told.get().get('servers', ())
    for address in servers:
      stream = self._connected(address)
      self._stack.callback(dropped, stream)
      with within(stream, self._timeout_s):
        self.pieces.append(stream.receive().header['pieces'])
      self.streams.append(stream)
      met = f'connected to {len(self.streams)} of {len(servers)} servers'
      self._control.send({'doing': met})

  def _connected(self, address: str) -> Stream:
    """Returns a stream to a server, as soon as it can be reached."""
    while not self.heart.ended.is_set():
      try:
        return connect(address, self._key, self._security, self._timeout_s)
      except Refused:
        raise
      except TransportError as error:
        logging.info('Still waiting for a server: %s', error)
    raise Closed('The lead has ended this life.')

  def _cut(self) -> None:
    """Lets nothing wait any more; in a thread of the heart."""
    self._told.put({})
    for stream in list(self.streams):
      stream.cancel()
    if not self._heeded.wait(self._timeout_s):
      self._hung(self.heart.verdict['end'])
