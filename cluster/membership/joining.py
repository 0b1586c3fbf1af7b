"""Connects a process to the coordinator, with retries and backoff.

A process may start before the coordinator, lose its link, or find its rank held
by a process that is about to end.  All of this is retried until a deadline.
"""

import random
from collections.abc import Callable
from typing import TypeVar

from absl import logging

from cluster.network.heartbeat import within
from cluster.network.messages import (
  RankTaken,
  Rejected,
  Schema,
  ServerHello,
  WorkerHello,
)
from cluster.network.streams import (
  Refused,
  Security,
  Stream,
  TransportError,
  connect,
)
from system import clock

_BACKOFF_S = 0.2  # Longest first wait; doubles with each attempt.
_LEAST_S = 0.06  # Of an attempt: a shorter one would fail without waiting.
_LOOK_S = 0.3  # Between two looks for the coordinator's address.
_LEAVING = 3  # Timeouts for which a process tries that wants to leave.
_LOG_INTERVAL_S = 30.0  # Between two lines on a rank that is held.

T = TypeVar('T')


class RankHeld(TransportError):
  """Raised if another live process holds the rank of this process."""


def join(
  address: str | Callable[[], str],
  hello: WorkerHello | ServerHello,
  schema: Schema[T | RankTaken | Rejected],
  *,
  security: Security,
  timeout_s: float,
  start_s: float,
  is_leaving: Callable[[], bool] = lambda: False,
) -> tuple[Stream, T]:
  """Returns a stream to the coordinator, and its admission of this process.

  Retries until `start_s` have passed: a link may be down, the coordinator may
  start later or restart, and another process that holds the rank may end.  Each
  attempt is short, because TCP doubles the time between its own retries.  A
  process that wants to leave the run retries for at most 3 `timeout_s` more.

  If the coordinator was reached but did not admit the process, the next attempt
  waits.  The wait is drawn uniformly from the upper half of [0, b].  b is 0.2 s
  at first and doubles with each such attempt, up to `timeout_s` / 2.  So
  processes that started together do not retry together.

  Args:
    address: HOST:PORT of the coordinator, or a function that returns it for
      each attempt, and every 0.3 s while nothing listens there.
    hello: Request for admission.
    schema: Answers of the coordinator.
    security: Credentials of the stream.
    timeout_s: Limit of one attempt, seconds.
    start_s: Limit of all attempts, seconds.
    is_leaving: Returns whether this process wants to leave the run.

  Raises:
    Refused: If the coordinator rejects this process permanently.
    RankHeld: If another process holds the rank at the last attempt.
    TransportError: If the last attempt failed otherwise; says why.
  """
  deadline = clock.monotonic() + start_s
  backoff_s, log_at = _BACKOFF_S, 0.0
  before: TransportError | None = None
  may_shorten = True
  while True:
    if may_shorten and is_leaving():
      may_shorten = False
      deadline = min(deadline, clock.monotonic() + _LEAVING * timeout_s)
    limit_s = max(min(timeout_s, deadline - clock.monotonic()), 0.0)
    wait_s, stream = 0.0, None
    where = address if isinstance(address, str) else address()
    is_there = _Address(address, where).is_unchanged
    try:
      stream = connect(where, hello, security, limit_s, waits=is_there)
      return stream, _receive_admission(stream, schema, timeout_s)
    except Refused:
      raise
    except TransportError as error:
      if stream is not None:  # An attempt that fails to connect has waited.
        wait_s = min(backoff_s, timeout_s / 2) * random.uniform(0.5, 1.0)
        backoff_s *= 2
      now = clock.monotonic()
      if now + max(wait_s, _LEAST_S) >= deadline:
        # The last attempt may have had too little time for any answer.
        if isinstance(before, RankHeld) and limit_s < timeout_s:
          raise before from error
        raise
      before = error
      if not isinstance(error, RankHeld):
        logging.info('Still waiting for the coordinator: %s', error)
      elif now >= log_at:
        log_at = now + _LOG_INTERVAL_S
        left_s = deadline - now
        logging.warning('Tries again for up to %.0f s: %s', left_s, error)
    clock.sleep(wait_s)


class _Address:
  """The address at which an attempt looks for the coordinator."""

  def __init__(self, address: str | Callable[[], str], where: str):
    self._address, self._where = address, where
    self._look_at = clock.monotonic() + _LOOK_S

  def is_unchanged(self) -> bool:
    """Returns whether the coordinator has not moved; looks every `_LOOK_S`."""
    now = clock.monotonic()
    if isinstance(self._address, str) or now < self._look_at:
      return True
    is_same = self._address() == self._where
    self._look_at = clock.monotonic() + _LOOK_S
    return is_same


def drop(stream: Stream) -> None:
  """Cancels and closes a stream, without waiting for the other end."""
  stream.cancel()
  stream.close()


def _receive_admission(
  stream: Stream, schema: Schema[T | RankTaken | Rejected], limit_s: float
) -> T:
  """Returns the coordinator's admission; closes the stream on errors.

  Raises:
    Refused: If the coordinator rejects this process permanently.
    RankHeld: If another process holds the rank.
    TransportError: If there is no answer within `limit_s` seconds.
  """
  try:
    with within(stream, limit_s):
      answer = stream.receive(schema).header
    if isinstance(answer, Rejected):
      raise Refused(answer.reason)
    if isinstance(answer, RankTaken):
      raise RankHeld(answer.reason)
    admission: T = answer
    return admission
  except TransportError:
    drop(stream)
    raise
