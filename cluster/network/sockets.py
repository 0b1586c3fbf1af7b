"""Access to this process's sockets, which Flight does not expose (Linux)."""

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator

from configs.checks import require

# TCP keepalive ends a connection to a dead host after a minute.  gRPC would
# probe after two hours, and at one end alone.
_IDLE_S, _INTERVAL_S, _PROBES = 20, 10, 4
_RECEIVED = 128  # Offset of tcpi_bytes_received in struct tcp_info, u64.
_INFO_BYTES = 256
# Request to sock_diag(7): netlink's header, then a struct inet_diag_req of all
# families.  Of its answers the header, and the inode of a struct inet_diag_msg.
_DIAG, _OF_TCP, _DUMP = 4, 18, 0x301
_REQUEST = struct.Struct('=IHH12x2s46xI4x')
_ANSWER, _INODE = struct.Struct('=IH'), struct.Struct('=84xI')
_DONE, _FAILED = 3, 2
_OPEN = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8  # Established, or closed by one end.


def numbers() -> dict[str, str]:
  """Returns the file descriptors of this process's sockets, by inode."""
  found = {}
  for name in os.listdir('/proc/self/fd'):
    with contextlib.suppress(OSError):  # The descriptor of the folder.
      number = os.readlink(f'/proc/self/fd/{name}')
      if number.startswith('socket:'):
        found[number] = name
  return found


def of_port(port: int) -> set[str]:
  """Returns the inodes of the open connections of a port of this host.

  They are those in `numbers` and those of other processes, found without a look
  at every file.

  Raises:
    OSError: If the kernel does not support this.
  """
  found: set[str] = set()
  with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _DIAG) as kernel:
    request = _REQUEST.size, _OF_TCP, _DUMP, port.to_bytes(2, 'big'), _OPEN
    kernel.send(_REQUEST.pack(*request))
    while True:
      data, start = kernel.recv(1 << 16), 0
      while start < len(data):
        size, kind = _ANSWER.unpack_from(data, start)
        if kind == _FAILED:
          raise OSError('The kernel does not know sock_diag.')
        if kind == _DONE:
          return found - {'socket:[0]'}  # No process has it, or not yet.
        found.add(f'socket:[{_INODE.unpack_from(data, start)[0]}]')
        start += size + -size % 4


@contextlib.contextmanager
def opened(name: str) -> Iterator['End']:
  """Yields a view of a socket of this process.

  Args:
    name: File descriptor of the socket, as text.

  Raises:
    OSError: If it has been closed, or has no IPv4 or IPv6 address.
  """
  # A duplicate, so that no other file can take its number meanwhile.
  duplicate = os.dup(int(name))
  try:
    handle = socket.socket(fileno=duplicate)
  except OSError:
    os.close(duplicate)
    raise
  with handle:
    if handle.family not in (socket.AF_INET, socket.AF_INET6):
      raise OSError('Another family.')
    yield End(handle)


class End:
  """A socket of this process, valid within the context of `opened`.

  Attributes:
    port: Local port.
    peer: 'address:port' of the other end; '' if the socket is not connected.
  """

  def __init__(self, handle: socket.socket):
    """Creates the view of a socket.

    Args:
      handle: A duplicate of the socket, which the context closes.
    """
    self._handle = handle
    self.port = handle.getsockname()[1]
    self.peer = ''
    with contextlib.suppress(OSError):  # It is not connected.
      address, port, *_ = handle.getpeername()
      # gRPC uses IPv6 sockets, which show IPv4 peers as mapped addresses.
      self.peer = f'{address.removeprefix("::ffff:")}:{port}'

  @property
  def received_bytes(self) -> int:
    """Number of bytes received so far."""
    info = self._handle.getsockopt(
      socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES
    )
    (received,) = struct.unpack_from('=Q', info, _RECEIVED)
    return int(received)

  def shut_down(self) -> None:
    """Ends the connection in both directions, at once."""
    self._handle.shutdown(socket.SHUT_RDWR)

  def keep_alive(self) -> None:
    """Turns on TCP keepalive: a dead peer ends the connection in a minute."""
    limit_ms = 1000 * (_IDLE_S + _PROBES * _INTERVAL_S)
    self._handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
      (socket.TCP_KEEPIDLE, _IDLE_S),
      (socket.TCP_KEEPINTVL, _INTERVAL_S),
      (socket.TCP_KEEPCNT, _PROBES),
      (socket.TCP_USER_TIMEOUT, limit_ms),
    ):
      self._handle.setsockopt(socket.IPPROTO_TCP, option, value)


def shut_down(port: int, peer: str) -> None:
  """Shuts down the connection of a port of this process to a peer.

  Flight cannot end a call on the side of the server.
  """
  for name in numbers().values():
    with contextlib.suppress(OSError), opened(name) as end:
      if (end.port, end.peer) == (port, peer):
        end.shut_down()


def to(peer: str) -> set[str]:
  """Returns the inodes of the sockets that are connected to a peer."""
  found = set()
  for number, name in numbers().items():
    with contextlib.suppress(OSError), opened(name) as end:
      if end.peer == peer:
        found.add(number)
  return found


def shut_down_to(peer: str, inodes: set[str]) -> None:
  """Shuts down those of some sockets that are connected to a peer."""
  for number, name in numbers().items():
    if number in inodes:
      # The inode may belong to another socket by now.
      with contextlib.suppress(OSError), opened(name) as end:
        if end.peer == peer:
          end.shut_down()


def keep_alive(peer: str) -> None:
  """Turns on TCP keepalive for all connections to a peer."""
  for name in numbers().values():
    with contextlib.suppress(OSError), opened(name) as end:
      if end.peer == peer:
        end.keep_alive()


def refusal(host: str, port: int) -> OSError | None:
  """Returns why an address cannot be listened on; None if it can.

  Args:
    host: IPv4 address; '' for all addresses of this host, those of IPv6 too.
    port: 0 for any.
  """
  # A dual-stack IPv6 socket occupies the port of IPv4 as well.
  both = not host and socket.has_dualstack_ipv6()
  try:
    with socket.socket(socket.AF_INET6 if both else socket.AF_INET) as probe:
      # As listeners do: ports of closed connections may be used.
      probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      if both:
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
      probe.bind((host, port))
  except OSError as error:
    return error
  return None


def is_specific(host: str) -> bool:
  """Returns whether a host is the IPv4 address of one interface."""
  try:
    return not ipaddress.IPv4Address(host).is_unspecified
  except ValueError:
    return False


def resolved(address: str) -> str:
  """Returns 'IPv4 address:port' of 'host:port'.

  Raises:
    OSError: If the name of the host cannot be resolved.
    ValueError: If the address has another form.
  """
  host, _, port = address.rpartition(':')
  valid = bool(host) and port.isascii() and port.isdecimal()
  require(valid, 'address', 'HOST:PORT', address)
  return f'{socket.gethostbyname(host)}:{int(port)}'
