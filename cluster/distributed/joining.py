"""How a process comes to the lead, and how long it tries."""

import random
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

_BACKOFF_S = 0.2  # Before the second attempt; doubles with each.
_TELL_S = 30.0  # Between two lines that say that the rank is held.


class RankHeld(TransportError):
  """Another process, which is alive, holds the rank of this one."""


def join(
  address: str,
  hello: dict[str, Any],
  *,
  security: Security,
  timeout_s: float,
  start_s: float,
) -> tuple[Stream, dict[str, Any]]:
  """Returns a stream to the lead, and what the lead says first.

  It tries again and again, as links may be down, the lead may start later or
  again, and another process that holds the rank may end.  No attempt is long:
  TCP waits ever longer between its own.  After an answer that is none, or the
  answer that the rank is held, it waits: at first 0.2 s at most, then twice as
  long each time up to half a `timeout_s`, and at random half of that or more,
  so that processes that started together do not come together again.

  Args:
    address: HOST:PORT of the lead.
    hello: What this process says of itself.
    security: Of the stream.
    timeout_s: Of an attempt.
    start_s: Of all of them.

  Raises:
    Refused: If the lead refuses this process, for good.
    RankHeld: If another process still holds its rank in the end.
    TransportError: If there was no answer in time; says what went wrong last.
  """
  deadline = time.monotonic() + start_s
  backoff_s, tell_at = _BACKOFF_S, 0.0
  while True:
    limit_s = max(min(timeout_s, deadline - time.monotonic()), 0.0)
    wait_s, stream = 0.0, None
    try:
      stream = connect(address, hello, security, limit_s)
      return stream, _greeted(stream, timeout_s)
    except Refused:
      raise
    except TransportError as error:
      if stream is not None:  # Who does not answer has been waited for.
        wait_s = min(backoff_s, timeout_s / 2) * random.uniform(0.5, 1.0)
        backoff_s *= 2
      now = time.monotonic()
      if now + wait_s >= deadline:
        raise
      if not isinstance(error, RankHeld):
        logging.info('Still waiting for the lead: %s', error)
      elif now >= tell_at:
        tell_at = now + _TELL_S
        left_s = deadline - now
        logging.warning('Tries again for up to %.0f s: %s', left_s, error)
    time.sleep(wait_s)


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
    if 'held' in greeting:
      raise RankHeld(greeting['held'])
    return greeting
  except TransportError:
    dropped(stream)
    raise
