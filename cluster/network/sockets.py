"""Addresses of hosts and ports, and listening sockets (IPv4 and IPv6).

An address is 'host:port', or '[host]:port' if the host is an IPv6 address.
"""

import contextlib
import ipaddress
import re

from configs.checks import require
from system import net

_BACKLOG = 4096


def is_specific(host: str) -> bool:
  """Returns whether a host is the IPv4 or IPv6 address of one interface."""
  try:
    return not ipaddress.ip_address(host).is_unspecified
  except ValueError:
    return False


def join(host: str, port: int) -> str:
  """Returns the address of a host and a port."""
  return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'


def split(address: str) -> tuple[str, int]:
  """Returns the host and the port of an address.

  Raises:
    ValueError: If the address has another form.
  """
  host, _, port = address.rpartition(':')
  valid = bool(host) and port.isascii() and port.isdecimal()
  require(valid, 'address', 'HOST:PORT or [IPv6]:PORT', address)
  if host.startswith('[') and host.endswith(']'):
    return host[1:-1], int(port)
  require(':' not in host, 'address', 'HOST:PORT or [IPv6]:PORT', address)
  return host, int(port)


def resolve(address: str) -> list[str]:
  """Returns an address with the host as a number.

  A name may stand for an address of IPv4 and one of IPv6, in this order, while
  a process listens on one of them.

  Raises:
    OSError: If the name of the host cannot be resolved.
    ValueError: If the address has another form.
  """
  host, port = split(address)
  found = net.getaddrinfo(host, port, type=net.SOCK_STREAM)
  numbers: dict[int, str] = {}
  for family, _, _, _, where in found:
    flags = net.NI_NUMERICHOST | net.NI_NUMERICSERV
    name, _ = net.getnameinfo(where, flags)
    numbers.setdefault(family, join(name, port))
  return [numbers[family] for family in sorted(numbers)]


def without_zone(address: str) -> str:
  """Returns an address without IPv6's zone, which differs between hosts."""
  return re.sub(r'%[^\]]*', '', address)


def origin(host: str) -> str:
  """Returns what limits per address apply to: the network, for IPv6.

  A host of IPv6 usually has all addresses of a network of 64 bits.
  """
  if ':' not in host:
    return host
  address = ipaddress.IPv6Address(host.partition('%')[0])
  return address.packed[:8].hex(':', 2)


def start_connecting(address: str) -> net.Socket:
  """Returns a non-blocking socket whose connection has begun.

  Args:
    address: Numeric address.

  Raises:
    OSError: If the connection fails at once.
  """
  host, port = split(address)
  family, kind, protocol, _, where = net.getaddrinfo(
    host, port, type=net.SOCK_STREAM, flags=net.AI_NUMERICHOST
  )[0]
  sock = net.Socket(family, kind, protocol)
  try:
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
      sock.connect(where)
  except OSError:
    sock.close()
    raise
  return sock


def listen(host: str, port: int) -> net.Socket:
  """Returns a non-blocking socket that listens on one address.

  Args:
    host: IPv4 or IPv6 address of one interface.
    port: Port; 0 for any that is free.

  Raises:
    OSError: If the address cannot be listened on.
  """
  family, kind, protocol, _, where = net.getaddrinfo(
    host, port, type=net.SOCK_STREAM, flags=net.AI_NUMERICHOST
  )[0]
  sock = net.Socket(family, kind, protocol)
  try:
    sock.setsockopt(net.SOL_SOCKET, net.SO_REUSEADDR, 1)
    sock.bind(where)
    sock.listen(_BACKLOG)
    sock.setblocking(False)
  except OSError:
    sock.close()
    raise
  return sock


def refusal(host: str, port: int) -> OSError | None:
  """Returns why an address cannot be listened on; None if it can.

  Args:
    host: IPv4 or IPv6 address; '' for all addresses of this host.
    port: 0 for any.
  """
  # A dual-stack IPv6 socket occupies the port of IPv4 as well.
  both = not host and net.has_dualstack_ipv6()
  is_ipv6 = both or ':' in host
  try:
    with net.Socket(net.AF_INET6 if is_ipv6 else net.AF_INET) as probe:
      # As listeners do: ports of closed connections may be used.
      probe.setsockopt(net.SOL_SOCKET, net.SO_REUSEADDR, 1)
      if both:
        probe.setsockopt(net.IPPROTO_IPV6, net.IPV6_V6ONLY, 0)
      probe.bind((host, port))
  except OSError as error:
    return error
  return None
