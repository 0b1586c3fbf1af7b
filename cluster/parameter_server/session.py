"""A worker's life in a served run: its streams to the coordinator and all servers."""

import queue
from collections.abc import Callable
from typing import Any

from absl import logging

from cluster.membership.joining import dropped
from cluster.membership.process import Settings
from cluster.membership.session import Session
from cluster.network.heartbeat import within
from cluster.network.streams import (
  Closed,
  Refused,
  Stream,
  TransportError,
  connect,
)


class ParameterServerSession(Session):
  """See `Session`.

  Attributes:
    streams: To the servers.
    pieces: Bytes of the pieces in which each server takes pushes; may be none.
  """

  def __init__(
    self,
    coordinator: str,
    index: int,
    settings: Settings,
    *,
    save: Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], Any],
    evaluate: Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], Any],
    **of_life: Any,
  ):
    """Joins the coordinator: see `Session`.

    Args:
      coordinator: HOST:PORT.
      index: Of the worker.
      settings: What all processes of the run agree on.
      save: Called with what the coordinator says of a checkpoint that is to be made,
        and what answers, in a thread of the heart.
      evaluate: Called likewise, with what it says of an evaluation.
      **of_life: As of `Session`.

    Raises:
      TransportError: If it cannot be joined.
    """
    self._servers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    self._settings, self._save, self._evaluate = settings, save, evaluate
    self.streams: list[Stream] = []
    self.pieces: list[list[int]] = []
    super().__init__(
      coordinator,
      index,
      settings,
      told=self._told,
      ending=self._cancel,
      **of_life,
    )
    self._key = {'worker': index, 'life': self.number}

  def meet(self) -> None:
    """Connects to all servers, once the coordinator has said where they are.

    Raises:
      TransportError: If the coordinator has ended this life meanwhile.
    """
    servers = self._servers.get().get('servers', ())
    for address in servers:
      stream = self._connected(address)
      self.stack.callback(dropped, stream)
      with within(stream, self._timeout_s):
        self.pieces.append(stream.receive().header['pieces'])
      self.streams.append(stream)
      met = f'connected to {len(self.streams)} of {len(servers)} servers'
      self.say({'doing': met})

  def _connected(self, address: str) -> Stream:
    """Returns a stream to a server, as soon as it can be reached."""
    while not self.heart.ended.is_set():
      try:
        settings = self._settings
        return connect(
          address, self._key, settings.security, settings.timeout_s
        )
      except Refused:
        raise
      except TransportError as error:
        logging.info('Still waiting for a server: %s', error)
    raise Closed('The coordinator has ended this life.')

  def _told(self, told: dict[str, Any]) -> None:
    if 'save' in told:
      self._save(told, self.say)
    elif 'evaluate' in told:
      self._evaluate(told, self.say)
    else:
      self._servers.put(told)

  def _cancel(self) -> None:
    self._servers.put({})
    for stream in list(self.streams):
      stream.cancel()
