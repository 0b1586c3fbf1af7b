"""What a server keeps: parts of checkpoints, and versions that will be read.

Both are only referred to at first: arrays do not change.  Other threads copy,
write and send them, so that a slow disk or reader holds up no orders.
"""

import contextlib
import pathlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from absl import logging

from cluster.network.messages import ServerReport, ShareSaved, VersionPart
from cluster.network.streams import TransportError, chunked
from outputs import checkpoints, stores
from wire.flat import views

# Called with a report of a server, and with bytes that belong to it.
Report = Callable[[ServerReport, Iterable[np.ndarray]], None]

# Between messages that others may come between: locks are not fair.
_GAP_S = 1e-3


class Keeping:
  """Keeps what one server is told to keep."""

  def __init__(
    self,
    directory: pathlib.Path,
    *,
    held: Mapping[int, tuple[Any, Any]],
    report: Report,
    before: Callable[[int], None] = lambda step: None,
  ):
    """Writes nothing yet.

    Args:
      directory: Of the server's parts of checkpoints.
      held: Versions of its share, parameters and statistics, by number.
      report: Tells the coordinator what it has asked for; called from many threads.
      before: Called with the number of a checkpoint, before it is written.
    """
    self._before = before
    self._directory = directory
    self._held = dict(held)
    self._report = report
    self._pool = ThreadPoolExecutor(1, directory.name)

  def hold(self, held: int, params: Any, stats: Any) -> None:
    """Keeps a version under a number."""
    self._held[held] = params, stats

  def drop(self, held: int) -> None:
    """Forgets it."""
    del self._held[held]

  def send(self, number: int, held: int) -> None:
    """Reports a version, in messages that others may come between.

    Args:
      number: Of the coordinator's question.
      held: The version's.
    """
    told = number, views(self._held[held])
    threading.Thread(target=self._tell, args=told, daemon=True).start()

  def save(self, number: int, step: int, state: dict[str, Any]) -> None:
    """Writes a part of a checkpoint and reports that it is safe, or why not.

    Args:
      number: Of the coordinator's question.
      step: Of the checkpoint.
      state: The learner's.
    """
    tree = checkpoints.frozen(state | {'held': self._held})
    path = self._directory / str(step)
    saved = self._pool.submit(self._write, path, step, tree)
    saved.add_done_callback(lambda saved: self._saved(number, saved))

  def _write(
    self, path: pathlib.Path, step: int, tree: Callable[[], checkpoints.Tree]
  ) -> None:
    self._before(step)
    stores.write(path, tree())

  def _tell(self, number: int, whole: list[np.ndarray]) -> None:
    part = VersionPart(number, sum(each.size for each in whole))
    # The coordinator knows whom it has lost.
    with contextlib.suppress(TransportError):
      self._report(part, ())
      for chunk in chunked(whole):
        self._report(part, [chunk])
        time.sleep(_GAP_S)

  def _saved(self, number: int, saved: Future) -> None:
    reason = None
    if error := saved.exception():
      logging.error('A part of a checkpoint could not be written: %s', error)
      reason = f'{type(error).__name__}: {error}'
    with contextlib.suppress(TransportError):
      self._report(ShareSaved(number, reason), ())
