"""The coordinator's measuring of the links between the workers of a run.

Orders and answers use the streams that workers have to the coordinator.  A
thread waits for the answers, so that the coordinator's event loop still notices
a worker that is lost meanwhile.
"""

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from cluster.membership.events import Event
from cluster.network.errors import InvalidMessage, expect
from cluster.network.messages import (
  CloseEndpoint,
  HostDescription,
  OpenEndpoint,
  OpenTransfers,
  Probe,
  ProbeAnswer,
  ProbeOrder,
  Rates,
  TransferFor,
)
from cluster.probing import file_format, transfers, trials
from cluster.probing.cache import LinkCache
from cluster.probing.events import LinksMeasured
from cluster.process.exits import Unmendable
from system import clock, threads

_MOST_RATE = 1e15  # Bytes per second, or seconds.
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
    send: Callable[[int, ProbeOrder], None],
    put_event: Callable[[Event], None],
    timeout_s: float,
  ):
    """Creates the surveyor; measures nothing yet.

    Args:
      cache: Cache of results.
      send: Sends a message to a worker.
      put_event: Puts an event into the queue of the coordinator.
      timeout_s: Silence after which a process counts as lost.
    """
    self._cache, self._send, self._put_event = cache, send, put_event
    self._timeout_s = timeout_s
    self._survey: _Survey | None = None
    self._failed = 0

  @property
  def busy(self) -> bool:
    """True while links are measured."""
    return self._survey is not None

  def read(self) -> dict[str, Any] | None:
    """Returns the run's last measurement; None if links were not measured.

    Raises:
      OSError: If it cannot be read.
    """
    return self._cache.read()

  def begin(self, members: list[int], *, skips_cache: bool = False) -> None:
    """Begins to measure, unless a survey is under way.

    The result is an event `LinksMeasured`, which `finish` takes.

    Args:
      members: Ranks of at least two workers, ascending.
      skips_cache: Whether to measure even if the cache has a result.
    """
    if self._survey:
      return
    self._survey = _Survey(
      members,
      send=self._send,
      cache=self._cache,
      skips_cache=skips_cache,
      timeout_s=self._timeout_s,
    )
    self._survey.start(self._put_event)

  def check_answer(self, worker: int, answer: ProbeAnswer) -> None:
    """Checks a worker's answer to an order of the survey.

    Raises:
      InvalidMessage: If it is not one to the order.
    """
    if self._survey:
      self._survey.check_answer(worker, answer)

  def take_answer(self, worker: int, answer: ProbeAnswer) -> None:
    """Handles a worker's answer to an order of the survey."""
    if self._survey:
      self._survey.take_answer(worker, answer)

  def lose(self, index: int, reason: str) -> None:
    """Ends the survey, as a worker is lost."""
    if self._survey:
      self._survey.lose(index, reason)

  def finish(
    self, event: LinksMeasured, *, needed: bool = True
  ) -> Mapping[str, Any] | None:
    """Ends a survey; returns its measurement of links.

    Args:
      event: The result.
      needed: Whether the run cannot continue without a result.

    Returns:
      Content of a file of links; None if the survey has failed.

    Raises:
      Unmendable: If the survey is needed and has failed again though no worker
        was lost; gives the reason.
    """
    self._survey = None
    found = event.content
    if found is None:
      self._failed = 0 if event.is_lost else self._failed + 1
      message = f'Links could not be measured: {event.problem}'
      if needed and self._failed >= _TRIES:
        raise Unmendable(message)
      logging.warning('%s', message)
      return None
    self._failed = 0
    path = self._cache.write(found)
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


class _Lost(Exception):
  """Raised if a worker is lost during a survey; names it."""


class _Survey:
  """A survey of all links, from its first order to the result."""

  def __init__(
    self,
    members: Sequence[int],
    *,
    send: Callable[[int, ProbeOrder], None],
    cache: LinkCache,
    skips_cache: bool,
    timeout_s: float,
  ):
    """Creates the survey; sends no order yet.

    Args:
      members: Ranks of the workers, ascending.
      send: Sends a message to one of them.
      cache: Cache of results.
      skips_cache: Whether to measure even if the cache has a result.
      timeout_s: Silence after which a process counts as lost.
    """
    self._members = tuple(members)
    self._send, self._cache, self._timeout_s = send, cache, timeout_s
    self._skips_cache = skips_cache
    # The number of the orders that are being executed, and the orders, by
    # worker, which change together; and the processes from which each worker
    # receives in the test.
    self._asked: tuple[int, Mapping[int, Probe]] = -1, {}
    self._senders: dict[int, Sequence[int]] = {}
    # Answers by worker, or a text about the loss of one.
    self._answers: threads.SimpleQueue[tuple[int, ProbeAnswer] | str] = (
      threads.SimpleQueue()
    )

  def start(self, done: Callable[[LinksMeasured], None]) -> None:
    """Measures in a thread.

    Args:
      done: Called with the result.
    """
    threads.Thread(target=self._run, args=[done], daemon=True).start()

  def check_answer(self, worker: int, answer: ProbeAnswer) -> None:
    """Checks a worker's answer: see `Surveyor`; late ones are ignored."""
    number, orders = self._asked
    if answer.number != number or answer.problem:
      return
    order = orders.get(worker)
    expect(order is not None, 'worker', f'one of {self._members}', worker)
    if isinstance(order, OpenEndpoint):
      host = answer.answer
      valid = isinstance(host, HostDescription) and host.port > 0
      expect(valid, 'answer', 'a host and its port', host)
      return
    peers: Sequence[int] = ()
    if isinstance(order, OpenTransfers) and order.pings:
      peers = order.receivers
    elif isinstance(order, TransferFor):
      peers = self._senders[worker]
    given = answer.answer
    if given is None or isinstance(given, HostDescription):
      raise InvalidMessage(f'answer: expected rates, got {given}')
    found = sorted(peer for peer, _ in given)
    expect(found == sorted(peers), 'answer', f'rates of {[*peers]}', found)
    values = [value for _, value in given]
    valid = all(0.0 <= value < _MOST_RATE for value in values)
    expect(valid, 'answer', f'numbers of 0 to {_MOST_RATE:g}', values)

  def take_answer(self, worker: int, answer: ProbeAnswer) -> None:
    """Queues a worker's answer for the survey's thread; from any thread."""
    self._answers.put((worker, answer))

  def lose(self, index: int, reason: str) -> None:
    """Ends the survey, as a worker is lost; from any thread."""
    self._answers.put(f'worker {index} is lost: {reason}')

  def ask(
    self, orders: Sequence[Probe], *, limit_s: float
  ) -> list[HostDescription | Rates]:
    """Returns the answers of all members: see `trials.ProbeClient`.

    Raises:
      Failure: If a member cannot execute its order, or does not answer in time.
      _Lost: If a member is lost.
    """
    number = next(_numbers)
    asked = dict(zip(self._members, orders, strict=True))
    self._senders |= {
      index: order.senders
      for index, order in asked.items()
      if isinstance(order, OpenTransfers)
    }
    self._asked = number, asked
    for index, order in asked.items():
      self._send(index, ProbeOrder(number, order))
    deadline = clock.monotonic() + limit_s + 2 * self._timeout_s
    answers: dict[int, HostDescription | Rates | None] = {}
    problems: dict[int, str] = {}
    while len(answers) < len(self._members):
      received = self._next(deadline)
      if received is None:
        missing = [k for k in self._members if k not in answers]
        raise transfers.Failure(f'no answer of workers {missing} in time')
      worker, answer = received
      if answer.number != number:
        continue  # An answer to a test that has failed.
      answers[worker] = answer.answer
      if answer.problem:
        problems[worker] = answer.problem
      elif answer.answer is None:
        problems[worker] = f'worker {worker}: no answer'
    if problems:
      raise transfers.Failure('; '.join(problems[k] for k in sorted(problems)))
    given = (answers[index] for index in self._members)
    return [answer for answer in given if answer is not None]

  def _next(self, deadline: float) -> tuple[int, ProbeAnswer] | None:
    try:
      wait_s = max(deadline - clock.monotonic(), 0.0)
      answer = self._answers.get(timeout=wait_s)
    except threads.Empty:
      return None
    if isinstance(answer, str):
      raise _Lost(answer)
    return answer

  def _run(self, done: Callable[[LinksMeasured], None]) -> None:
    try:
      result = self._measure()
    except _Lost as error:
      result = LinksMeasured(problem=str(error), is_lost=True)
    except transfers.Failure as error:
      result = LinksMeasured(problem=str(error))
    except Exception as error:  # The coordinator decides what follows.
      logging.exception('Measuring has failed.')
      result = LinksMeasured(problem=repr(error))
    done(result)

  def _measure(self) -> LinksMeasured:
    start = clock.monotonic()
    count = len(self._members)
    try:
      answers = self.ask([OpenEndpoint()] * count, limit_s=0.0)
      hosts: list[Mapping[str, Any]] = [
        _describe(*each) for each in zip(self._members, answers, strict=True)
      ]
      if not self._skips_cache and (known := self._cache.load(hosts)):
        return LinksMeasured(content=known)
      tests = trials.quick(count)
      found = trials.measure(
        self,
        hosts,
        seconds=trials.QUICK_S,
        tolerance=TOLERANCE,
        tests=tests,
        tries=_TEST_TRIES,
        log=logging.info,
      )
    finally:
      for index in self._members:
        self._send(index, ProbeOrder(next(_numbers), CloseEndpoint()))
    written = file_format.content(
      found,
      seconds=trials.QUICK_S,
      streams=1,
      tolerance=TOLERANCE,
      command=' '.join(sys.argv),
    )
    for row, host in zip(written['hosts'], hosts, strict=True):
      row['card'] = host['card']
    written['measured_at'] = clock.wall()
    self._cache.save(hosts, written)
    return LinksMeasured(content=written, took_s=clock.monotonic() - start)


def _describe(worker: int, host: HostDescription | Rates) -> dict[str, Any]:
  """Returns the description of a worker's host, with a name for messages."""
  if not isinstance(host, HostDescription):
    raise transfers.Failure(f'worker {worker} has described no host')
  return {
    'hostname': host.hostname,
    'address': host.address,
    'card': host.card,
    'port': host.port,
    'name': f'worker {worker} at {host.address}',
  }
