"""Sockets, and waiting for their events.  TLS is `ssl`, over real ones only."""

import contextlib
import fcntl
import ipaddress
import os
import pathlib
import select
import socket
import struct

AF_INET = socket.AF_INET
AF_INET6 = socket.AF_INET6
AI_NUMERICHOST = socket.AI_NUMERICHOST
EAI_AGAIN = socket.EAI_AGAIN
IPPROTO_IPV6 = socket.IPPROTO_IPV6
IPPROTO_TCP = socket.IPPROTO_TCP
IPV6_V6ONLY = socket.IPV6_V6ONLY
MSG_DONTWAIT = socket.MSG_DONTWAIT
MSG_PEEK = socket.MSG_PEEK
NI_NUMERICHOST = socket.NI_NUMERICHOST
NI_NUMERICSERV = socket.NI_NUMERICSERV
SHUT_RDWR = socket.SHUT_RDWR
SHUT_WR = socket.SHUT_WR
SO_ERROR = socket.SO_ERROR
SO_KEEPALIVE = socket.SO_KEEPALIVE
SO_RCVLOWAT = socket.SO_RCVLOWAT
SO_REUSEADDR = socket.SO_REUSEADDR
SOCK_DGRAM = socket.SOCK_DGRAM
SOCK_STREAM = socket.SOCK_STREAM
SOL_SOCKET = socket.SOL_SOCKET
TCP_INFO = socket.TCP_INFO
TCP_KEEPCNT = socket.TCP_KEEPCNT
TCP_KEEPIDLE = socket.TCP_KEEPIDLE
TCP_KEEPINTVL = socket.TCP_KEEPINTVL
TCP_NODELAY = socket.TCP_NODELAY
TCP_NOTSENT_LOWAT = socket.TCP_NOTSENT_LOWAT
TCP_USER_TIMEOUT = socket.TCP_USER_TIMEOUT
EPOLLIN, EPOLLOUT = select.EPOLLIN, select.EPOLLOUT
EPOLLET = select.EPOLLET
Socket = socket.socket
gaierror = socket.gaierror
create_connection = socket.create_connection
create_server = socket.create_server
getaddrinfo = socket.getaddrinfo
gethostname = socket.gethostname
getnameinfo = socket.getnameinfo
has_dualstack_ipv6 = socket.has_dualstack_ipv6
epoll = select.epoll
poll = select.poll

_SIOCGIFADDR, _SIOCGIFHWADDR = 0x8915, 0x8927
_IPV6_FILE = pathlib.Path('/proc/net/if_inet6')
# Flags of IPv6 addresses (linux/if_addr.h): temporary, deprecated, and two for
# which no socket can have the address: another host has it, or may have it.
_TEMPORARY, _DEPRECATED, _DUPLICATE, _TENTATIVE = 0x01, 0x20, 0x08, 0x40


def interface_addresses() -> dict[str, list[str]]:
  """Returns the addresses of this host by interface, that of IPv4 first."""
  found: dict[str, list[str]] = {}
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    for _, interface in socket.if_nameindex():
      found[interface] = []
      request = struct.pack('256s', interface.encode())
      with contextlib.suppress(OSError):  # No IPv4 address.
        reply = fcntl.ioctl(probe, _SIOCGIFADDR, request)
        found[interface].append(socket.inet_ntoa(reply[20:24]))
  with contextlib.suppress(FileNotFoundError):  # A kernel without IPv6.
    for line in _IPV6_FILE.read_text().splitlines():
      digits, _, _, _, flags, interface = line.split()
      address = ipaddress.IPv6Address(bytes.fromhex(digits))
      unfit = _TEMPORARY | _DEPRECATED | _DUPLICATE | _TENTATIVE
      if not (address.is_link_local or int(flags, 16) & unfit):
        found.setdefault(interface, []).append(str(address))
  return found


def hardware_address(address: str) -> str:
  """Returns the hardware address of the interface with an address.

  As hexadecimal digits; '' if no interface of this host has the address.
  """
  names = [n for n, own in interface_addresses().items() if address in own]
  if not names:
    return ''
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    request = struct.pack('256s', names[0].encode())
    return fcntl.ioctl(probe, _SIOCGIFHWADDR, request)[18:24].hex()


class Wake:
  """A descriptor that polls see as readable once another thread has set it."""

  def __init__(self) -> None:
    """Raises OSError if the process has no descriptors left."""
    self.number = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

  def set(self) -> None:
    """Makes it readable."""
    os.eventfd_write(self.number, 1)

  def clear(self) -> None:
    """Makes it unreadable again."""
    os.eventfd_read(self.number)

  def close(self) -> None:
    """Closes the descriptor."""
    os.close(self.number)
