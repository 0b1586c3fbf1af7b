"""A life of a worker: its stream to the lead, first word to last."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

from absl import logging

from cluster.distributed.faults import Faults, Phase
from cluster.distributed.joining import RankHeld, dropped, join
from cluster.distributed.process import Settings
from cluster.transport.errors import Refused, TransportError
from cluster.transport.heart import BEATS, LOST, Heart


class Life:
  """A context manager, within which the stream is open.

  Attributes:
    number: Which life of its worker, from 0: its incarnation number.
    heart: Of the stream.
    stack: What ends with it.
  """

  def __init__(
    self,
    lead: str,
    index: int,
    settings: Settings,
    *,
    with_beats: Callable[[], dict[str, Any]],
    hung: Callable[[str], None],
    told: Callable[[dict[str, Any]], None],
    ending: Callable[[], None],
    deaf: Callable[[], bool] = lambda: False,
  ):
    """Joins the lead.

    Args:
      lead: HOST:PORT.
      index: Of the worker.
      settings: What all processes of the run agree on.
      with_beats: Returns what every beat says.
      hung: Called with what the lead has said, from another thread, if the
        context does not end then.
      told: Called with what the lead says, from another thread.
      ending: Called when the lead has ended this life, or is lost, from another
        thread: nothing may wait any more.
      deaf: Returns whether the context waits all the same; then it is not
        waited for, unless the run has finished, which others end, too.

    Raises:
      TransportError: If it cannot be joined.
    """
    timeout_s = settings.timeout_s
    self._control, welcome = join(
      lead,
      {
        'worker': index,
        'process': settings.process,
        'fingerprint': settings.fingerprint,
      },
      security=settings.security,
      timeout_s=timeout_s,
      start_s=settings.start_s,
    )
    self.number = welcome['life']
    self._index, self._timeout_s = index, timeout_s
    self._hung = hung
    self._ending, self._deaf = ending, deaf
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

  @contextlib.contextmanager
  def lived(self, faults: Faults) -> Iterator[None]:
    """A context that ends well with what the end of this life raises in it.

    Args:
      faults: What goes wrong on purpose.
    """
    try:
      yield
    except Refused:
      raise
    except TransportError as error:
      # The lead knows why, and tells.
      self.heart.ended.wait(self._timeout_s / BEATS)
      logging.info('Worker %d: %s', self._index, error)
    verdict = self.heart.verdict
    logging.info('Worker %d: %s', self._index, verdict)
    if verdict.get('finished'):
      faults.happen(faults.due(self._index, -1, Phase.END))

  def _cut(self) -> None:
    """Lets nothing wait any more; in a thread of the heart."""
    self._ending()
    verdict = self.heart.verdict
    for _ in range(BEATS):
      if self._heeded.wait(self._timeout_s / BEATS):
        return
      if self._deaf() and not verdict.get('finished'):
        self._control.cancel('It waits for others.')
        break
    self._hung(verdict['end'])


@contextlib.contextmanager
def explained(index: int) -> Iterator[None]:
  """Makes codes of exit of what ends a worker for good.

  Args:
    index: Of the worker.

  Raises:
    SystemExit: With LOST if the lead is lost, or another process holds the
      rank, for too long; with 1 if the lead refuses this worker.
  """
  try:
    yield
  except Refused as error:
    sys.exit(f'Refused: {error}')
  except RankHeld as error:
    logging.error('Worker %d gives up: %s', index, error)
    sys.exit(LOST)
  except TransportError as error:
    logging.error('Worker %d has lost the cluster: %s', index, error)
    sys.exit(LOST)
