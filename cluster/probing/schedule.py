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

from cluster.probing import file_format, transfers, trials
from cluster.probing.cache import Kept

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
    send: Callable[[int, dict[str, Any]], None],
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
    self._said: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()

  def start(self, done: Callable[[dict[str, Any]], None]) -> None:
    """Measures in a thread.

    Args:
      done: Called with `content` of a file, and `took_s` of it, 0 if it was
        kept; or with `problem`, and `lost` if a worker is.
    """
    threading.Thread(target=self._run, args=[done], daemon=True).start()

  def answered(self, event: Mapping[str, Any]) -> None:
    """Takes in what a worker has answered; from any thread."""
    self._said.put(event)

  def lose(self, index: int, reason: str) -> None:
    """A worker is gone; from any thread."""
    self._said.put({'lost': f'worker {index} is lost: {reason}'})

  def ask(self, orders: Sequence[Mapping], *, limit_s: float) -> list[Any]:
    """Returns what members answer: see `trials.Asking`.

    Raises:
      Failure: If one cannot carry it out, or does not answer in time.
      Lost: If one is gone.
    """
    self._number = number = next(_numbers)
    for index, order in zip(self._members, orders, strict=True):
      self._send(index, {'measure': {'number': number, 'order': order}})
    deadline = time.monotonic() + limit_s + 2 * self._timeout_s
    answers: dict[int, Any] = {}
    problems: dict[int, str] = {}
    while len(answers) < len(self._members):
      said = self._next(deadline)
      if said is None:
        missing = [k for k in self._members if k not in answers]
        raise transfers.Failure(f'no answer of workers {missing} in time')
      if said['number'] != number:
        continue  # Of a test that has failed.
      answers[said['worker']] = said['answer']
      if said['problem']:
        problems[said['worker']] = said['problem']
    if problems:
      raise transfers.Failure('; '.join(problems[k] for k in sorted(problems)))
    return [answers[index] for index in self._members]

  def _next(self, deadline: float) -> Mapping[str, Any] | None:
    try:
      said = self._said.get(timeout=max(deadline - time.monotonic(), 0.0))
    except queue.Empty:
      return None
    if 'lost' in said:
      raise Lost(said['lost'])
    return said

  def _run(self, done: Callable[[dict[str, Any]], None]) -> None:
    try:
      result = self._measured()
    except Lost as error:
      result = {'problem': str(error), 'lost': True}
    except transfers.Failure as error:
      result = {'problem': str(error), 'lost': False}
    except Exception as error:  # The thread has nobody else to tell.
      logging.exception('Measuring has failed.')
      result = {'problem': repr(error), 'lost': False}
    done(result)

  def _measured(self) -> dict[str, Any]:
    begun = time.monotonic()
    count = len(self._members)
    try:
      hosts = self.ask([{'do': 'open'}] * count, limit_s=0.0)
      for index, host in zip(self._members, hosts, strict=True):
        host['name'] = f'worker {index} at {host["address"]}'
      if not self._anew and (known := self._kept.load(hosts)):
        return {'content': known, 'took_s': 0.0}
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
    self._kept.save(hosts, written)
    return {'content': written, 'took_s': time.monotonic() - begun}
