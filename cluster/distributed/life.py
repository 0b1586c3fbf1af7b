"""A life of a worker: its stream to the lead, first word to last."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Self

from cluster.distributed.joining import dropped, join
from cluster.transport.heart import Heart
from cluster.transport.streams import Security


class Life:
  """A context manager, within which the stream is open.

  Attributes:
    number: Which life of its worker, from 0.
    heart: Of the stream.
  """

  def __init__(
    self,
    lead: str,
    hello: dict[str, Any],
    *,
    security: Security,
    timeout_s: float,
    start_s: float,
    with_beats: Callable[[], dict[str, Any]],
    hung: Callable[[str], None],
    told: Callable[[dict[str, Any]], None],
    ending: Callable[[], None],
  ):
    """Joins the lead.

    Args:
      lead: HOST:PORT.
      hello: What the worker says of itself.
      security: Of all streams.
      timeout_s: Silence after which the lead counts as lost.
      start_s: How long to try to join it.
      with_beats: Returns what every beat says.
      hung: Called with what the lead has said, from another thread, if the
        context does not end then.
      told: Called with what the lead says, from another thread.
      ending: Called when the lead has ended this life, or is lost, from another
        thread: nothing may wait any more.

    Raises:
      TransportError: If it cannot be joined.
    """
    self._control, welcome = join(
      lead, hello, security=security, timeout_s=timeout_s, start_s=start_s
    )
    self.number = welcome['life']
    self._timeout_s = timeout_s
    self._hung = hung
    self._ending = ending
    self._heeded = threading.Event()
    self.stack = contextlib.ExitStack()
    self.stack.callback(dropped, self._control)
    self.heart = Heart(
      self._control,
      timeout_s=timeout_s,
      ending=self._cut,
      told=told,
      with_beats=with_beats,
    )

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *exception: Any) -> None:
    self._heeded.set()
    self.stack.close()

  def say(self, header: dict[str, Any]) -> None:
    """Tells the lead something, unless it has ended this life."""
    if not self.heart.ended.is_set():
      self._control.send(header)

  def _cut(self) -> None:
    """Lets nothing wait any more; in a thread of the heart."""
    self._ending()
    if not self._heeded.wait(self._timeout_s):
      self._hung(self.heart.verdict['end'])
