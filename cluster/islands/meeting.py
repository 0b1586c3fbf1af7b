"""Start of an island: its processes find one another, and join jax.distributed.

The leader listens for its followers, and writes its address into the run's
folder.  Once all followers have connected, with the token of the run, it names
a port to them at which XLA's coordination service listens, a service for this
island alone.  The connections remain: they carry the leader's announcements,
and their end tells each process that the island is lost.  It then ends, and a
launcher starts all processes of the island again, which meet anew.

  islands/worker-2.json   address of the leader of worker 2
"""

import contextlib
import json
import pathlib
from collections.abc import Sequence
from typing import NoReturn

import msgspec
from absl import logging

from cluster.network import messages, sockets, streams, time_limits
from cluster.network.errors import Closed, Refused, TransportError
from cluster.network.frame_reader import Receiving
from cluster.network.handshake import Security
from cluster.network.loop_streams import LoopListener, LoopStream
from cluster.network.port import Port
from cluster.network.streams import Stream
from cluster.process import exits, xla_group
from cluster.process.exits import LOST, Reason, Unmendable, end
from configs.checks import require
from data.stream import Ranges
from outputs import atomic, manifests
from system import clock, threads

FOLDER = 'islands'  # In the folder of the run.
_SERVICE = 'island'
_RETRY_S = 0.2
_END_S = 2.0  # Time to learn why the leader ends.


class Leader:
  """The leader's end of an island: `Followers` of `learning.island`."""

  def __init__(self, index: int, hosts: int, *, timeout_s: float):
    """Creates an island without followers.

    Args:
      index: Rank of the island among the workers.
      hosts: Number of its processes.
      timeout_s: Silence after which a follower counts as lost.
    """
    self.index, self.hosts = index, hosts
    self._timeout_s = timeout_s
    self._changed = threads.Condition()
    self._streams: dict[int, LoopStream] = {}  # By rank of the follower.
    self._ready: dict[int, messages.FollowerReady] = {}
    self._has_joined = self._is_ending = False

  def meet(
    self,
    folder: pathlib.Path,
    address: str,
    ports: tuple[int, int],
    security: Security,
    *,
    devices: Sequence[int],
    start_s: float,
    tls: xla_group.Tls | None,
  ) -> None:
    """Waits for all followers, and joins jax.distributed with them.

    Args:
      folder: Folder of the run.
      address: Address of this host to listen on.
      ports: Port for followers, and that of XLA's coordination service.
      security: Credentials of the run.
      devices: Positions of this process's GPUs among those that it sees.
      start_s: Seconds to wait for the followers.
      tls: Files of mutual TLS for XLA; None without.

    Raises:
      OSError: If a port is taken, or the address cannot be written.
      Unmendable: If a follower is missing in the end, or if an earlier start in
        this process has met the island.
    """
    _check_first()
    control, service = ports
    if taken := sockets.refusal(address, service):  # JAX would crash.
      raise OSError(taken.errno, f'{service}, for XLA: {taken.strerror}')
    try:
      LoopListener(
        Port(address, control, security), self._serve, service=_SERVICE
      )
    except TransportError as error:
      raise error.__cause__ or OSError(str(error)) from error
    path = folder / FOLDER / f'worker-{self.index}.json'
    path.parent.mkdir(exist_ok=True)
    text = json.dumps({'address': sockets.join(address, control)})
    atomic.write(path, text + '\n')
    exits.observe_end(self._tell_end)
    with self._changed:
      self._changed.wait_for(self._is_complete, start_s)
      missing = [m for m in range(1, self.hosts) if m not in self._streams]
      if missing:
        raise Unmendable(
          f'Worker {self.index} gives up: after {start_s:g} s its island lacks '
          f'the processes {[f"worker:{self.index}.{m}" for m in missing]}.'
        )
      self._has_joined = True
      where = sockets.join(address, service)
      for stream in self._streams.values():
        stream.send(messages.JoinIsland(where))
    xla_group.join(
      where,
      listen=where,
      count=self.hosts,
      index=0,
      devices=devices,
      start_s=start_s,
      tls=tls,
    )

  def check(self, own: messages.FollowerReady, *, start_s: float) -> None:
    """Waits until all followers are ready, and compares them with the leader.

    Args:
      own: Config, versions and devices of the leader.
      start_s: Seconds to wait.

    Raises:
      ValueError: If a follower differs; names it.
      Unmendable: If one is not ready in time.
    """
    with self._changed:
      count = self.hosts - 1
      if not self._changed.wait_for(lambda: len(self._ready) == count, start_s):
        raise Unmendable(
          f'Worker {self.index} gives up: of its {count} followers '
          f'{len(self._ready)} are ready after {start_s:g} s.'
        )
    for member, found in sorted(self._ready.items()):
      if differs := manifests.describe_difference(own.fields, found.fields):
        raise ValueError(
          f'config of worker:{self.index}.{member}: expected that of its '
          f'leader, got {differs}.'
        )
      for field in ('fingerprint', 'versions', 'devices'):
        expected, got = getattr(own, field), getattr(found, field)
        name = f'{field} of worker:{self.index}.{member}'
        require(got == expected, name, f'{expected!r}, as of its leader', got)

  def prepare(self, ranges: Ranges) -> None:
    """Announces the examples of a later push."""
    self._send(messages.PrepareExamples(ranges))

  def warm_up(self, examples: int | None, *, changing: bool) -> None:
    """Announces the compilation of all programs."""
    self._send(messages.WarmUpIsland(examples, changing))

  def push(
    self,
    ranges: Ranges,
    *,
    iteration: int,
    scale: float,
    rate: float | None,
    has_state: bool,
  ) -> None:
    """Announces a push: see `learning.island.Followers`."""
    self._send(messages.ComputePush(ranges, iteration, scale, rate, has_state))

  def fail(self, error: Exception) -> NoReturn:
    """Ends this process after an error of XLA."""
    end_lost(f'Worker {self.index} has lost its island: XLA: {error}', error)

  def _send(self, message: msgspec.Struct) -> None:
    for stream in [*self._streams.values()]:
      stream.send(message)

  def _is_complete(self) -> bool:
    return len(self._streams) == self.hosts - 1

  def _serve(self, stream: LoopStream, raw: msgspec.Raw) -> Receiving[None]:
    """Serves a follower until it disconnects; in the listener's loop."""
    try:
      hello = messages.ISLAND_HELLO.decode(raw)
    except ValueError as error:
      raise Refused(f'{stream.peer}: {error}') from error
    member = hello.member
    with self._changed:
      if hello.worker != self.index or member >= self.hosts:
        raise Refused(f'this is the leader of worker {self.index}')
      if member in self._streams or self._has_joined:
        raise Refused(f'worker:{self.index}.{member} is here already')
      self._streams[member] = stream
      self._changed.notify_all()
    stream.limit_silence(self._timeout_s)
    try:
      ready, _ = yield from stream.receive(messages.FOLLOWER_READY, 0)
      with self._changed:
        self._ready[member] = ready
        self._changed.notify_all()
      yield from stream.receive(messages.NOTHING, 0)
      reason = 'it sends what it was not asked for'
    except TransportError as error:
      reason = str(error)
    with self._changed:
      is_lost = self._has_joined and not self._is_ending
      del self._streams[member]
    if is_lost:
      end_lost(
        f'Worker {self.index} has lost its island: worker:{self.index}.'
        f'{member}: {reason}'
      )

  def _tell_end(self, code: int, message: str, at_once: bool) -> None:
    """Tells the followers that this process ends."""
    self._is_ending = True
    self._send(messages.LeaderEnded(code & 255, message[:1000], at_once))


class Follower:
  """A follower's end of an island.

  Attributes:
    index: Rank of the island among the workers.
    member: Rank of this process in it.
    hosts: Number of its processes.
  """

  def __init__(self, index: int, member: int, hosts: int, *, timeout_s: float):
    """Creates a follower without a leader; arguments as of `Leader`."""
    self.index, self.member, self.hosts = index, member, hosts
    self._timeout_s = timeout_s
    self._stream: Stream | None = None

  def meet(
    self,
    folder: pathlib.Path,
    security: Security,
    *,
    devices: Sequence[int],
    start_s: float,
    tls: xla_group.Tls | None,
  ) -> None:
    """Finds the leader, and joins jax.distributed with it.

    Args:
      folder: Folder of the run.
      security: Credentials of the run.
      devices: Positions of this process's GPUs among those that it sees.
      start_s: Seconds to wait for the leader and the other followers.
      tls: Files of mutual TLS for XLA; None without.

    Raises:
      Unmendable: If there is no leader in time, or it ends meanwhile; or if an
        earlier start in this process has met the island.
    """
    _check_first()
    deadline = clock.monotonic() + start_s
    path = folder / FOLDER / f'worker-{self.index}.json'
    stream = self._connect(path, security, deadline, start_s)
    stream.limit_silence(self._timeout_s)
    try:
      with time_limits.limit(
        start_s, lambda: stream.cancel('no answer in time')
      ):
        found = stream.receive(messages.JOIN_ISLAND, 0).header
    except TransportError as error:
      raise Unmendable(f'The island is not complete: {error}') from error
    if isinstance(found, messages.LeaderEnded):
      raise Unmendable(f'The leader has ended: {found.reason}')
    self._stream = stream
    xla_group.join(
      found.address,
      listen='',
      count=self.hosts,
      index=self.member,
      devices=devices,
      start_s=start_s,
      tls=tls,
    )

  def report(self, ready: messages.FollowerReady) -> None:
    """Reports to the leader that this process can follow."""
    self._connected.send(ready)

  def receive(self) -> messages.ToFollower:
    """Waits for the leader's next announcement.

    Raises:
      TransportError: If the leader is lost.
    """
    message: messages.ToFollower
    message = self._connected.receive(messages.TO_FOLLOWER, 0).header
    return message

  def find_end(self) -> messages.LeaderEnded | None:
    """Returns the leader's last announcement; None if it has made none.

    For a follower that XLA has told that the leader is lost.
    """
    stream = self._connected
    with (
      contextlib.suppress(TransportError),
      time_limits.limit(_END_S, lambda: stream.cancel('no answer in time')),
    ):
      while True:
        message = self.receive()
        if isinstance(message, messages.LeaderEnded):
          return message
    return None

  @property
  def _connected(self) -> Stream:
    if self._stream is None:
      raise RuntimeError('The follower has not met its leader.')
    return self._stream

  def _connect(
    self,
    path: pathlib.Path,
    security: Security,
    deadline: float,
    start_s: float,
  ) -> Stream:
    """Returns a stream to the leader, whose file may be of an earlier one."""
    hello, reason = messages.IslandHello(self.index, self.member), 'no file'
    while (left_s := deadline - clock.monotonic()) > 0:
      try:
        address = str(json.loads(path.read_text())['address'])
        return streams.connect(
          address,
          hello,
          security,
          min(left_s, self._timeout_s),
          service=_SERVICE,
          waits=lambda: False,
        )
      except (Closed, Refused) as error:
        reason = str(error)
      except (OSError, ValueError, LookupError, TypeError) as error:
        reason = f'{type(error).__name__}: {error}'
      clock.sleep(_RETRY_S)
    raise Unmendable(
      f'Process worker:{self.index}.{self.member} gives up: no leader of its '
      f'island within {start_s:g} s ({path}: {reason}).'
    )


def _check_first() -> None:
  """Checks that no earlier start in this process has met the island."""
  if xla_group.has_joined():
    raise Unmendable('A process meets its island once; a restart meets it.')


def end_lost(message: str, error: Exception | None = None) -> NoReturn:
  """Ends this process, whose island is lost; a restart may help."""
  logging.error('%s', message)
  end(LOST, Reason.LOST, message, error)
