"""Has links measured where nobody has said what they are: for the coordinator."""

from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from cluster.membership.events import Event
from cluster.network.messages import ProbeAnswer, ProbeOrder
from cluster.probing import file_format
from cluster.probing.cache import Kept
from cluster.probing.events import LinksMeasured
from cluster.probing.schedule import Survey
from cluster.process.exits import Unmendable

_TRIES = 2  # Of all the tests, if nobody was lost meanwhile.


class Surveyor:
  """Has one measuring done after the other; for the thread of the coordinator.

  Attributes:
    busy: Whether one is under way.
  """

  def __init__(
    self,
    *,
    kept: Kept,
    send: Callable[[int, ProbeOrder], None],
    tell: Callable[[Event], None],
    timeout_s: float,
  ):
    """Measures nothing yet.

    Args:
      kept: Where results are.
      send: Sends a message to a worker.
      tell: Puts an event into the queue of the coordinator.
      timeout_s: Silence after which a process counts as lost.
    """
    self._kept, self._send, self._tell = kept, send, tell
    self._timeout_s = timeout_s
    self._survey: Survey | None = None
    self._failed = 0

  @property
  def busy(self) -> bool:
    """Whether a measuring is under way."""
    return self._survey is not None

  def begin(self, members: list[int], *, anew: bool = False) -> None:
    """Begins to measure, unless that is under way.

    What comes of it is told as an event 'measured': see `ended`.

    Args:
      members: Workers, ascending, at least two.
      anew: Whether what is kept does not count.
    """
    if self._survey:
      return
    self._survey = Survey(
      members,
      send=self._send,
      kept=self._kept,
      anew=anew,
      timeout_s=self._timeout_s,
    )
    self._survey.start(self._tell)

  def answered(self, worker: int, answer: ProbeAnswer) -> None:
    """A worker has answered."""
    if self._survey:
      self._survey.answered(worker, answer)

  def lose(self, index: int, reason: str) -> None:
    """A worker is gone."""
    if self._survey:
      self._survey.lose(index, reason)

  def ended(
    self, event: LinksMeasured, *, needed: bool = True
  ) -> Mapping[str, Any] | None:
    """Returns what was measured: `content` of a file; None if nothing was.

    Args:
      event: That has told of it.
      needed: Whether the run cannot go on without.

    Raises:
      Unmendable: If it is needed and has failed again though nobody was lost;
        says why.
    """
    self._survey = None
    found = event.content
    if found is None:
      self._failed = 0 if event.is_lost else self._failed + 1
      said = f'Links could not be measured: {event.problem}'
      if needed and self._failed >= _TRIES:
        raise Unmendable(said)
      logging.warning('%s', said)
      return None
    self._failed = 0
    path = self._kept.write(found)
    if event.took_s:
      logging.info(
        'Links measured in %.1f s: %s; %s',
        event.took_s,
        file_format.summary(found),
        path,
      )
    else:
      logging.info('Links: %s; %s', file_format.summary(found), path)
    return found
