"""A server in another process than the coordinator's, from its start to its end."""

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
  TransportError,
  chunked,
)
from cluster.parameter_server.server import Report, Server
from cluster.process.exits import Unmendable


def host(
  index: int,
  make: Callable[[Report, tuple[int, int] | None], Server],
  coordinator: str,
  settings: Settings,
) -> bool:
  """Runs a server other than the coordinator's, until the coordinator ends it.

  Until it gets its first order it comes again whenever the coordinator is lost.

  Args:
    index: Which server.
    make: Creates it, given the function for its reports and the checkpoint to
      resume from.
    coordinator: HOST:PORT of the coordinator.
    settings: What all processes agree on.

  Returns:
    Whether the run has finished; else it goes on from a checkpoint one day.

  Raises:
    Unmendable: If the coordinator is lost, or another process holds the rank, for too
      long.
    Refused: If the coordinator refuses this server.
  """
  address, security = settings.address, settings.security
  timeout_s, start_s = settings.timeout_s, settings.start_s
  hello = messages.ServerHello(index, settings.process, settings.fingerprint)
  server: Server | None = None
  first: messages.ServerAdmitted | None = None
  ordered = threading.Event()

  def report(
    message: messages.ServerReport, body: Iterable[np.ndarray]
  ) -> None:
    parts = list(body)
    stream.send(message, chunked(parts), sum(part.size for part in parts))

  def beat(now: float) -> messages.ServerHeartbeat:
    return messages.ServerHeartbeat(now, server.progress if server else None)

  def order(message: messages.Orders) -> None:
    if server is None:
      raise Corrupt('Expected orders after the address was sent, got some.')
    ordered.set()
    server.order(message.sequence, message.orders)

  while True:
    try:
      stream, admission = join(
        coordinator,
        hello,
        messages.SERVER_ADMISSION,
        security=security,
        timeout_s=timeout_s,
        start_s=start_s,
      )
    except Refused:
      raise
    except RankHeld as error:
      raise Unmendable(f'Server {index} gives up: {error}') from error
    except TransportError as error:
      raise Unmendable(
        f'Server {index} has lost the coordinator: {error}'
      ) from error
    heartbeat = Heartbeat(
      stream,
      schema=messages.TO_SERVER,
      timeout_s=timeout_s,
      beat=beat,
      receive=order,
      on_end=lambda: None,
    )
    with contextlib.suppress(TransportError):  # The heartbeat meets it, too.
      if server is None:
        stream.send(messages.Activity('compiling'))
        server, first = make(report, admission.restore), admission
        server.open(address, security)
      if admission == first:
        stream.send(messages.ServerAddress(server.address))
        heartbeat.ended.wait()
    if heartbeat.end.kind != 'lost':
      break
    stream.cancel()  # Orders may wait for it to take in a snapshot.
    if ordered.is_set() or admission != first:
      server.close(timeout_s)
      reason = heartbeat.end.reason or 'another one is there'
      raise Unmendable(f'Server {index} has lost the coordinator: {reason}')
    stream.close()
    logging.info('Server %d comes again: %s', index, heartbeat.end.reason)
  server.close(timeout_s)
  stream.close()
  return heartbeat.end.is_finished
