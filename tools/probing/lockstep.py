"""Processes that do, step by step, what one of them tells them.

The leader listens and everybody has a stream to it, itself included.  An order
goes to all, and all answer before the next.  Nobody waits for ever: whoever
fails or does not answer ends it for all, by name.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from cluster.network.heartbeat import within
from cluster.network.messages import (
  PROBE_MEMBER,
  PROBE_RESULT,
  PROBE_STEP,
  Probe,
  ProbeEnd,
  ProbeMember,
  ProbeResult,
  ProbeStep,
  Rates,
)
from cluster.network.streams import (
  Closed,
  Security,
  Stream,
  TransportError,
  connect,
)
from cluster.probing.transfers import Broken, Failure

# Of silences: a member reports another after one, the leader ends the wait for
# both after two, and members think that it is lost after three.
_LEADER, _MEMBER = 2, 3


class _Said(NamedTuple):
  rank: int
  answer: Any = None
  problem: str = ''


class Leader:
  """Tells members what to do; `handle` is for `cluster.network.Listener`."""

  def __init__(self, members: int, *, timeout_s: float, start_s: float):
    """Knows nobody yet.

    Args:
      members: How many there will be.
      timeout_s: Silence of a process after which it counts as lost.
      start_s: Until all have to be there.
    """
    self._members = members
    self._start_s = start_s
    self._timeout_s = timeout_s
    self._streams: dict[int, Stream] = {}
    self._names = [f'host{rank}' for rank in range(members)]
    self._said: queue.SimpleQueue[_Said] = queue.SimpleQueue()
    self._changing = threading.Lock()

  def handle(self, stream: Stream, hello: msgspec.Raw) -> None:
    """Listens to a member until its stream has ended.

    Args:
      stream: To the member.
      hello: Its encoded first message.

    Raises:
      Closed: If there is no place for it.
    """
    try:
      member = PROBE_MEMBER.decode(hello)
    except ValueError as error:
      raise Closed(f'{stream.peer}: sent another hello: {error}') from error
    rank = member.rank
    with self._changing:
      if rank in self._streams or rank >= self._members:
        raise Closed(f'{stream.peer}: there is no place for a host{rank}')
      self._names[rank] = member.name
      self._streams[rank] = stream
    self._said.put(_Said(rank, _described(member)))
    try:
      while True:
        said = stream.receive(PROBE_RESULT, 0).header
        self._said.put(_Said(rank, said.rates, said.problem))
    except TransportError as error:
      self._said.put(_Said(rank, problem=f'{self._names[rank]}: {error}'))

  def gather(self) -> list[Any]:
    """Returns what all members have said first, by rank, once they are there.

    Raises:
      Failure: If some do not come in time, or are lost meanwhile.
    """
    return self._collect(self._start_s)

  def ask(self, orders: Sequence[Probe], *, limit_s: float) -> list[Any]:
    """Returns what members answer to their orders, by rank.

    Args:
      orders: One for each.
      limit_s: Seconds that they take at most, if nobody is silent.

    Raises:
      Failure: If one cannot carry it out, or does not answer in time.
    """
    for rank, order in enumerate(orders):
      with contextlib.suppress(Closed):  # `handle` says so, and why.
        self._streams[rank].send(ProbeStep(order, limit_s))
    return self._collect(limit_s + _LEADER * self._timeout_s)

  def dismiss(self, reason: str) -> None:
    """Lets the members go.

    Args:
      reason: Why it has ended too early; '' if it has not.
    """
    with self._changing:
      streams = list(self._streams.values())
    for stream in streams:
      with contextlib.suppress(Closed):  # It has gone by itself.
        stream.send(ProbeEnd(reason))

  def _collect(self, limit_s: float) -> list[Any]:
    deadline = time.monotonic() + limit_s
    answers: dict[int, Any] = {}
    while len(answers) < self._members:
      try:
        said = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
      except queue.Empty:
        missing = [
          name for rank, name in enumerate(self._names) if rank not in answers
        ]
        raise Failure(
          f'{", ".join(missing)}: no answer within {limit_s:g} s'
        ) from None
      if said.problem:
        raise Failure(said.problem)
      answers[said.rank] = said.answer
    return [answers[rank] for rank in range(self._members)]


def follow(
  leader: str,
  member: ProbeMember,
  obey: Callable[[Probe], Rates],
  *,
  security: Security,
  timeout_s: float,
  start_s: float,
) -> str:
  """Does what the leader says, until it lets this process go.

  Args:
    leader: HOST:PORT where it listens.
    member: First message to the leader.
    obey: Carries an order out and returns the answer; `Broken` is answered as
      well.
    security: Of the stream.
    timeout_s: Silence of a process after which it counts as lost.
    start_s: Until all have to be there.

  Returns:
    Why it has ended too early; '' if it has not.

  Raises:
    TransportError: If the leader is lost, or does not know the token.
  """
  limit_s = start_s
  stream = connect(leader, member, security, limit_s)
  try:
    while True:
      with within(stream, limit_s):
        message = stream.receive(PROBE_STEP, 0).header
      if isinstance(message, ProbeEnd):
        return message.reason
      try:
        result = ProbeResult(obey(message.probe))
      except Broken as error:
        result = ProbeResult(None, f'{error} (says {member.name})')
      stream.send(result)
      limit_s = message.limit_s + _MEMBER * timeout_s
  finally:
    stream.close()


def _described(member: ProbeMember) -> dict[str, Any]:
  host = member.host
  return {
    'name': member.name,
    'hostname': host.hostname,
    'address': host.address,
    'port': host.port,
  }
