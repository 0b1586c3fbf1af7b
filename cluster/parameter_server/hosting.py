"""Hosts a server in another process than the coordinator's, until it ends."""

import contextlib
import functools
from collections.abc import Callable, Iterable

import numpy as np
from absl import logging

from cluster.membership.joining import RankHeld, join
from cluster.membership.process import Settings
from cluster.membership.succession import LIMIT
from cluster.network import messages
from cluster.network.errors import InvalidMessage
from cluster.network.heartbeat import Heartbeat
from cluster.network.streams import (
  Closed,
  Refused,
  Stream,
  TransportError,
  chunked,
)
from cluster.parameter_server.mirrors import MirrorStore, share_part
from cluster.parameter_server.server import Server
from cluster.parameter_server.versions import Report
from cluster.process.exits import Unmendable
from system import clock, threads

# Attempts to rejoin within a timeout, each perhaps at another address.
_ATTEMPTS = 4


def host_server(
  index: int,
  make: Callable[[Report, tuple[int, int] | None], Server],
  coordinator: str | Callable[[], str],
  settings: Settings,
  *,
  mirrors: MirrorStore | None = None,
  is_own: bool = True,
  is_over: Callable[[], bool] = lambda: False,
) -> bool:
  """Runs a server other than the coordinator's, until the coordinator ends it.

  Until its first order it rejoins whenever the coordinator is lost, and in a
  run with mirrors also later, when it continues from one.

  Args:
    index: Rank of the server.
    make: Creates the server, given the function for its reports and the
      checkpoint to resume from.
    coordinator: HOST:PORT of the coordinator, or a function that returns it.
    settings: Settings of all processes of the run.
    mirrors: Parts of mirrors that this process holds; None for a run without
      mirrors.
    is_own: Whether the server belongs to this process; if not, it takes the
      place of another one, once, until all servers continue from a mirror.
    is_over: Returns whether the run has ended for this process.

  Returns:
    Whether the run is complete; if not, it can be resumed from a checkpoint.

  Raises:
    Unmendable: If the coordinator is lost, or another process holds the rank,
      for too long.
    Refused: If the coordinator refuses this server.
    InvalidMessage: If the coordinator sends what cannot be true.
  """
  return _ServerHost(
    index, make, coordinator, settings, mirrors, is_own, is_over
  ).run()


class _ServerHost:
  """The sessions of a server with the coordinator."""

  def __init__(
    self,
    index: int,
    make: Callable[[Report, tuple[int, int] | None], Server],
    coordinator: str | Callable[[], str],
    settings: Settings,
    mirrors: MirrorStore | None,
    is_own: bool,
    is_over: Callable[[], bool],
  ):
    self._index = index
    self._make = make
    self._coordinator, self._settings = coordinator, settings
    self._mirrors, self._is_own, self._is_over = mirrors, is_own, is_over
    self._server: Server | None = None
    # To the coordinator that has the server's address.
    self._stream: Stream | None = None
    # That of the coordinator whose orders the server executes.
    self._admission: messages.ServerAdmitted | None = None
    self._has_orders = threads.Event()
    # Updates and examples before its last return to a mirror.
    self._left: tuple[int, int] | None = None

  def run(self) -> bool:
    """Runs sessions until one ends the server: see `host_server`."""
    while joined := self._join():
      stream, admission = joined
      heartbeat = Heartbeat(
        stream,
        schema=messages.TO_SERVER,
        timeout_s=self._settings.timeout_s,
        beat=self._beat,
        receive=functools.partial(self._order, stream),
        on_end=lambda: None,
      )
      heartbeat.start()
      with contextlib.suppress(TransportError):  # The heartbeat meets it, too.
        server = self._prepare(stream, admission)
        self._stream = stream  # Reports of before are not for this session.
        stream.send(
          messages.ServerAddress(server.address, self._left, server.work)
        )
        heartbeat.ended.wait()
      if heartbeat.invalid:
        stream.cancel()
        self._close()
        raise heartbeat.invalid
      end = heartbeat.end
      if end.kind == 'over':
        break
      stream.cancel()  # Orders may wait until it has taken a version.
      if not self._can_rejoin(end, admission):
        self._close()
        if not self._is_own or end.kind == 'drained':
          return False
        reason = end.reason or 'another one has its place'
        raise Unmendable(
          f'Server {self._index} has lost the coordinator: {reason}'
        )
      stream.close()
      if not heartbeat.join(self._settings.timeout_s):
        raise Unmendable(f'Server {self._index} hangs: its orders never end.')
      logging.info('Server %d rejoins: %s', self._index, end.reason)
    else:
      self._close()
      return False
    self._close()
    stream.close()
    return end.is_finished

  def _can_rejoin(
    self, end: messages.SessionEnd, admission: messages.ServerAdmitted
  ) -> bool:
    """Returns whether the server can rejoin after the end of a session."""
    if not self._is_own or end.kind == 'drained':
      return False
    is_replaced = self._admission not in (None, admission)
    is_used = self._has_orders.is_set() or is_replaced
    return not is_used or self._mirrors is not None

  def _join(self) -> tuple[Stream, messages.ServerAdmitted] | None:
    """Returns a stream to the coordinator, and its admission of this server.

    In a run with mirrors a server waits for its rank as long as another process
    holds it.

    Returns:
      The stream and the admission; None if the run has ended for this process.
    """
    settings, name = self._settings, f'Server {self._index}'
    limit_s = settings.start_s
    if self._admission:  # Else the workers may have found no successor.
      limit_s = min(limit_s, LIMIT * settings.timeout_s)
    deadline = clock.monotonic() + limit_s
    start_s, timeout_s = settings.start_s, settings.timeout_s
    if self._mirrors:  # Another process may coordinate the run by now.
      start_s = timeout_s
      timeout_s /= _ATTEMPTS if self._admission else 1
    while not self._is_over():
      try:
        return join(
          self._coordinator,
          messages.ServerHello(
            *(self._index, settings.process),
            *(settings.fingerprint, settings.versions),
            dict(settings.fields),
          ),
          messages.SERVER_ADMISSION,
          security=settings.security,
          timeout_s=timeout_s,
          start_s=start_s,
        )
      except Refused:
        raise
      except RankHeld as error:
        if not self._mirrors or not self._is_own:
          raise Unmendable(f'{name} gives up: {error}') from error
        deadline = clock.monotonic() + limit_s
      except TransportError as error:
        if not self._mirrors or clock.monotonic() >= deadline:
          raise Unmendable(
            f'{name} has lost the coordinator: {error}'
          ) from error
    return None

  def _prepare(
    self, stream: Stream, admission: messages.ServerAdmitted
  ) -> Server:
    """Returns the server, ready for the orders of a coordinator.

    A coordinator without a mirror has begun from a checkpoint, or from scratch;
    so does the server then, if it has a state of another run of the servers.

    Raises:
      TransportError: If its part of a mirror cannot be fetched.
    """
    source, server = admission.mirror, self._server
    is_other = admission != self._admission or self._has_orders.is_set()
    if server and not source and is_other:
      logging.info('Server %d starts again, without its state.', self._index)
      self._close()
      self._has_orders.clear()
      server, self._left = None, None
    if server is None:
      stream.send(messages.Activity('compiling'))
      server = self._make(self._report, None if source else admission.restore)
      self._server = server
      server.open(self._settings.port)
    if source and self._mirrors:
      part = share_part(self._index)
      stream.send(messages.Activity('fetching its part of a mirror'))
      self._mirrors.fetch(source.number, part, source.addresses)
      left = server.restart(source.number)
      # It may return again before any update.
      self._left = left if self._has_orders.is_set() else self._left
      self._has_orders.clear()
    self._admission = admission
    return server

  def _close(self) -> None:
    if self._server is not None:
      self._server.close(self._settings.timeout_s)

  def _report(
    self, message: messages.ServerReport, body: Iterable[np.ndarray]
  ) -> None:
    if self._stream is None:
      raise Closed('no coordinator has the address of this server')
    parts = list(body)
    size_bytes = sum(part.size for part in parts)
    self._stream.send(message, chunked(parts), size_bytes)

  def _beat(self, now: float) -> messages.ServerHeartbeat:
    server = self._server
    return messages.ServerHeartbeat(now, server.progress if server else None)

  def _order(self, stream: Stream, message: messages.ToServer) -> None:
    if self._server is None:
      raise InvalidMessage('Expected no orders before the address was sent.')
    if isinstance(message, messages.AcceptWorker):
      self._server.accept(message)
      stream.send(messages.WorkerAccepted(message.worker, message.incarnation))
      return
    self._has_orders.set()
    self._server.order(message.sequence, message.orders)
