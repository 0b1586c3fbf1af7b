"""Addresses of this host's network interfaces (Linux): IPv4 and IPv6."""

import ipaddress

from configs.checks import require
from system import net


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
  found = net.interface_addresses()
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
  address, found = interface_address(name), net.interface_addresses()
  if name in found:
    return name
  return min(key for key, own in found.items() if address in own)


def is_loopback(address: str) -> bool:
  """Returns whether only this host can reach an address."""
  return ipaddress.ip_address(address).is_loopback
