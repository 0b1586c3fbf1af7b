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

from cluster.network.streams import TransportError, chunked
from outputs import checkpoints, serialization
from wire.flat import views

# Called with what happened, by name, and with bytes that belong to it.
Report = Callable[[dict[str, Any], Iterable[np.ndarray]], None]

# Between messages that others may come between: locks are not fair.
_GAP_S = 1e-3


class Keeping:
  """Keeps what one server is told to keep."""

  def __init__(
    self,
    directory: pathlib.Path,
    part: str,
    *,
    held: Mapping[int, tuple[Any, Any]],
    report: Report,
    before: Callable[[int], None] = lambda step: None,
  ):
    """Writes nothing yet.

    Args:
      directory: Folder of the run's checkpoints.
      part: Name of the server's part of each.
      held: Versions of its share, parameters and statistics, by number.
      report: Tells the coordinator what it has asked for; called from many threads.
      before: Called with the number of a checkpoint, before it is written.
    """
    self._before = before
    self._directory, self._part = directory, part
    self._held = dict(held)
    self._report = report
    self._pool = ThreadPoolExecutor(1, part)

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
    tree = serialization.freeze(state | {'held': self._held})
    saved = self._pool.submit(self._write, step, tree)
    saved.add_done_callback(lambda saved: self._saved(number, saved))

  def _write(
    self, step: int, tree: Callable[[], serialization.Tree]
  ) -> None:
    self._before(step)
    checkpoints.write(self._directory, step, self._part, tree())

  def _tell(self, number: int, whole: list[np.ndarray]) -> None:
    told = {'event': 'snapshot', 'id': number}
    told['size_bytes'] = sum(part.size for part in whole)
    # The coordinator knows whom it has lost.
    with contextlib.suppress(TransportError):
      self._report(told, ())
      for chunk in chunked(whole):
        self._report(told, [chunk])
        time.sleep(_GAP_S)

  def _saved(self, number: int, saved: Future) -> None:
    told = {'event': 'saved', 'id': number}
    if error := saved.exception():
      logging.error('A part of a checkpoint could not be written: %s', error)
      told['error'] = f'{type(error).__name__}: {error}'
    with contextlib.suppress(TransportError):
      self._report(told, ())
