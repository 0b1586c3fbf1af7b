"""Sockets over links with latency, rate and cuts, as `system.net` has them.

  state of a socket   event                         next state
  new                 bind, listen                  listening
  new                 connect                       connecting
  connecting          the first packet arrives      open; refused without a
                                                    listener
  open                shutdown(SHUT_WR)             closed for sending
  open                the end of the peer arrives   closed for receiving
  open                its process ends, close()     closed: the peer gets the
                                                    end, or a reset if bytes
                                                    were not read
  open                a reset arrives               failed (ECONNRESET)
  open, connecting    a cut lasts its time limit    failed (ETIMEDOUT)

A pair of hosts is cut in one direction or in both.  Over a cut nothing arrives;
what was sent arrives once it heals, as TCP repeats it.  TCP needs both
directions, so that the limit of silence counts from either cut.
"""

import collections
import errno
import os
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any, Self

from system.simulated.scheduler import Scheduler, Waiting, active

_IN, _OUT, _EDGE = select.EPOLLIN, select.EPOLLOUT, select.EPOLLET
_ERR, _HUP = select.EPOLLERR, select.EPOLLHUP
_WINDOW_BYTES = 1 << 20  # Sent and not yet read.
_NEVER_S = 127.0  # Until a connection that nobody answers fails.
_SYN_BYTES = 64
_FIRST_PORT = 40000
_INFO_BYTES, _ACKNOWLEDGED, _BUSY_US = 256, 120, 168


class File:
  """Something with a number that polls can watch."""

  def __init__(self, network: 'Network'):
    self.network = network
    self.number = network.add(self)
    self.polls: set[Poll] = set()

  def fileno(self) -> int:
    """Returns the number; -1 once closed."""
    return self.number

  def ready(self) -> int:
    """Returns the events that are there."""
    raise NotImplementedError

  def notify(self) -> None:
    """Tells the polls that something has happened."""
    for poll in [*self.polls]:
      poll.notice(self)

  def _forget(self) -> None:
    for poll in [*self.polls]:
      poll.drop(self.number)
    self.network.files.pop(self.number, None)
    self.number = -1


class Wake(File):
  """A flag that polls can watch: see `system.net.Wake`."""

  def __init__(self) -> None:
    super().__init__(network())
    self._is_set = False

  def ready(self) -> int:
    """Returns the events that are there."""
    return _IN if self._is_set else 0

  def set(self) -> None:
    self._is_set = True
    self.notify()

  def clear(self) -> None:
    self._is_set = False

  def close(self) -> None:
    self._forget()


class Link:
  """One direction between two hosts.

  Attributes:
    latency_s: Seconds that a byte takes.
    rate_Bps: Bytes per second.
    is_cut: Whether nothing arrives.
  """

  def __init__(self, latency_s: float, rate_Bps: float):
    self.latency_s, self.rate_Bps = latency_s, rate_Bps
    self.is_cut = False
    self.held: list[tuple[Socket, Any]] = []
    self._free_s = 0.0

  def arrival_s(self, now: float, size: int) -> float:
    """Returns when bytes that are sent now arrive."""
    self._free_s = max(now, self._free_s) + size / self.rate_Bps
    return self._free_s + self.latency_s


class Network:
  """Hosts, links and sockets.

  Args:
    scheduler: Clock and tasks.
    latency_s: Latency of each link at first, seconds.
    rate_Bps: Rate of each link at first, bytes per second.

  Attributes:
    files: Open files by number.
    listeners: Listening sockets by address and port.
  """

  def __init__(
    self, scheduler: Scheduler, *, latency_s: float, rate_Bps: float
  ):
    self.scheduler = scheduler
    self.files: dict[int, File] = {}
    self.listeners: dict[tuple[str, int], Socket] = {}
    self._links: dict[tuple[str, str], Link] = {}
    self._default = latency_s, rate_Bps
    self._number = 1 << 20
    self._ports = _FIRST_PORT

  def add(self, file: File) -> int:
    """Returns the number of a new file."""
    self._number += 1
    self.files[self._number] = file
    return self._number

  def free_port(self) -> int:
    """Returns a port that nobody uses."""
    self._ports += 1
    return self._ports

  def link(self, source: str, target: str) -> Link:
    """Returns the link from a host to another one."""
    key = source, target
    if key not in self._links:
      latency_s, rate_Bps = self._default
      if source == target:
        latency_s, rate_Bps = 1e-5, 1e10
      self._links[key] = Link(latency_s, rate_Bps)
    return self._links[key]

  def cut(self, source: str, target: str) -> None:
    """Cuts the link from a host to another one."""
    self.link(source, target).is_cut = True
    for file in [*self.files.values()]:
      if isinstance(file, Socket) and {*file.pair} == {source, target}:
        file.begin_silence()

  def heal(self, source: str, target: str) -> None:
    """Ends a cut: what was sent meanwhile arrives."""
    link = self.link(source, target)
    link.is_cut = False
    held, link.held = link.held, []
    for receiver, item in held:
      receiver.carry(item)

  def is_cut(self, pair: tuple[str, str]) -> bool:
    """Returns whether two hosts are cut in any direction."""
    return self.link(*pair).is_cut or self.link(*pair[::-1]).is_cut

  def drop(self, owner: object, *, silently: bool = False) -> None:
    """Closes the files of a process that has ended.

    Args:
      owner: The process.
      silently: Whether its host is gone, so that peers learn nothing.
    """
    for file in [*self.files.values()]:
      if isinstance(file, Socket) and file.owner is owner:
        file.vanish() if silently else file.close()


_END, _RESET = object(), object()


class Socket(File):
  """A TCP socket."""

  def __init__(
    self,
    family: int = socket.AF_INET,
    type: int = socket.SOCK_STREAM,
    proto: int = 0,
  ):
    super().__init__(network())
    self.family, self.type, self.proto = family, type, proto
    self._scheduler = active()
    current = self._scheduler.current
    self.owner: Any = current.owner if current else None
    self._blocks = True
    self._timeout_s: float | None = None
    self._options: dict[tuple[int, int], int] = {}
    self._own: tuple[str, int] = ('', 0)
    self._remote: tuple[str, int] | None = None
    self._backlog: collections.deque[Socket] | None = None
    self._peer: Socket | None = None
    self._is_connecting = False
    self._received: collections.deque[memoryview] = collections.deque()
    self._num_received = self._num_unread = 0
    self._num_outstanding = 0  # Bytes sent and not yet read.
    self._has_ended = False  # The peer sends no more.
    self._is_shut = False  # This end sends no more.
    self._is_deaf = False  # This end reads no more.
    self._error = 0
    self._waiters: list[Waiting] = []
    self._last_arrival_s = 0.0

  @property
  def pair(self) -> tuple[str, str]:
    """Own host and that of the peer."""
    return self._own[0], self._remote[0] if self._remote else ''

  # Options.

  def setblocking(self, flag: bool) -> None:
    self._blocks, self._timeout_s = flag, None

  def settimeout(self, timeout_s: float | None) -> None:
    self._blocks, self._timeout_s = timeout_s != 0, timeout_s

  def setsockopt(self, level: int, option: int, value: int) -> None:
    """Stores an option; only TCP_USER_TIMEOUT and SO_RCVLOWAT have effects."""
    self._check_open()
    self._options[level, option] = value
    is_limit = option == socket.TCP_USER_TIMEOUT and self._remote is not None
    if is_limit and self.network.is_cut(self.pair):
      self.begin_silence()

  def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
    """Returns an option, a pending error, or a part of struct tcp_info.

    An option that was never set is 0.  Of tcp_info only the acknowledged bytes
    and the time that the link was busy have values.
    """
    self._check_open()
    if (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR):
      error, self._error = self._error, 0
      return error
    if (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO):
      info = bytearray(_INFO_BYTES)
      peer = self._peer
      taken = peer._num_received if peer else 0
      struct.pack_into('=Q', info, _ACKNOWLEDGED, taken)
      rate = self.network.link(*self.pair).rate_Bps
      struct.pack_into('=Q', info, _BUSY_US, round(1e6 * taken / rate))
      return bytes(info[:size])
    return self._options.get((level, option), 0)

  def getsockname(self) -> tuple[str, int]:
    return self._own

  def getpeername(self) -> tuple[str, int]:
    if not self._remote:
      raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
    return self._remote

  # Connections.

  def bind(self, address: tuple[Any, ...]) -> None:
    host, port = address[0] or self._host(), address[1]
    port = port or self.network.free_port()
    if (host, port) in self.network.listeners:
      raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    self._own = host, port

  def listen(self, backlog: int = 0) -> None:
    """Accepts connections from now on; any number of them may wait."""
    del backlog
    self._backlog = collections.deque()
    self.network.listeners[self._own] = self

  def accept(self) -> tuple['Socket', tuple[str, int]]:
    while not self._backlog:
      self._check_open()
      self._wait(_IN)
    sock = self._backlog.popleft()
    sock.owner = self.owner
    if sock._remote is None:
      raise RuntimeError('An accepted connection has a peer.')
    return sock, sock._remote

  def connect(self, address: tuple[Any, ...]) -> None:
    """Begins a connection, and waits for it if the socket blocks."""
    self._check_open()
    self._remote = address[0], address[1]
    if not self._own[1]:
      self._own = self._host(), self.network.free_port()
    self._is_connecting = True
    link = self.network.link(*self.pair)
    now = self._scheduler.now
    if link.is_cut or self.network.is_cut(self.pair):
      self.begin_silence(_NEVER_S)
      link.held.append((self, _RESET))
    else:
      arrival_s = link.arrival_s(now, _SYN_BYTES)
      self._scheduler.call_at(arrival_s, self._reach)
    if not self._blocks:
      raise BlockingIOError(errno.EINPROGRESS, os.strerror(errno.EINPROGRESS))
    while self._is_connecting:
      self._wait(_OUT)
    self._raise_error()

  def _reach(self) -> None:
    """The listener's host has the first packet."""
    if self._remote is None or self.number < 0:
      return
    listener = self.network.listeners.get(self._remote)
    back_s = self.network.link(*self.pair[::-1]).latency_s
    if listener is None or listener._backlog is None:
      self._scheduler.call_after(back_s, lambda: self.fail(errno.ECONNREFUSED))
      return
    other = Socket(self.family, self.type)
    other.owner = listener.owner
    other._own, other._remote = self._remote, self._own
    other._peer, self._peer = self, other
    listener._backlog.append(other)
    listener.notify_all()

    def answer() -> None:
      self._is_connecting = False
      self.notify_all()

    self._scheduler.call_after(back_s, answer)

  # Data.

  def send(self, data: Any, flags: int = 0) -> int:
    return self.sendmsg([data], (), flags)

  def sendall(self, data: Any) -> None:
    view = memoryview(data).cast('B')
    while view:
      view = view[self.send(view) :]

  def sendmsg(
    self, buffers: Sequence[Any], ancillary: Any = (), flags: int = 0
  ) -> int:
    """Sends some of the bytes of some buffers; returns how many.

    Ancillary data is dropped; of the flags only MSG_DONTWAIT has an effect.
    """
    del ancillary
    self._scheduler.may_yield()
    while True:
      self._check_open()
      self._raise_error()
      if self._is_shut or self._peer is None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
      room = _WINDOW_BYTES - self._num_outstanding
      if room > 0:
        break
      self._wait(_OUT, flags)
    data = b''.join(bytes(memoryview(each).cast('B')) for each in buffers)
    data = data[:room]
    self._num_outstanding += len(data)
    self._peer.carry(data)
    return len(data)

  def carry(self, item: Any) -> None:
    """Takes bytes, an end or a reset on the way to this socket."""
    link = self.network.link(*self.pair[::-1])
    if link.is_cut:
      link.held.append((self, item))
      return
    size = len(item) if isinstance(item, bytes) else 0
    arrival_s = link.arrival_s(self._scheduler.now, size)
    self._last_arrival_s = max(arrival_s, self._last_arrival_s)
    self._scheduler.call_at(self._last_arrival_s, lambda: self._arrive(item))

  def _arrive(self, item: Any) -> None:
    link = self.network.link(*self.pair[::-1])
    if link.is_cut:
      link.held.append((self, item))
      return
    if self.number < 0:
      if item is not _RESET and self._peer and self._peer.number >= 0:
        self._peer.carry(_RESET)
      return
    if item is _RESET:
      if self._is_connecting:  # A cut has healed: the first packet arrives.
        self._reach()
      else:
        self.fail(errno.ECONNRESET)
      return
    if item is _END:
      self._has_ended = True
    else:
      self._received.append(memoryview(item))
      self._num_received += len(item)
      self._num_unread += len(item)
    self.notify_all()

  def recv(self, size: int, flags: int = 0) -> bytes:
    buffer = bytearray(size)
    count = self._receive([memoryview(buffer)], flags)
    return bytes(buffer[:count])

  def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
    view = memoryview(buffer).cast('B')
    return self._receive([view[:nbytes] if nbytes else view], flags)

  def recvmsg_into(self, buffers: Sequence[Any]) -> tuple[int, list[Any], int]:
    views = [memoryview(each).cast('B') for each in buffers]
    return self._receive(views, 0), [], 0

  def _receive(self, buffers: Sequence[memoryview], flags: int) -> int:
    self._scheduler.may_yield()
    while not self._received:
      self._check_open()
      self._raise_error()
      if self._has_ended or self._is_deaf:
        return 0
      self._wait(_IN, flags)
    count = 0
    parts = [*self._received] if flags & socket.MSG_PEEK else self._received
    for buffer in buffers:
      at = 0
      while parts and at < len(buffer):
        part = parts[0]
        size = min(len(part), len(buffer) - at)
        buffer[at : at + size] = part[:size]
        at += size
        count += size
        if size == len(part):
          del parts[0]
        else:
          parts[0] = part[size:]
    if not flags & socket.MSG_PEEK:
      self._num_unread -= count
      self._credit(count)
    return count

  def _credit(self, count: int) -> None:
    """Gives the sender room again for what was read."""
    peer = self._peer
    if peer and peer.number >= 0:
      was_full = peer._num_outstanding >= _WINDOW_BYTES
      peer._num_outstanding -= count
      if was_full or peer._num_outstanding == 0:
        peer.notify_all()

  # Ends.

  def shutdown(self, how: int) -> None:
    self._check_open()
    if self._peer is None:
      raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
    if how in (socket.SHUT_WR, socket.SHUT_RDWR) and not self._is_shut:
      self._is_shut = True
      self._peer.carry(_END)
    if how in (socket.SHUT_RD, socket.SHUT_RDWR):
      self._is_deaf = True
    self.notify_all()

  def close(self) -> None:
    """Closes the socket; the peer receives what was sent, and the end."""
    if self.number < 0:
      return
    if self._backlog is not None:
      self.network.listeners.pop(self._own, None)
      for each in self._backlog:
        each.close()
    if self._peer and not self._error:
      if self._num_unread:
        self._peer.carry(_RESET)
      elif not self._is_shut:
        self._peer.carry(_END)
    self._is_shut = self._is_deaf = True
    self._forget()
    self._scheduler.wake_all(self._waiters)

  def vanish(self) -> None:
    """Closes the socket without a trace for its peer."""
    if self._backlog is not None:
      self.network.listeners.pop(self._own, None)
    self._error = errno.ETIMEDOUT
    self._forget()

  def detach(self) -> int:
    """Returns the number; unlike on a host, the socket stays open."""
    return self.number

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def fail(self, number: int) -> None:
    """Ends the connection by an error."""
    if self.number >= 0 and not self._error:
      self._error = number
      self._is_connecting = False
      self._has_ended = self._is_shut = True
      self._received.clear()
      self._num_unread = 0
      self.notify_all()

  def begin_silence(self, limit_s: float = 0.0) -> None:
    """Lets the connection fail once a cut has lasted its limit of silence."""
    key = socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
    limit_s = limit_s or self._options.get(key, 0) / 1000
    if not limit_s or self._remote is None:
      return

    def check() -> None:
      if self.network.is_cut(self.pair):
        self.fail(errno.ETIMEDOUT)

    self._scheduler.call_after(limit_s, check)

  # Events.

  def ready(self) -> int:
    """Returns the events that are there."""
    if self._error:
      return _IN | _OUT | _ERR | _HUP
    if self._backlog is not None:
      return _IN if self._backlog else 0
    events = 0
    least = self._options.get((socket.SOL_SOCKET, socket.SO_RCVLOWAT), 1)
    if self._has_ended or self._is_deaf or self._num_unread >= max(least, 1):
      events |= _IN
    if self._is_connecting or self._peer is None:
      return events
    if self._is_shut or self._num_outstanding < _WINDOW_BYTES:
      events |= _OUT
    if self._has_ended and self._is_shut:
      events |= _HUP
    return events

  def notify_all(self) -> None:
    """Tells polls and waiting threads that something has happened."""
    self.notify()
    self._scheduler.wake_all(self._waiters)

  def _wait(self, events: int, flags: int = 0) -> None:
    """Waits for events, which the caller looks at again."""
    if not self._blocks or flags & socket.MSG_DONTWAIT:
      raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    if not self._scheduler.wait(self._waiters, self._timeout_s):
      raise TimeoutError('timed out')

  def _check_open(self) -> None:
    if self.number < 0:
      raise OSError(errno.EBADF, os.strerror(errno.EBADF))

  def _raise_error(self) -> None:
    if self._error:
      raise OSError(self._error, os.strerror(self._error))

  def _host(self) -> str:
    return str(self.owner.host) if self.owner else '127.0.0.1'


class Poll:
  """Waits for events of files: `select.poll` and `select.epoll`."""

  def __init__(self) -> None:
    self._network = network()
    self._scheduler = active()
    self._masks: dict[int, int] = {}
    self._edges: set[int] = set()
    self._waiters: list[Waiting] = []

  def register(self, file: Any, events: int = _IN | _OUT) -> None:
    """Watches a file; one that is watched already is a FileExistsError."""
    number = file if isinstance(file, int) else file.fileno()
    if number in self._masks:
      raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    found = self._find(number)
    self._masks[number] = events
    found.polls.add(self)
    self._edges.add(number)
    self.notice(found)

  def modify(self, number: int, events: int) -> None:
    found = self._find(number)
    self._masks[number] = events
    self._edges.add(number)
    self.notice(found)

  def unregister(self, number: int) -> None:
    if number not in self._masks:
      raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    self._network.files[number].polls.discard(self)
    self.drop(number)

  def drop(self, number: int) -> None:
    """Forgets a file that is closed."""
    self._masks.pop(number, None)
    self._edges.discard(number)

  def notice(self, file: File) -> None:
    """Looks at a file again."""
    self._edges.add(file.number)
    self._scheduler.wake_all(self._waiters)

  def close(self) -> None:
    for number in [*self._masks]:
      self._network.files[number].polls.discard(self)
      self.drop(number)

  def wait(self, timeout_s: float | None) -> list[tuple[int, int]]:
    """Waits for events; returns them by the numbers of files."""
    end = None if timeout_s is None else self._scheduler.now + timeout_s
    while True:
      found = self._collect()
      left_s = None if end is None else end - self._scheduler.now
      if found or (left_s is not None and left_s <= 0):
        return found
      self._scheduler.wait(self._waiters, left_s)

  def _collect(self) -> list[tuple[int, int]]:
    found = []
    for number, mask in self._masks.items():
      if mask & _EDGE and number not in self._edges:
        continue
      events = self._network.files[number].ready()
      events &= (mask & ~_EDGE) | _ERR | _HUP
      if events:
        found.append((number, events))
      self._edges.discard(number)
    self._scheduler.random.shuffle(found)
    return found

  def _find(self, number: int) -> File:
    if number not in self._network.files:
      raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return self._network.files[number]


class Epoll(Poll):
  """Poll with the interface of `select.epoll`."""

  def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
    """Waits for events; the timeout is in seconds."""
    return self.wait(None if timeout is None or timeout < 0 else timeout)


class MilliPoll(Poll):
  """Poll with the interface of `select.poll`."""

  def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
    """Waits for events; the timeout is in milliseconds."""
    return self.wait(None if timeout is None or timeout < 0 else timeout / 1000)


_networks: list[Network] = []


def network() -> Network:
  """Returns the network of the simulation that runs."""
  return _networks[-1]


def activate(chosen: Network | None) -> None:
  """Makes a network the active one; None for none."""
  _networks[:] = [chosen] if chosen else []
