"""A server's parts of checkpoints, and the versions that it holds.

A version is held by reference, as arrays do not change.  Other threads copy,
write and send it, so that a slow disk or reader delays no orders.
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
from learning.shard_codec import byte_views
from outputs import checkpoints, serialization

# Called with what happened, by name, and with bytes that belong to it.
Report = Callable[[dict[str, Any], Iterable[np.ndarray]], None]

# Pause between the messages of a version, in which other threads can send:
# locks are not fair.
_GAP_S = 1e-3


class Keeping:
  """The checkpoints and held versions of one server."""

  def __init__(
    self,
    directory: pathlib.Path,
    part: str,
    *,
    held: Mapping[int, tuple[Any, Any]],
    report: Report,
  ):
    """Starts the thread that writes; writes nothing yet.

    Args:
      directory: Folder of the run's checkpoints.
      part: Name of the server's part of each.
      held: Held versions of its share, parameters and statistics, by number.
      report: Reports to the coordinator; called from many threads.
    """
    self._directory, self._part = directory, part
    self._held = dict(held)
    self._report = report
    self._pool = ThreadPoolExecutor(1, part)

  def hold(self, held: int, params: Any, stats: Any) -> None:
    """Holds a version under a number."""
    self._held[held] = params, stats

  def drop(self, held: int) -> None:
    """Drops a held version."""
    del self._held[held]

  def send(self, number: int, held: int) -> None:
    """Sends a held version to the coordinator, in a thread.

    Other messages may be sent between its parts.

    Args:
      number: Number of the coordinator's question.
      held: Number of the version.
    """
    told = number, byte_views(self._held[held])
    threading.Thread(target=self._tell, args=told, daemon=True).start()

  def save(self, number: int, step: int, state: dict[str, Any]) -> None:
    """Writes a part of a checkpoint in a thread, and reports the outcome.

    Args:
      number: Number of the coordinator's question.
      step: Number of the checkpoint.
      state: State of the learner.
    """
    tree = serialization.freeze(state | {'held': self._held})
    saved = self._pool.submit(self._write, step, tree)
    saved.add_done_callback(lambda saved: self._saved(number, saved))

  def _write(self, step: int, tree: Callable[[], serialization.Tree]) -> None:
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

  def _saved(self, number: int, saved: Future[None]) -> None:
    told = {'event': 'saved', 'id': number}
    if error := saved.exception():
      logging.error('A part of a checkpoint could not be written: %s', error)
      told['error'] = f'{type(error).__name__}: {error}'
    with contextlib.suppress(TransportError):
      self._report(told, ())
