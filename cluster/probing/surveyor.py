"""The coordinator's measuring of the links between the workers of a run.

Orders and answers use the streams that workers have to the coordinator.  A
thread waits for the answers, so that the coordinator's event loop still notices
a worker that is lost meanwhile.
"""

import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from cluster.probing import file_format, transfers, trials
from cluster.probing.cache import LinkCache
from cluster.process.exits import Unmendable

TOLERANCE = 0.1  # Relative error of a rate.
_TEST_TRIES = 2  # Attempts of each test, since a busy machine is late at times.
_TRIES = 2  # Attempts of all tests, if no worker was lost meanwhile.
_numbers = itertools.count()


class Surveyor:
  """Measures links, one survey at a time; for the coordinator's thread."""

  def __init__(
    self,
    *,
    cache: LinkCache,
    send: Callable[[int, dict[str, Any]], None],
    tell: Callable[[dict[str, Any]], None],
    timeout_s: float,
  ):
    """Creates the surveyor; measures nothing yet.

    Args:
      cache: Cache of results.
      send: Sends a message to a worker.
      tell: Puts an event into the queue of the coordinator.
      timeout_s: Silence after which a process counts as lost.
    """
    self._cache, self._send, self._tell = cache, send, tell
    self._timeout_s = timeout_s
    self._survey: _Survey | None = None
    self._failed = 0

  @property
  def busy(self) -> bool:
    """True while links are measured."""
    return self._survey is not None

  def begin(self, members: list[int], *, anew: bool = False) -> None:
    """Begins to measure, unless a survey is under way.

    The result is an event 'measured', which `finish` takes.

    Args:
      members: Ranks of at least two workers, ascending.
      anew: Whether to measure even if the cache has a result.
    """
    if self._survey:
      return
    self._survey = _Survey(
      members,
      send=self._send,
      cache=self._cache,
      anew=anew,
      timeout_s=self._timeout_s,
    )
    self._survey.start(
      lambda result: self._tell({'event': 'measured', **result})
    )

  def take_answer(self, event: Mapping[str, Any]) -> None:
    """Takes in the answer of a worker."""
    if self._survey:
      self._survey.take_answer(event)

  def lose(self, index: int, reason: str) -> None:
    """Ends the survey, as a worker is lost."""
    if self._survey:
      self._survey.lose(index, reason)

  def finish(
    self, event: Mapping[str, Any], *, needed: bool = True
  ) -> dict[str, Any] | None:
    """Takes in the result of a survey.

    Args:
      event: Event 'measured'.
      needed: Whether the run cannot continue without a result.

    Returns:
      Content of a file of links; None if the survey has failed.

    Raises:
      Unmendable: If the survey is needed and has failed again though no worker
        was lost; gives the reason.
    """
    self._survey = None
    if problem := event.get('problem'):
      self._failed = 0 if event['lost'] else self._failed + 1
      message = f'Links could not be measured: {problem}'
      if needed and self._failed >= _TRIES:
        raise Unmendable(message)
      logging.warning('%s', message)
      return None
    self._failed = 0
    found: dict[str, Any] = event['content']
    path = self._cache.write(found)
    if event['took_s']:
      logging.info(
        'Links measured in %.1f s: %s; %s',
        event['took_s'],
        file_format.summary(found),
        path,
      )
    else:
      logging.info('Links: %s; %s', file_format.summary(found), path)
    return found


class _Lost(Exception):
  """Raised if a worker is lost during a survey; names it."""


class _Survey:
  """A survey of all links, from its first order to the result."""

  def __init__(
    self,
    members: Sequence[int],
    *,
    send: Callable[[int, dict[str, Any]], None],
    cache: LinkCache,
    anew: bool,
    timeout_s: float,
  ):
    """Creates the survey; sends no order yet.

    Args:
      members: Ranks of the workers, ascending.
      send: Sends a message to one of them.
      cache: Cache of results.
      anew: Whether to measure even if the cache has a result.
      timeout_s: Silence after which a process counts as lost.
    """
    self._members = tuple(members)
    self._send, self._cache, self._timeout_s = send, cache, timeout_s
    self._anew = anew
    self._answers: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()

  def start(self, done: Callable[[dict[str, Any]], None]) -> None:
    """Measures in a thread.

    Args:
      done: Called with `content` of a file of links, and with `took_s`, the
        seconds of measuring, 0 if the cache had it; or with `problem`, a text,
        and `lost`, whether a worker was lost.
    """
    threading.Thread(target=self._run, args=[done], daemon=True).start()

  def take_answer(self, event: Mapping[str, Any]) -> None:
    """Takes in the answer of a worker; from any thread."""
    self._answers.put(event)

  def lose(self, index: int, reason: str) -> None:
    """Ends the survey, as a worker is lost; from any thread."""
    self._answers.put({'lost': f'worker {index} is lost: {reason}'})

  def ask(
    self, orders: Sequence[Mapping[str, Any]], *, limit_s: float
  ) -> list[Any]:
    """Returns the answers of all members: see `trials.Asking`.

    Raises:
      Failure: If a member cannot execute its order, or does not answer in time.
      _Lost: If a member is lost.
    """
    number = next(_numbers)
    for index, order in zip(self._members, orders, strict=True):
      self._send(index, {'measure': {'number': number, 'order': order}})
    deadline = time.monotonic() + limit_s + 2 * self._timeout_s
    answers: dict[int, Any] = {}
    problems: dict[int, str] = {}
    while len(answers) < len(self._members):
      answer = self._next(deadline)
      if answer is None:
        missing = [k for k in self._members if k not in answers]
        raise transfers.Failure(f'no answer of workers {missing} in time')
      if answer['number'] != number:
        continue  # An answer to a test that has failed.
      answers[answer['worker']] = answer['answer']
      if answer['problem']:
        problems[answer['worker']] = answer['problem']
    if problems:
      raise transfers.Failure('; '.join(problems[k] for k in sorted(problems)))
    return [answers[index] for index in self._members]

  def _next(self, deadline: float) -> Mapping[str, Any] | None:
    try:
      wait_s = max(deadline - time.monotonic(), 0.0)
      answer = self._answers.get(timeout=wait_s)
    except queue.Empty:
      return None
    if 'lost' in answer:
      raise _Lost(answer['lost'])
    return answer

  def _run(self, done: Callable[[dict[str, Any]], None]) -> None:
    try:
      result = self._measure()
    except _Lost as error:
      result = {'problem': str(error), 'lost': True}
    except transfers.Failure as error:
      result = {'problem': str(error), 'lost': False}
    except Exception as error:  # The coordinator decides what follows.
      logging.exception('Measuring has failed.')
      result = {'problem': repr(error), 'lost': False}
    done(result)

  def _measure(self) -> dict[str, Any]:
    start = time.monotonic()
    count = len(self._members)
    try:
      hosts = self.ask([{'do': 'open'}] * count, limit_s=0.0)
      for index, host in zip(self._members, hosts, strict=True):
        host['name'] = f'worker {index} at {host["address"]}'
      if not self._anew and (known := self._cache.load(hosts)):
        return {'content': known, 'took_s': 0.0}
      tests = trials.quick(count)
      found = trials.measure(
        self,
        hosts,
        seconds=trials.QUICK_S,
        tolerance=TOLERANCE,
        tests=tests,
        late_s=trials.QUICK_LATE_S,
        tries=_TEST_TRIES,
        tell=logging.info,
      )
    finally:
      for index in self._members:
        order = {'number': next(_numbers), 'order': {'do': 'close'}}
        self._send(index, {'measure': order})
    written = file_format.content(
      found,
      seconds=trials.QUICK_S,
      streams=1,
      tolerance=TOLERANCE,
      command=' '.join(sys.argv),
    )
    for row, host in zip(written['hosts'], hosts, strict=True):
      row['card'] = host['card']
    written['measured_at'] = time.time()
    self._cache.save(hosts, written)
    return {'content': written, 'took_s': time.monotonic() - start}
