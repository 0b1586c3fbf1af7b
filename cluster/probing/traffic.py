"""What goes over the connections of a run: workers tell it, the coordinator adds.

Workers tell what they have sent from the start, and for how long something was
on its way to each other worker.  Bytes over these seconds, from one telling to
another, are the rate of a connection while it had something to send, whatever
else the worker was doing.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

from cluster.network.errors import TransportError
from cluster.network.messages import Traffic, TrafficReport
from cluster.probing.repacking import Ends
from cluster.traffic import Sent

PERIOD_S = 2.0  # From one telling to the next, and least of a window.
_ITERATIONS = 4  # Of a window, at least.
_LEAST_S = 0.02  # Of something on its way; rates of less show nothing.


def rows(traffic: Mapping[int, Any]) -> Traffic:
  """Returns what a worker tells of its traffic, as of an `Executor`."""
  return [
    (worker, usage.sent_bytes, usage.busy_s)
    for worker, usage in traffic.items()
  ]


class Telling:
  """Tells the coordinator of a worker's traffic, in a thread; a context manager."""

  def __init__(
    self,
    traffic: Callable[[], Mapping[int, Any]],
    say: Callable[[TrafficReport], None],
    period_s: float = PERIOD_S,
  ):
    """Tells nothing yet.

    Args:
      traffic: Of an `Executor`.
      say: Tells the coordinator.
      period_s: From one telling to the next.
    """
    self._traffic, self._say, self._period_s = traffic, say, period_s
    self._over = threading.Event()

  def __enter__(self) -> Self:
    threading.Thread(target=self._run, daemon=True).start()
    return self

  def __exit__(self, *exception: object) -> None:
    self._over.set()

  def _run(self) -> None:
    while not self._over.wait(self._period_s):
      try:
        self._say(TrafficReport(rows(self._traffic())))
      except TransportError:
        return  # Who listens has seen it too, and says why.


class Windows:
  """Makes rates of what workers tell; for the thread of the coordinator."""

  def __init__(self) -> None:
    """Begins the first window when somebody tells something."""
    self._now: dict[int, dict[int, Sent]] = {}  # By sender and receiver.
    self._start: dict[int, dict[int, Sent]] = {}
    self._since: float | None = None
    self._told: set[int] = set()
    self._iterations = 0

  def clear(self) -> None:
    """What was told belongs to no window: another forest runs."""
    self._since, self._iterations = None, 0
    self._told.clear()

  def told(self, worker: int, sent: Traffic) -> None:
    """Takes in what a worker has sent so far."""
    self._now[worker] = {
      peer: Sent(size_bytes, busy_s) for peer, size_bytes, busy_s in sent
    }
    self._told.add(worker)

  def iterated(
    self, now_s: float, members: tuple[int, ...]
  ) -> dict[Ends, float] | None:
    """An iteration has ended; returns the rates of a window that does so, too.

    Args:
      now_s: Seconds of the run.
      members: Who took part.
    """
    self._iterations += 1
    whole = self._told >= {*members}
    if self._since is None:
      if whole:  # Nobody's first telling is of before.
        self._begin(now_s)
      return None
    long = now_s - self._since >= PERIOD_S and self._iterations >= _ITERATIONS
    if not (long and whole):
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
    self._told.clear()
