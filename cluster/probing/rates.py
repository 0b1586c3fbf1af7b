"""Rates of connections, from reports of the workers that send.

Workers report the bytes that they have sent to each other process since their
start, and the seconds for which some of these were on their way.  The quotient
of two differences is the rate of a connection while it had something to send,
whatever else the worker was doing.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self

from cluster.network import messages
from cluster.network.errors import TransportError
from cluster.network.messages import TrafficReport
from cluster.probing.repacking import Ends
from cluster.traffic import Sent
from system import threads

PERIOD_S = 2.0  # Time between reports, and least length of a window.
_ITERATIONS = 4  # Least number of iterations of a window.
_LEAST_S = 0.02  # Least time of sending in a window that has a rate.


def rows(traffic: Mapping[int, Any]) -> messages.Traffic:
  """Returns a worker's traffic as rows of its reports.

  Args:
    traffic: Usage of the connection to each worker, of an `Executor`.
  """
  return [
    (worker, usage.sent_bytes, usage.busy_s)
    for worker, usage in traffic.items()
  ]


class TrafficReporter:
  """Reports a worker's traffic, in a thread; a context manager."""

  def __init__(
    self,
    traffic: Callable[[], Mapping[int, Any]],
    send: Callable[[TrafficReport], None],
    period_s: float = PERIOD_S,
  ):
    """Creates the reporter, which reports within its context.

    Args:
      traffic: Returns the usage of each connection of an `Executor`.
      send: Sends a message to the coordinator.
      period_s: Time between reports.
    """
    self._traffic, self._send, self._period_s = traffic, send, period_s
    self._over = threads.Event()

  def __enter__(self) -> Self:
    threads.Thread(target=self._run, daemon=True).start()
    return self

  def __exit__(self, *exception: object) -> None:
    self._over.set()

  def _run(self) -> None:
    while not self._over.wait(self._period_s):
      try:
        self._send(TrafficReport(rows(self._traffic())))
      except TransportError:
        return  # The session meets the error, too, and logs it.


class RateWindows:
  """Rates of connections in windows of time; for the coordinator's thread."""

  def __init__(
    self, period_s: float = PERIOD_S, least_iterations: int = _ITERATIONS
  ):
    """Creates the rates; the first window begins after the first reports.

    Args:
      period_s: Least length of a window, seconds.
      least_iterations: Least number of iterations of a window.
    """
    self._period_s, self._least_iterations = period_s, least_iterations
    self._now: dict[int, dict[int, Sent]] = {}  # By sender and receiver.
    self._start: dict[int, dict[int, Sent]] = {}
    self._since: float | None = None
    self._reporters: set[int] = set()  # Workers that have reported in it.
    self._iterations = 0

  def clear(self) -> None:
    """Drops the window, as another forest is used from now on."""
    self._since, self._iterations = None, 0
    self._reporters.clear()

  def take(self, worker: int, sent: messages.Traffic) -> None:
    """Records a worker's traffic since its start, from a report."""
    self._now[worker] = {
      peer: Sent(size_bytes, busy_s) for peer, size_bytes, busy_s in sent
    }
    self._reporters.add(worker)

  def end_iteration(
    self, now_s: float, members: tuple[int, ...]
  ) -> dict[Ends, float] | None:
    """Records an iteration, which may be the last of a window.

    Args:
      now_s: Seconds of the run.
      members: Workers that took part.

    Returns:
      Bytes per second of the window, by sender and receiver; None if the window
      has not ended.
    """
    self._iterations += 1
    is_complete = self._reporters >= {*members}
    if self._since is None:
      if is_complete:
        self._begin(now_s)
      return None
    is_long = (
      now_s - self._since >= self._period_s
      and self._iterations >= self._least_iterations
    )
    if not (is_long and is_complete):
      return None
    rates = {}
    for src in members:
      for dst, sent in self._now[src].items():
        before = self._start.get(src, {}).get(dst, Sent(0, 0.0))
        count, busy_s = sent.bytes - before.bytes, sent.busy_s - before.busy_s
        if count > 0 and busy_s >= _LEAST_S:
          rates[src, dst] = count / busy_s
    self._begin(now_s)
    return rates

  def _begin(self, now_s: float) -> None:
    self._start = dict(self._now)
    self._since, self._iterations = now_s, 0
    self._reporters.clear()
