"""Whether the other end still lives, and what time it is there."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from cluster.network.streams import Stream, TransportError

BEATS = 5  # Of a process, in the time after which it counts as lost.


@contextlib.contextmanager
def within(stream: Stream, limit_s: float) -> Iterator[None]:
  """Cancels a stream if the body takes longer, which so has an end."""
  timer = threading.Timer(limit_s, stream.cancel, ['no answer in time'])
  timer.start()
  try:
    yield
  finally:
    timer.cancel()


class Heart:
  """Keeps a worker's or a server's stream to the coordinator alive.

  The coordinator answers each beat with its clock: the answer that came back fastest
  tells how far the clocks are apart (as in NTP, RFC 5905).

  Attributes:
    ended: Set once the coordinator has said that it is over, or is lost.
    verdict: What it has said; 'lost' if nothing.
  """

  def __init__(
    self,
    stream: Stream,
    *,
    timeout_s: float,
    ending: Callable[[], None],
    told: Callable[[Any], None] | None = None,
    with_beats: Callable[[], dict[str, Any]] = dict,
  ):
    """Starts to beat.

    Args:
      stream: To the coordinator.
      timeout_s: Silence of the coordinator after which it counts as lost.
      ending: Called when `ended` is set, from another thread.
      told: Called with every message that is neither an answer nor an end.
      with_beats: Returns what every beat says beside the time.
    """
    self.ended = threading.Event()
    self.verdict: dict[str, Any] = {'end': 'lost', 'reason': ''}
    self._stream = stream
    self._timeout_s = timeout_s
    self._ending = ending
    self._told = told
    self._with_beats = with_beats
    self._unanswered = 0  # Beats.
    self._round_s, self._offset_s = float('inf'), 0.0
    for target in (self._beat, self._listen):
      threading.Thread(target=target, daemon=True).start()

  def lead_time(self, here: float) -> float:
    """Returns what the coordinator's clock said when `time.monotonic` said `here`."""
    return here + self._offset_s

  def _beat(self) -> None:
    while not self.ended.wait(self._timeout_s / BEATS):
      # Beats, not seconds: this process itself may have been stopped.
      self._unanswered += 1
      if self._unanswered >= BEATS:
        reason = f'no answer for {self._timeout_s:g} s'
        self._end({'end': 'lost', 'reason': reason})
        return
      try:
        self._stream.send({'beat': time.monotonic()} | self._with_beats())
      except TransportError:
        return  # Who listens has seen it too, and says why.

  def _listen(self) -> None:
    try:
      self._stream.send({'beat': time.monotonic()} | self._with_beats())
      while True:
        message = self._stream.receive()
        header = message.header
        self._unanswered = 0
        if 'beat' in header:
          self._compare(header['beat'], header['clock'], time.monotonic())
        elif 'end' in header:
          self._end(header)
          return
        elif self._told:
          self._told(header)
    except TransportError as error:
      self._end({'end': 'lost', 'reason': str(error)})

  def _compare(self, sent: float, clock: float, received: float) -> None:
    if received - sent < self._round_s:
      self._round_s = received - sent
      self._offset_s = clock - (sent + received) / 2

  def _end(self, verdict: dict[str, Any]) -> None:
    if not self.ended.is_set():
      self.verdict = verdict
      self.ended.set()
      self._ending()
