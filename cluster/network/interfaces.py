"""Addresses of this host's network interfaces (Linux): IPv4 and IPv6."""

import contextlib
import fcntl
import ipaddress
import pathlib
import socket
import struct

from configs.checks import require

_SIOCGIFADDR, _SIOCGIFHWADDR = 0x8915, 0x8927
_IPV6_FILE = pathlib.Path('/proc/net/if_inet6')
# Flags of IPv6 addresses (linux/if_addr.h): temporary, deprecated, and two for
# which no socket can have the address: another host has it, or may have it.
_TEMPORARY, _DEPRECATED, _DUPLICATE, _TENTATIVE = 0x01, 0x20, 0x08, 0x40


def interface_address(name: str) -> str:
  """Returns the address of an interface, or this host's in a network.

  Link-local addresses of IPv6 are left out: each host would have to write the
  name of its own interface behind those of the others.

  Args:
    name: Name of an interface, such as 'eth0', an address of this host, or a
      network, such as '10.0.0.0/8' or 'fd00::/8'.  A network can be the same on
      all hosts, even if their interfaces have different names.  An interface
      with both kinds of addresses stands for that of IPv4.

  Raises:
    ValueError: If there is no such interface or address, or if not exactly one
      address is in the network; lists the addresses.
  """
  found = _addresses()
  if name in found:
    own = found[name]
    expected = 'one with an address that is not link-local'
    require(bool(own), 'interface', expected, name)
    family = ipaddress.ip_address(own[0]).version
    own = [a for a in own if ipaddress.ip_address(a).version == family]
    expected = f'one of the addresses {own} instead'
    require(len(own) == 1, 'interface', expected, name)
    return own[0]
  listed = {key: own for key, own in found.items() if own}
  network = _parse_network(name, listed)
  every = (ipaddress.ip_address(a) for own in listed.values() for a in own)
  inside = sorted({str(a) for a in every if a in network})
  expected = f'a network with one address of {listed}'
  if len(inside) > 1:
    expected = f'a smaller network than one with {inside}'
  require(len(inside) == 1, 'interface', expected, name)
  return inside[0]


def _parse_network(
  name: str, listed: dict[str, list[str]]
) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
  """Returns the network that a text stands for, of one address or more.

  Args:
    name: The text.
    listed: Addresses of this host, by interface.
  """
  try:
    network = ipaddress.ip_network(name)
  except ValueError as error:
    expected = f'one of {sorted(listed)}, or a network or address of {listed}'
    require('/' in name, 'interface', expected, name)
    raise ValueError(
      'interface: expected a network such as 10.0.0.0/8 or fd00::/8, got '
      f'{name!r}: {error}.'
    ) from error
  expected = f'a network that is not link-local, with one address of {listed}'
  is_local = network.version == 6 and network.is_link_local
  require(not is_local, 'interface', expected, name)
  return network


def interface_name(name: str) -> str:
  """Returns the name of an interface, or of this host's in a network.

  Args:
    name: As of `interface_address`.

  Raises:
    ValueError: As of `interface_address`.
  """
  address, found = interface_address(name), _addresses()
  if name in found:
    return name
  return min(key for key, own in found.items() if address in own)


def is_loopback(address: str) -> bool:
  """Returns whether only this host can reach an address."""
  return ipaddress.ip_address(address).is_loopback


def card(address: str) -> str:
  """Returns the hardware address of the interface with an address.

  As hexadecimal digits; '' if no interface of this host has the address.
  """
  names = [name for name, own in _addresses().items() if address in own]
  if not names:
    return ''
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    request = struct.pack('256s', names[0].encode())
    return fcntl.ioctl(probe, _SIOCGIFHWADDR, request)[18:24].hex()


def _addresses() -> dict[str, list[str]]:
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
