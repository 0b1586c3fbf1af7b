"""IPv4 addresses of this host's network interfaces (Linux)."""

import contextlib
import fcntl
import ipaddress
import socket
import struct

from configs.checks import require

_SIOCGIFADDR, _SIOCGIFHWADDR = 0x8915, 0x8927


def interface_address(name: str) -> str:
  """Returns the IPv4 address of an interface, or this host's in a network.

  Args:
    name: Name of an interface, such as 'eth0', or a network, such as
      '10.0.0.0/8'.  A network can be the same on all hosts, even if their
      interfaces have different names.

  Raises:
    ValueError: If there is no such interface or it has no IPv4 address, or if
      not exactly one address is in the network; lists the addresses.
  """
  found = _addresses()
  if '/' not in name:
    require(name in found, 'interface', f'one of {sorted(found)}', name)
    return found[name]
  try:
    network = ipaddress.IPv4Network(name)
  except ValueError as error:
    raise ValueError(
      f'interface: expected a network such as 10.0.0.0/8, got {name!r}: '
      f'{error}.'
    ) from error
  own = sorted(
    {a for a in found.values() if ipaddress.IPv4Address(a) in network}
  )
  expected = f'a network with one address of {found}'
  if len(own) > 1:
    expected = f'a smaller network than one with {own}'
  require(len(own) == 1, 'interface', expected, name)
  return own[0]


def interface_name(name: str) -> str:
  """Returns the name of an interface, or of this host's in a network.

  Args:
    name: As of `interface_address`.

  Raises:
    ValueError: As of `interface_address`.
  """
  address = interface_address(name)
  if '/' not in name:
    return name
  return min(key for key, found in _addresses().items() if found == address)


def is_loopback(address: str) -> bool:
  """Returns whether only this host can reach an address."""
  return ipaddress.ip_address(address).is_loopback


def card(address: str) -> str:
  """Returns the hardware address of the interface with an IPv4 address.

  As hexadecimal digits; '' if no interface of this host has the address.
  """
  names = [name for name, own in _addresses().items() if own == address]
  if not names:
    return ''
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    request = struct.pack('256s', names[0].encode())
    return fcntl.ioctl(probe, _SIOCGIFHWADDR, request)[18:24].hex()


def _addresses() -> dict[str, str]:
  """Returns the IPv4 addresses of this host, by interface."""
  found = {}
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    for _, interface in socket.if_nameindex():
      request = struct.pack('256s', interface.encode())
      with contextlib.suppress(OSError):  # No IPv4 address.
        reply = fcntl.ioctl(probe, _SIOCGIFADDR, request)
        found[interface] = socket.inet_ntoa(reply[20:24])
  return found
