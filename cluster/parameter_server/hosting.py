"""Hosts a server in another process than the coordinator's, until it ends."""

import contextlib
import threading
from collections.abc import Callable, Iterable

import numpy as np
from absl import logging

from cluster.membership.joining import RankHeld, join
from cluster.membership.process import Settings
from cluster.network import messages
from cluster.network.heartbeat import Heartbeat
from cluster.network.streams import (
  Corrupt,
  Refused,
  Stream,
  TransportError,
  chunked,
)
from cluster.parameter_server.server import Server
from cluster.parameter_server.versions import Report
from cluster.process.exits import Unmendable


def host_server(
  index: int,
  make: Callable[[Report, tuple[int, int] | None], Server],
  coordinator: str,
  settings: Settings,
) -> bool:
  """Runs a server other than the coordinator's, until the coordinator ends it.

  Until its first order it rejoins whenever the coordinator is lost.

  Args:
    index: Rank of the server.
    make: Creates the server, given the function for its reports and the
      checkpoint to resume from.
    coordinator: HOST:PORT of the coordinator.
    settings: Settings of all processes of the run.

  Returns:
    Whether the run is complete; if not, it can be resumed from a checkpoint.

  Raises:
    Unmendable: If the coordinator is lost, or another process holds the rank,
      for too long.
    Refused: If the coordinator refuses this server.
  """
  return _ServerHost(index, make, coordinator, settings).run()


class _ServerHost:
  """The sessions of a server with the coordinator."""

  def __init__(
    self,
    index: int,
    make: Callable[[Report, tuple[int, int] | None], Server],
    coordinator: str,
    settings: Settings,
  ):
    self._index = index
    self._make = make
    self._coordinator, self._settings = coordinator, settings
    self._server: Server | None = None
    self._stream: Stream  # To the coordinator.
    # That of the coordinator whose orders the server executes.
    self._admission: messages.ServerAdmitted | None = None
    self._has_orders = threading.Event()

  def run(self) -> bool:
    """Runs sessions until one ends the server: see `host_server`."""
    timeout_s = self._settings.timeout_s
    while True:
      stream, admission = self._join()
      self._stream = stream
      heartbeat = Heartbeat(
        stream,
        schema=messages.TO_SERVER,
        timeout_s=timeout_s,
        beat=self._beat,
        receive=self._order,
        on_end=lambda: None,
      )
      with contextlib.suppress(TransportError):  # The heartbeat meets it, too.
        server = self._server or self._start(stream, admission)
        if admission == self._admission:
          stream.send(messages.ServerAddress(server.address))
          heartbeat.ended.wait()
      if heartbeat.end.kind != 'lost':
        break
      stream.cancel()  # Orders may wait until it has taken a version.
      is_replaced = self._admission not in (None, admission)
      if self._has_orders.is_set() or is_replaced:
        self._close()
        reason = heartbeat.end.reason or 'another one has its place'
        raise Unmendable(
          f'Server {self._index} has lost the coordinator: {reason}'
        )
      stream.close()
      logging.info('Server %d rejoins: %s', self._index, heartbeat.end.reason)
    self._close()
    stream.close()
    return heartbeat.end.is_finished

  def _join(self) -> tuple[Stream, messages.ServerAdmitted]:
    """Returns a stream to the coordinator, and its admission of this server."""
    settings, name = self._settings, f'Server {self._index}'
    try:
      return join(
        self._coordinator,
        messages.ServerHello(
          *(self._index, settings.process),
          *(settings.fingerprint, settings.versions),
        ),
        messages.SERVER_ADMISSION,
        security=settings.security,
        timeout_s=settings.timeout_s,
        start_s=settings.start_s,
      )
    except Refused:
      raise
    except RankHeld as error:
      raise Unmendable(f'{name} gives up: {error}') from error
    except TransportError as error:
      raise Unmendable(f'{name} has lost the coordinator: {error}') from error

  def _start(
    self, stream: Stream, admission: messages.ServerAdmitted
  ) -> Server:
    """Creates the server and compiles its programs."""
    stream.send(messages.Activity('compiling'))
    server = self._make(self._report, admission.restore)
    self._server, self._admission = server, admission
    server.open(self._settings.port)
    return server

  def _close(self) -> None:
    if self._server is not None:
      self._server.close(self._settings.timeout_s)

  def _report(
    self, message: messages.ServerReport, body: Iterable[np.ndarray]
  ) -> None:
    parts = list(body)
    size_bytes = sum(part.size for part in parts)
    self._stream.send(message, chunked(parts), size_bytes)

  def _beat(self, now: float) -> messages.ServerHeartbeat:
    server = self._server
    return messages.ServerHeartbeat(now, server.progress if server else None)

  def _order(self, message: messages.Orders) -> None:
    if self._server is None:
      raise Corrupt('Expected orders after the address was sent, got some.')
    self._has_orders.set()
    self._server.order(message.sequence, message.orders)
