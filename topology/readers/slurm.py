"""SLURM's topology.conf, for trees of switches (topology/tree).

Workers are hosts.  The file has no capacities: its LinkSpeed has no unit, and
SLURM ignores it.
"""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from topology.clusters import parts
from topology.clusters.cluster import Cluster
from topology.clusters.parts import LinkTo
from topology.readers.capacities import Capacities

_KEYS = ('switchname', 'nodes', 'switches', 'linkspeed', 'comment')
_WORD = re.compile(r'([A-Za-z]\w*)\s*=\s*("[^"]*"|\S+)\s*')
_RANGE = re.compile(r'(\d+)(?:-(\d+))?$')
_MOST_HOSTS = 100_000


class _Switch(NamedTuple):
  """Line of a switch: what is below it, and the line's number."""

  nodes: list[str]
  switches: list[str]
  line: int


def matches(text: str) -> bool:
  """Returns whether a text has a line of a topology.conf: switch or block."""
  return bool(re.search(r'(?im)^\s*(switch|block)name\s*=', text))


def read(text: str, capacities: Capacities, hosts: str = '') -> Cluster:
  """Returns the hosts and switches of a file.

  Args:
    text: Content of the file.
    capacities: `node_GBps` of a host's link, and with several switches
      `switch_GBps` of the link between two of them.
    hosts: Hosts to use, as SLURM writes them (`n[0-3,8]`); '' for all.

  Raises:
    ValueError: If the file is wrong, or a capacity is missing; names the line,
      or the capacity.
  """
  switches = _read_switches(text)
  names = {node for each in switches.values() for node in each.nodes}
  if not names:
    raise ValueError('Nodes: expected one host or more, got none.')
  used = names
  if hosts:
    used = set(expand(hosts))
    if unknown := sorted(used - names):
      raise ValueError(
        f'hosts: expected hosts of the file, got {unknown[0]!r}.'
      )
  kept = _without_idle(switches, used)
  workers = [n for each in kept.values() for n in each.nodes if n in used]
  links: list[LinkTo] = []
  node_GBps = capacities.need('node_GBps', 'a host')
  between = [
    (name, below)
    for name, each in kept.items()
    for below in each.switches
    if below in kept
  ]
  for name, each in kept.items():
    ends = [(node, name) for node in each.nodes if node in used]
    links += parts.make_links(ends, node_GBps)
  if between:
    switch_GBps = capacities.need('switch_GBps', 'a switch to the one above it')
    links += parts.make_links(between, switch_GBps)
  return parts.make_cluster(workers, list(kept), links)


def expand(hostlist: str) -> list[str]:
  """Returns the host names of a SLURM hostlist, such as 'n[00-03,8],login'.

  Raises:
    ValueError: If it is none.
  """
  names = [
    name for part in _split(hostlist) for name in _expand_one(part, hostlist)
  ]
  if not names:
    raise ValueError(f'hosts: expected names, got {hostlist!r}.')
  return names


def _read_switches(text: str) -> dict[str, _Switch]:
  switches: dict[str, _Switch] = {}
  above: dict[str, str] = {}
  for number, line in _lines(text):
    words = _words(line, number)
    if 'blockname' in words or 'blocksizes' in words:
      raise ValueError(
        f'line {number}: expected SwitchName, as blocks have no switches, got '
        f'{line.strip()!r}.'
      )
    if unknown := sorted(words.keys() - {*_KEYS}):
      raise ValueError(f'line {number}: expected {_KEYS}, got {unknown[0]!r}.')
    if 'switchname' not in words:
      raise ValueError(f'line {number}: expected SwitchName, got none.')
    try:
      name = words['switchname']
      nodes = expand(words['nodes']) if 'nodes' in words else []
      below = expand(words['switches']) if 'switches' in words else []
    except ValueError as error:
      raise ValueError(f'line {number}: {error}') from error
    if name in switches:
      raise ValueError(f'line {number}: expected switch {name!r} once.')
    for each in (*nodes, *below):
      if each in above:
        raise ValueError(
          f'line {number}: expected {each!r} below one switch, got {name!r} '
          f'and {above[each]!r}.'
        )
      above[each] = name
    switches[name] = _Switch(nodes, below, number)
  for switch in switches.values():
    for name in switch.switches:
      if name not in switches:
        raise ValueError(
          f'line {switch.line}, Switches: expected switches of the file, got '
          f'{name!r}.'
        )
  return switches


def _lines(text: str) -> Iterator[tuple[int, str]]:
  """Yields lines and their numbers, without comments and empty ones."""
  # A backslash at the end of a line continues it.
  held, first = '', 0
  for number, line in enumerate(text.splitlines(), 1):
    plain = line.partition('#')[0].rstrip()
    first = first if held else number
    if plain.endswith('\\'):
      held += plain[:-1] + ' '
      continue
    whole, held = held + plain, ''
    if whole.strip():
      yield first, whole
  if held.strip():
    yield first, held


def _words(line: str, number: int) -> dict[str, str]:
  words: dict[str, str] = {}
  rest = line.strip()
  while rest:
    match = _WORD.match(rest)
    if match is None:
      raise ValueError(f'line {number}: expected KEY=VALUE, got {rest!r}.')
    key = match[1].lower()
    if key in words:
      raise ValueError(f'line {number}: expected {match[1]} once.')
    words[key] = match[2].strip('"')
    rest = rest[match.end() :]
  return words


def _without_idle(
  switches: dict[str, _Switch], used: set[str]
) -> dict[str, _Switch]:
  """Returns the switches that have hosts to use below them."""
  kept = dict(switches)
  while True:
    idle = [
      name
      for name, each in kept.items()
      if used.isdisjoint(each.nodes) and kept.keys().isdisjoint(each.switches)
    ]
    if not idle:
      return kept
    for name in idle:
      del kept[name]


def _split(text: str) -> list[str]:
  """Returns the parts of a text between commas outside brackets."""
  pieces = re.findall(r'(?:[^,\[\]]|\[[^\]]*\])+', text)
  if ','.join(pieces) != text:
    raise ValueError(f'hosts: expected a list of names, got {text!r}.')
  return pieces


def _expand_one(part: str, whole: str) -> list[str]:
  pieces = re.split(r'\[([^\]]*)\]', part)
  choices = [[pieces[0]]]
  for inside, after in zip(pieces[1::2], pieces[2::2], strict=True):
    choices.append([n + after for n in _numbers(inside, whole)])
  found = [''.join(each) for each in itertools.product(*choices)]
  if len(found) > _MOST_HOSTS:
    raise ValueError(f'hosts: expected at most {_MOST_HOSTS}, got {whole!r}.')
  return found


def _numbers(inside: str, whole: str) -> list[str]:
  """Returns the numbers of brackets, with their leading zeros."""
  numbers: list[str] = []
  for each in inside.split(','):
    match = _RANGE.match(each)
    first, last = (match[1], match[2] or match[1]) if match else ('1', '0')
    if not 0 <= int(last) - int(first) < _MOST_HOSTS:
      raise ValueError(f'hosts: expected numbers in brackets, got {whole!r}.')
    numbers += [
      str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)
    ]
  return numbers
