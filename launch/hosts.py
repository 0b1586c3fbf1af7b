"""Hosts of a lab: their links, addresses, and the commands that create them.

This module changes nothing on the machine; launch/lab.py runs the commands.

Each host is a network namespace with one interface, and a further namespace
holds the bridge that joins them: the machine's own namespace gets neither an
interface nor a route, so the addresses below cannot collide with its own.  HTB
limits the rate of a host's traffic, in total and to one destination, at its end
of the link, and the rate of its received traffic at the other end.  A group of
hosts has its own bridge, with a limited link to the bridge around it, which may
delay frames (`delayed_link`).  Rates count Ethernet frames.  The only other
delay is that of queues (1000 packets), and traffic of a host to itself is not
limited.

The lab sets TCP's congestion control, because the gain of a scheme depends on
how evenly transfers share a link.  By default it also disables Linux's slow
start after idle periods: a worker pauses between transfers for longer than TCP
allows, and while acknowledgements wait in queues behind data a slow start takes
seconds.
"""

import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from configs.checks import require

SWITCH = 'switch'
_UNITS = {'k': 10**3, 'm': 10**6, 'g': 10**9}
_RATE = re.compile(r'(\d{1,12}(?:\.\d{1,12})?)([kmg])bit')
_LOWEST, _HIGHEST = 8_000, 10**11
_BURST_S = 1e-3  # Burst after a pause, as time at the rate.
_PACKETS = 3028  # Smallest burst, bytes: two full Ethernet frames.
_MOST = 250  # Hosts.
_LONGEST_MS = 2000.0  # Delay of a group.
_CONGESTION = re.compile('[a-z0-9_]{1,15}')
_NETWORK = '10.213.0'  # Prefix of the addresses, a /24 network.
_OTHERS = 2  # HTB class of frames to hosts without a special rate.


@dataclasses.dataclass(frozen=True)
class HostGroup:
  """Hosts behind a shared link; rates in bit/s.

  Attributes:
    hosts: Names of the hosts.
    up: Rate of their traffic to other hosts, in total.
    down: Rate of traffic from other hosts, in total.
    delay_s: Seconds that frames to and from other hosts take longer, one way.
  """

  hosts: frozenset[str]
  up: int
  down: int
  delay_s: float


@dataclasses.dataclass
class Links:
  """Rates of all links, in bit/s, and how transfers share them.

  Attributes:
    up: Send rate of each host, by name, in the order of the addresses.
    down: Receive rate of each host, by name.
    pairs: Rate from one host to another, by sender and receiver.
    groups: Hosts behind shared links; of any two, one is within the other, or
      they have no host in common.
    congestion: TCP's congestion control, by the kernel's name.
    slow_start_after_idle: True if connections start slowly after pauses; the
      kernel's name.
  """

  up: dict[str, int]
  down: dict[str, int]
  pairs: dict[tuple[str, str], int]
  groups: list[HostGroup]
  congestion: str
  slow_start_after_idle: bool


def parse_rate(text: object, field: str) -> int:
  """Returns a rate such as '200mbit' or '1.5gbit' in bit/s.

  Args:
    text: A number and kbit, mbit or gbit, from 8kbit to 100gbit.

  Raises:
    ValueError: If the text is no such rate; names `field`.
  """
  match = _RATE.fullmatch(text) if isinstance(text, str) else None
  rate = round(float(match[1]) * _UNITS[match[2]]) if match else 0
  expected = "a rate from '8kbit' to '100gbit' such as '200mbit'"
  require(_LOWEST <= rate <= _HIGHEST, field, expected, text)
  return rate


def parse_links(
  hosts: int,
  link: str,
  text: str = '{}',
  congestion: str = 'cubic',
  slow_start_after_idle: bool = False,
) -> Links:
  """Returns the links of hosts named host0, host1 and so on.

  Args:
    hosts: Number of hosts, 2 to 250.
    link: Rate of every link, both ways.
    text: Exceptions, as JSON: {"hosts": {NAME: {"up": RATE, "down": RATE}},
      "pairs": [{"from": NAME, "to": NAME, "rate": RATE}], "groups": [{"hosts":
      [NAME, ...], "up": RATE, "down": RATE, "delay_ms": NUMBER}]}; all but the
      fields of a pair and the hosts of a group are optional.
    congestion: TCP's congestion control, by the kernel's name.

  Raises:
    ValueError: If an argument is out of its range, or the text is not of this
      form, names an unknown host or names a pair twice, or if groups overlap.
  """
  require(2 <= hosts <= _MOST, 'hosts', f'from 2 to {_MOST}', hosts)
  rate = parse_rate(link, 'link')
  names = [f'host{index}' for index in range(hosts)]
  known = bool(_CONGESTION.fullmatch(congestion))
  require(known, 'congestion', "a name such as 'cubic'", congestion)
  up, down = dict.fromkeys(names, rate), dict.fromkeys(names, rate)
  links = Links(up, down, {}, [], congestion, slow_start_after_idle)
  try:
    data = json.loads(text)
  except json.JSONDecodeError as error:
    raise ValueError(f'links: expected JSON, got {error}.') from error
  _fields(data, 'links', optional=('hosts', 'pairs', 'groups'))
  _read_hosts(data.get('hosts', {}), links)
  _read_pairs(data.get('pairs', []), links)
  _read_groups(data.get('groups', []), links, rate)
  return links


def addresses(links: Links) -> dict[str, str]:
  """Returns the IPv4 address of each host by its name."""
  return {name: f'{_NETWORK}.{n}' for n, name in enumerate(links.up, start=1)}


def hosts_file(links: Links) -> str:
  """Returns the text of /etc/hosts, the same on every host."""
  lines = ['127.0.0.1 localhost', '::1 localhost ip6-localhost']
  lines += [f'{address} {name}' for name, address in addresses(links).items()]
  return '\n'.join(lines) + '\n'


def namespaces(lab: str, links: Links) -> list[str]:
  """Returns the names of a lab's namespaces, the switch's first."""
  return [f'{lab}-{name}' for name in (SWITCH, *links.up)]


def commands(lab: str, links: Links) -> Iterator[str]:
  """Yields the commands that create a lab's namespaces and links, in order."""
  switch = f'{lab}-{SWITCH}'
  address = addresses(links)
  yield f'ip netns add {switch}'
  bridges = ['bridge', *(f'bridge{n}' for n, _ in enumerate(links.groups))]
  for bridge in bridges:
    yield f'ip -n {switch} link add {bridge} type bridge'
    yield f'ip -n {switch} link set {bridge} up'
  for number, group in enumerate(links.groups):
    up, down = _group_ends(number)
    if group.delay_s:
      for end in (up, down):
        yield f'ip -n {switch} tuntap add dev {end} mode tap vnet_hdr'
    else:
      yield f'ip -n {switch} link add {up} type veth peer name {down}'
    yield from _shape(switch, up, group.up, {})
    yield from _shape(switch, down, group.down, {})
    around = _bridge(links, group.hosts)
    yield f'ip -n {switch} link set {up} master bridge{number} up'
    yield f'ip -n {switch} link set {down} master {around} up'
  for host in links.up:
    own = f'{lab}-{host}'
    # Both ends are created in their namespaces, never in the machine's.
    veth = f'link add {host} type veth peer name eth0 netns {own}'
    yield f'ip netns add {own}'
    yield f'ip -n {switch} {veth}'
    here = f'{address[host]}/24 dev eth0 noprefixroute'
    yield f'ip -n {own} addr add {here}'
    pairs = {
      address[to]: rate
      for (sender, to), rate in links.pairs.items()
      if sender == host
    }
    yield from _shape(own, 'eth0', links.up[host], pairs)
    yield from _shape(switch, host, links.down[host], {})
    bridge = _bridge(links, {host}, own=True)
    yield f'ip -n {switch} link set {host} master {bridge} up'
    yield f'ip -n {own} link set lo up'
    yield f'ip -n {own} link set eth0 up'
    setting = f'tcp_slow_start_after_idle={int(links.slow_start_after_idle)}'
    yield f'ip netns exec {own} sysctl -qw net.ipv4.{setting}'
    route = f'{_NETWORK}.0/24 dev eth0 congctl {links.congestion}'
    yield f'ip -n {own} route add {route}'


def delays(lab: str, links: Links) -> Iterator[list[str]]:
  """Yields the commands that forward the frames of groups with a delay.

  Each runs as long as the lab, and prints `delayed_link.READY` at its start.
  """
  inside = f'ip netns exec {lab}-{SWITCH}'.split()
  module = [sys.executable, '-m', 'launch.delayed_link']
  for number, group in enumerate(links.groups):
    if group.delay_s:
      yield [*inside, *module, *_group_ends(number), f'{group.delay_s}']


def change_commands(lab: str, host: str, rate: int) -> Iterator[str]:
  """Yields the commands that change the rates of a host without pairs.

  Args:
    lab: Name of the lab.
    host: Name of the host.
    rate: New send and receive rate, bit/s.
  """
  ends = (f'{lab}-{host}', 'eth0'), (f'{lab}-{SWITCH}', host)
  for namespace, device in ends:
    for parent, number in (('1:', 1), ('1:1', _OTHERS)):
      added = _class(f'tc -n {namespace}', device, parent, number, rate, rate)
      yield added.replace('class add', 'class change')


def _group_ends(number: int) -> tuple[str, str]:
  """Returns the devices of a group's link: at its bridge, and around it."""
  return f'up{number}', f'down{number}'


def _bridge(links: Links, names: Set[str], *, own: bool = False) -> str:
  """Returns the bridge of the smallest group that has these hosts, and more."""
  # With `own`, the group may have exactly these hosts.
  around = [
    (len(group.hosts), f'bridge{number}')
    for number, group in enumerate(links.groups)
    if names < group.hosts or (own and names == group.hosts)
  ]
  return min(around)[1] if around else 'bridge'


def _shape(
  namespace: str, device: str, rate: int, pairs: Mapping[str, int]
) -> Iterator[str]:
  """Yields the commands that limit traffic out of a device; rates in bit/s."""
  tc = f'tc -n {namespace}'
  # HTB grants a leaf its rate even if its parent has less, so that the rates of
  # all leaves must not exceed the parent's; they borrow up to `ceil`.
  share = rate // (len(pairs) + 1)
  yield f'{tc} qdisc add dev {device} root handle 1: htb default {_OTHERS}'
  yield _class(tc, device, '1:', 1, rate, rate)
  yield _class(tc, device, '1:1', _OTHERS, share, rate)
  for leaf, (address, most) in enumerate(pairs.items(), start=_OTHERS + 1):
    most = min(most, rate)
    yield _class(tc, device, '1:1', leaf, min(share, most), most)
    yield (
      f'{tc} filter add dev {device} parent 1: protocol ip '
      f'u32 match ip dst {address}/32 flowid 1:{leaf:x}'
    )


def _class(
  tc: str, device: str, parent: str, number: int, rate: int, ceil: int
) -> str:
  burst = max(_PACKETS, round(ceil / 8 * _BURST_S))
  return (
    f'{tc} class add dev {device} parent {parent} classid 1:{number:x} htb '
    f'rate {rate}bit ceil {ceil}bit burst {burst} cburst {burst} '
    f'quantum {_PACKETS}'
  )


def _read_hosts(data: Any, links: Links) -> None:
  require(isinstance(data, dict), 'links.hosts', 'an object', data)
  for name, rates in data.items():
    field = f'links.hosts.{name}'
    _known(name, 'links.hosts', links)
    _fields(rates, field, optional=('up', 'down'))
    for way, rate in rates.items():
      getattr(links, way)[name] = parse_rate(rate, f'{field}.{way}')


def _read_pairs(data: Any, links: Links) -> None:
  require(isinstance(data, list), 'links.pairs', 'a list', data)
  for number, pair in enumerate(data):
    field = f'links.pairs[{number}]'
    _fields(pair, field, needed=('from', 'to', 'rate'))
    ends = pair['from'], pair['to']
    for name in ends:
      _known(name, field, links)
    new = ends[0] != ends[1] and ends not in links.pairs
    require(new, field, 'two different hosts, each pair once', ends)
    links.pairs[ends] = parse_rate(pair['rate'], f'{field}.rate')


def _read_groups(data: Any, links: Links, rate: int) -> None:
  require(isinstance(data, list), 'links.groups', 'a list', data)
  for number, group in enumerate(data):
    field = f'links.groups[{number}]'
    optional = ('up', 'down', 'delay_ms')
    _fields(group, field, needed=('hosts',), optional=optional)
    names = group['hosts']
    require(isinstance(names, list), f'{field}.hosts', 'a list', names)
    for name in names:
      _known(name, f'{field}.hosts', links)
    own = frozenset(names)
    valid = 0 < len(own) == len(names) < len(links.up)
    expected = 'hosts, each once, and not all hosts of the lab'
    require(valid, f'{field}.hosts', expected, names)
    for other in links.groups:
      apart = own < other.hosts or own > other.hosts or not own & other.hosts
      expected = 'groups that are within others or have no host in common'
      both = sorted(own), sorted(other.hosts)
      require(apart, f'{field}.hosts', expected, both)
    rates = {
      way: parse_rate(group[way], f'{field}.{way}') if way in group else rate
      for way in ('up', 'down')
    }
    delay_ms = group.get('delay_ms', 0)
    is_number = isinstance(delay_ms, (int, float)) and delay_ms is not True
    valid = is_number and 0 <= delay_ms <= _LONGEST_MS
    expected = f'a number from 0 to {_LONGEST_MS:.0f}'
    require(valid, f'{field}.delay_ms', expected, delay_ms)
    links.groups.append(HostGroup(own, **rates, delay_s=delay_ms / 1e3))


def _known(name: object, field: str, links: Links) -> None:
  known = isinstance(name, str) and name in links.up
  require(known, field, f'one of {list(links.up)}', name)


def _fields(
  data: Any,
  field: str,
  needed: Sequence[str] = (),
  optional: Sequence[str] = (),
) -> None:
  """Requires an object with all needed fields and no unknown ones."""
  valid = isinstance(data, dict) and (
    set(needed) <= set(data) <= {*needed, *optional}
  )
  parts = (('all', needed), ('some', optional))
  texts = [f'{kind} of the fields {[*names]}' for kind, names in parts if names]
  require(valid, field, f'an object with {" and ".join(texts)}', data)
