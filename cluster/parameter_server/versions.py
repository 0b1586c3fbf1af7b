"""A server's parts of checkpoints, and the versions that it holds.

A version is held by reference, as arrays do not change.  Other threads copy,
write and send it, so that a slow disk or reader delays no orders.
"""

import contextlib
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from absl import logging

from cluster.network.errors import expect
from cluster.network.messages import ServerReport, ShareSaved, VersionPart
from cluster.network.streams import TransportError, chunked
from learning.shard_codec import byte_views
from outputs import checkpoints, serialization
from system import clock, threads

# Called with a report of a server, and with bytes that belong to it.
Report = Callable[[ServerReport, Iterable[np.ndarray]], None]

# Pause between the messages of a version, in which other threads can send:
# locks are not fair.
_GAP_S = 1e-4
# Body of a message of a version, behind which a heartbeat may wait: 1 s at
# 1 Mbit/s.
PART_BYTES = 2**17


class ShardVersions:
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
      held: Held versions of its share, parameters and statistics, by handle.
      report: Reports to the coordinator; called from many threads.
    """
    self._directory, self._part = directory, part
    self._held = dict(held)
    self._report = report
    self._pool = threads.ThreadPoolExecutor(1, part)
    # How often the questions so far were abandoned.  No answer is on its way to
    # the coordinator while this changes.
    self._abandoned = 0
    self._answering = threads.Lock()

  def hold(self, handle: int, params: Any, stats: Any) -> None:
    """Holds a version under a handle."""
    self._held[handle] = params, stats

  @property
  def held(self) -> dict[int, tuple[Any, Any]]:
    """The held versions, parameters and statistics, by handle."""
    return dict(self._held)

  def restart(self, held: Mapping[int, tuple[Any, Any]]) -> None:
    """Replaces the held versions by those of a mirror, and abandons questions.

    The next coordinator has not asked them, and may use their numbers again.
    """
    self.abandon()
    self._held = dict(held)

  def abandon(self) -> None:
    """Drops the answers to all questions so far; none follows afterwards."""
    with self._answering:
      self._abandoned += 1

  def free(self, handle: int) -> None:
    """Frees a held version.

    Raises:
      InvalidMessage: If there is no such version.
    """
    self._find(handle)
    del self._held[handle]

  def _find(self, handle: int) -> tuple[Any, Any]:
    """Returns a held version; raises InvalidMessage if there is none."""
    expect(handle in self._held, 'version', f'one of {[*self._held]}', handle)
    return self._held[handle]

  def send(self, number: int, held: int) -> None:
    """Sends a held version to the coordinator, in a thread.

    Other messages may be sent between its parts.

    Args:
      number: Number of the coordinator's question.
      held: Handle of the version.

    Raises:
      InvalidMessage: If there is no such version.
    """
    arguments = self._abandoned, number, byte_views(self._find(held))
    threads.Thread(target=self._send, args=arguments, daemon=True).start()

  def save(self, number: int, step: int, state: dict[str, Any]) -> None:
    """Writes a part of a checkpoint in a thread, and reports the outcome.

    Args:
      number: Number of the coordinator's question.
      step: Number of the checkpoint.
      state: State of the learner.
    """
    tree = serialization.freeze(state | {'held': self._held})
    written, asked = self._pool.submit(self._write, step, tree), self._abandoned
    written.add_done_callback(
      lambda done: self._report_saved(asked, number, done)
    )

  def _write(self, step: int, tree: Callable[[], serialization.Tree]) -> None:
    checkpoints.write(self._directory, step, self._part, tree())

  def _send(self, asked: int, number: int, arrays: list[np.ndarray]) -> None:
    part = VersionPart(number, sum(array.size for array in arrays))
    with contextlib.suppress(TransportError):  # The coordinator notices, too.
      self._answer(asked, part)
      for chunk in chunked(arrays, PART_BYTES):
        if not self._answer(asked, part, [chunk]):
          return
        clock.sleep(_GAP_S)

  def _answer(
    self, asked: int, answer: ServerReport, body: Iterable[np.ndarray] = ()
  ) -> bool:
    """Reports an answer, unless its question was abandoned; returns whether.

    Args:
      asked: Value of `_abandoned` when the question came.
      answer: The answer.
      body: Bytes that belong to it.
    """
    with self._answering:
      if asked < self._abandoned:
        return False
      self._report(answer, body)
    return True

  def _report_saved(
    self, asked: int, number: int, written: threads.Future[None]
  ) -> None:
    reason = None
    if error := written.exception():
      logging.error('A part of a checkpoint could not be written: %s', error)
      reason = f'{type(error).__name__}: {error}'
    with contextlib.suppress(TransportError):
      self._answer(asked, ShareSaved(number, reason))
