"""Processes that carry out orders of a leader in lockstep.

The leader listens, and every process has a stream to it, the leader included.
An order goes to all members, and all answer before the next one.  Every wait is
bounded: a member that fails or does not answer ends the probe for all, with its
name.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from cluster.network.frame_reader import Receiving
from cluster.network.heartbeat import within
from cluster.network.loop_streams import LoopStream
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
  TransportError,
  connect,
)
from cluster.probing.transfers import Broken, Failure

# Multiples of `timeout_s`: a member reports a silent one after one, the leader
# ends the wait for both after two, and members give up the leader after three.
_LEADER, _MEMBER = 2, 3


class _Reply(NamedTuple):
  rank: int
  answer: Any = None
  problem: str = ''


class Leader:
  """Leader of the members; a `LoopListener` serves them by `handle`.

  Args:
    members: Number of members.
    timeout_s: Silence of a process after which it counts as lost.
    start_s: Time within which all members must connect.
  """

  def __init__(self, members: int, *, timeout_s: float, start_s: float):
    self._members = members
    self._start_s = start_s
    self._timeout_s = timeout_s
    self._streams: dict[int, LoopStream] = {}
    self._names = [f'host{rank}' for rank in range(members)]
    self._replies: queue.SimpleQueue[_Reply] = queue.SimpleQueue()
    self._changing = threading.Lock()

  def handle(self, stream: LoopStream, hello: msgspec.Raw) -> Receiving[None]:
    """Receives the answers of a member until its stream ends.

    Args:
      hello: Encoded first message of the member.

    Raises:
      Closed: If another member has its rank, or the rank is too large.
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
    self._replies.put(_Reply(rank, _describe(member)))
    try:
      while True:
        result, _ = yield from stream.receive(PROBE_RESULT, 0)
        self._replies.put(_Reply(rank, result.rates, result.problem))
    except TransportError as error:
      self._replies.put(_Reply(rank, problem=f'{self._names[rank]}: {error}'))

  def gather(self) -> list[Any]:
    """Returns the first messages of all members, by rank.

    Raises:
      Failure: If a member does not connect in time, or is lost.
    """
    return self._collect(self._start_s)

  def ask(self, orders: Sequence[Probe], *, limit_s: float) -> list[Any]:
    """Sends an order to each member; returns the answers by rank.

    Args:
      orders: Order of each member, by rank.
      limit_s: Longest time that the orders take if no member is lost.

    Raises:
      Failure: If a member fails, or does not answer in time.
    """
    for rank, order in enumerate(orders):
      self._streams[rank].send(ProbeStep(order, limit_s))
    return self._collect(limit_s + _LEADER * self._timeout_s)

  def dismiss(self, reason: str) -> None:
    """Sends all members the end of the probe.

    Args:
      reason: Reason of an early end; '' for a normal end.
    """
    with self._changing:
      streams = list(self._streams.values())
    for stream in streams:
      stream.send(ProbeEnd(reason))

  def _collect(self, limit_s: float) -> list[Any]:
    deadline = time.monotonic() + limit_s
    answers: dict[int, Any] = {}
    while len(answers) < self._members:
      try:
        reply = self._replies.get(timeout=max(0.0, deadline - time.monotonic()))
      except queue.Empty:
        missing = [
          name for rank, name in enumerate(self._names) if rank not in answers
        ]
        raise Failure(
          f'{", ".join(missing)}: no answer within {limit_s:g} s'
        ) from None
      if reply.problem:
        raise Failure(reply.problem)
      answers[reply.rank] = reply.answer
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
  """Carries out the orders of a leader until it ends this member.

  Args:
    leader: HOST:PORT where the leader listens.
    member: First message to the leader.
    obey: Carries out an order and returns the answer; an exception `Broken` is
      reported to the leader.
    timeout_s: Silence of a process after which it counts as lost.
    start_s: Time within which all members must connect.

  Returns:
    Reason of an early end; '' for a normal end.

  Raises:
    TransportError: If the leader is lost, or refuses the token.
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


def _describe(member: ProbeMember) -> dict[str, Any]:
  host = member.host
  return {
    'name': member.name,
    'hostname': host.hostname,
    'address': host.address,
    'port': host.port,
  }
