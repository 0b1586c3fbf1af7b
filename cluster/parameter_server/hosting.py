"""A server in another process than the coordinator's, from its start to its end."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from absl import logging

from cluster.membership.joining import RankHeld, join
from cluster.membership.process import Settings
from cluster.network.heartbeat import Heart
from cluster.network.streams import Refused, TransportError, chunked
from cluster.parameter_server.keeping import Report
from cluster.parameter_server.server import Server
from cluster.process.exits import Unmendable


def host(
  index: int,
  make: Callable[[Report, Mapping[str, Any]], Server],
  coordinator: str,
  settings: Settings,
) -> bool:
  """Runs a server other than the coordinator's, until the coordinator ends it.

  Until it gets its first order it comes again whenever the coordinator is lost.

  Args:
    index: Which server.
    make: Makes it, given how it reports and what the coordinator greets it with.
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
  hello = {
    'server': index,
    'process': settings.process,
    'fingerprint': settings.fingerprint,
  }
  server: Server | None = None
  first: Mapping[str, Any] = {}
  ordered = threading.Event()

  def report(event: dict[str, Any], body: Iterable[np.ndarray]) -> None:
    parts = list(body)
    stream.send(event, chunked(parts), sum(part.size for part in parts))

  def beside() -> dict[str, Any]:
    return {'orders': server.doing} if server else {}

  def order(told: dict[str, Any]) -> None:
    ordered.set()
    server.order(told['sequence'], told['orders'])

  while True:
    try:
      stream, greeting = join(
        coordinator,
        hello,
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
    heart = Heart(
      stream,
      timeout_s=timeout_s,
      ending=lambda: None,
      told=order,
      with_beats=beside,
    )
    with contextlib.suppress(TransportError):  # The heart notices, too.
      if server is None:
        stream.send({'doing': 'compiling'})
        server, first = make(report, greeting), greeting
        server.open(address, security)
      if greeting == first:
        stream.send({'address': server.address})
        heart.ended.wait()
    if heart.verdict['end'] != 'lost':
      break
    stream.cancel()  # Orders may wait for it to take in a snapshot.
    if ordered.is_set() or greeting != first:
      server.close(timeout_s)
      reason = heart.verdict['reason'] or 'another one is there'
      raise Unmendable(f'Server {index} has lost the coordinator: {reason}')
    stream.close()
    logging.info('Server %d comes again: %s', index, heart.verdict['reason'])
  server.close(timeout_s)
  stream.close()
  return heart.verdict['finished']
