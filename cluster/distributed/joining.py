"""How a process comes to the lead, and how long it tries."""

import time
from typing import Any

from absl import logging

from cluster.transport.heart import within
from cluster.transport.streams import (
  Refused,
  Security,
  Stream,
  TransportError,
  connect,
)


def join(
  address: str,
  hello: dict[str, Any],
  *,
  security: Security,
  timeout_s: float,
  start_s: float,
) -> tuple[Stream, dict[str, Any]]:
  """Returns a stream to the lead, and what the lead says first.

  It tries again and again, as links may be down, and the lead may start later
  or again.  No attempt is long: TCP waits ever longer between its own.

  Args:
    address: HOST:PORT of the lead.
    hello: What this process says of itself.
    security: Of the stream.
    timeout_s: Of an attempt.
    start_s: Of all of them.

  Raises:
    Refused: If the lead refuses this process, for good.
    TransportError: If there was no answer in time; says what went wrong last.
  """
  deadline = time.monotonic() + start_s
  while True:
    limit_s = max(min(timeout_s, deadline - time.monotonic()), 0.0)
    try:
      stream = connect(address, hello, security, limit_s)
      return stream, _greeted(stream, timeout_s)
    except Refused:
      raise
    except TransportError as error:
      if time.monotonic() >= deadline:
        raise
      logging.info('Still waiting for the lead: %s', error)


def dropped(stream: Stream) -> None:
  """Closes a stream without waiting for the other end."""
  stream.cancel()
  stream.close()


def _greeted(stream: Stream, limit_s: float) -> dict[str, Any]:
  try:
    with within(stream, limit_s):
      greeting = stream.receive().header
    if 'refused' in greeting:
      raise Refused(greeting['refused'])
    return greeting
  except TransportError:
    dropped(stream)
    raise
