"""Measuring the links between the workers of a run, as its coordinator has it done.

Orders and answers go over the streams that workers have to the coordinator; a thread
of its own waits for the answers, so that the coordinator still notices who is gone.
"""

import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from cluster.network.messages import (
  CloseEndpoint,
  HostDescription,
  OpenEndpoint,
  Probe,
  ProbeAnswer,
  ProbeOrder,
  Rates,
)
from cluster.probing import file_format, transfers, trials
from cluster.probing.cache import Kept
from cluster.probing.events import LinksMeasured

TOLERANCE = 0.1  # Relative error of a rate.
_TRIES = 2  # Of each test, since a busy machine is late for a while.
_numbers = itertools.count()


class Lost(Exception):
  """A worker is gone; says which."""


class Survey:
  """One measuring, from its first order to the result."""

  def __init__(
    self,
    members: Sequence[int],
    *,
    send: Callable[[int, ProbeOrder], None],
    kept: Kept,
    anew: bool,
    timeout_s: float,
  ):
    """Orders nothing yet.

    Args:
      members: Workers, ascending.
      send: Sends a message to one of them.
      kept: Where results are.
      anew: Whether what is kept does not count.
      timeout_s: Silence after which a process counts as lost.
    """
    self._members = tuple(members)
    self._send, self._kept, self._timeout_s = send, kept, timeout_s
    self._anew = anew
    self._number = -1
    # Answers by worker, or the loss of one.
    self._said: queue.SimpleQueue[tuple[int, ProbeAnswer] | str] = (
      queue.SimpleQueue()
    )

  def start(self, done: Callable[[LinksMeasured], None]) -> None:
    """Measures in a thread.

    Args:
      done: Called with the result.
    """
    threading.Thread(target=self._run, args=[done], daemon=True).start()

  def answered(self, worker: int, answer: ProbeAnswer) -> None:
    """Takes in what a worker has answered; from any thread."""
    self._said.put((worker, answer))

  def lose(self, index: int, reason: str) -> None:
    """A worker is gone; from any thread."""
    self._said.put(f'worker {index} is lost: {reason}')

  def ask(
    self, orders: Sequence[Probe], *, limit_s: float
  ) -> list[HostDescription | Rates]:
    """Returns what members answer: see `trials.Asking`.

    Raises:
      Failure: If one cannot carry it out, or does not answer in time.
      Lost: If one is gone.
    """
    self._number = number = next(_numbers)
    for index, order in zip(self._members, orders, strict=True):
      self._send(index, ProbeOrder(number, order))
    deadline = time.monotonic() + limit_s + 2 * self._timeout_s
    answers: dict[int, HostDescription | Rates | None] = {}
    problems: dict[int, str] = {}
    while len(answers) < len(self._members):
      found = self._next(deadline)
      if found is None:
        missing = [k for k in self._members if k not in answers]
        raise transfers.Failure(f'no answer of workers {missing} in time')
      worker, answer = found
      if answer.number != number:
        continue  # Of a test that has failed.
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
      said = self._said.get(timeout=max(deadline - time.monotonic(), 0.0))
    except queue.Empty:
      return None
    if isinstance(said, str):
      raise Lost(said)
    return said

  def _run(self, done: Callable[[LinksMeasured], None]) -> None:
    try:
      result = self._measured()
    except Lost as error:
      result = LinksMeasured(problem=str(error), is_lost=True)
    except transfers.Failure as error:
      result = LinksMeasured(problem=str(error))
    except Exception as error:  # The thread has nobody else to tell.
      logging.exception('Measuring has failed.')
      result = LinksMeasured(problem=repr(error))
    done(result)

  def _measured(self) -> LinksMeasured:
    begun = time.monotonic()
    count = len(self._members)
    try:
      answers = self.ask([OpenEndpoint()] * count, limit_s=0.0)
      hosts: list[Mapping[str, Any]] = [
        _described(*each) for each in zip(self._members, answers, strict=True)
      ]
      if not self._anew and (known := self._kept.load(hosts)):
        return LinksMeasured(content=known)
      tests = trials.quick(count)
      found = trials.measure(
        self,
        hosts,
        seconds=trials.QUICK_S,
        tolerance=TOLERANCE,
        tests=tests,
        late_s=trials.QUICK_LATE_S,
        tries=_TRIES,
        tell=logging.info,
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
    written['measured_at'] = time.time()
    self._kept.save(hosts, written)
    return LinksMeasured(content=written, took_s=time.monotonic() - begun)


def _described(worker: int, host: HostDescription | Rates) -> dict[str, Any]:
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
