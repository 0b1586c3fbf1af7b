"""A session of a worker: its control stream to the coordinator."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

from absl import logging

from cluster.membership.joining import RankHeld, dropped, join
from cluster.membership.process import Settings
from cluster.network.errors import Refused, TransportError
from cluster.network.heartbeat import BEATS, Heart
from cluster.process.exits import LOST


class Session:
  """A context manager, within which the control stream is open.

  Attributes:
    number: Incarnation number of the worker's process, from 0.
    heart: Heartbeat on the stream.
    stack: Resources that are closed with the session.
  """

  def __init__(
    self,
    coordinator: str,
    index: int,
    settings: Settings,
    *,
    with_beats: Callable[[], dict[str, Any]],
    hung: Callable[[str], None],
    told: Callable[[dict[str, Any]], None],
    ending: Callable[[], None],
    deaf: Callable[[], bool] = lambda: False,
  ):
    """Creates the session: connects to the coordinator.

    Args:
      coordinator: HOST:PORT of the coordinator.
      index: Rank of the worker.
      settings: Settings of all processes of the run.
      with_beats: Returns the payload of every heartbeat.
      hung: Called from another thread if the context does not exit after the
        session has ended, with the coordinator's reason: 'left', 'over' or
        'lost'.
      told: Called with every other message of the coordinator, from another
        thread.
      ending: Called from another thread once the coordinator has ended the
        session, or is lost; must unblock everything that the context waits for.
      deaf: Returns whether the context waits for what `ending` cannot unblock;
        `hung` is then called sooner, unless the run has finished: the other
        workers end such a wait then.

    Raises:
      TransportError: If the coordinator cannot be reached.
    """
    timeout_s = settings.timeout_s
    self._control, welcome = join(
      coordinator,
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
    """Sends a message to the coordinator, unless the session has ended."""
    if not self.heart.ended.is_set():
      self._control.send(header)

  @contextlib.contextmanager
  def lived(self) -> Iterator[None]:
    """Suppresses transport errors at the end of the session.

    Raises:
      Refused: If the coordinator or a server has refused this worker.
    """
    try:
      yield
    except Refused:
      raise
    except TransportError as error:
      # The coordinator may know the reason, and sends it.
      self.heart.ended.wait(self._timeout_s / BEATS)
      logging.info('Worker %d: %s', self._index, error)

  def _cut(self) -> None:
    """Unblocks the context, in the heartbeat's thread, once the session ends.

    Calls `hung` if the context has not exited within `timeout_s`, or, if it is
    `deaf`, within a heartbeat.
    """
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
  """Turns fatal errors of a worker into exit codes.

  Args:
    index: Rank of the worker.

  Raises:
    SystemExit: With LOST if the coordinator is lost, or another process holds
      the rank, for too long; with 1 if the coordinator refuses this worker.
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
