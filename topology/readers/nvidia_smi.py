"""The matrix that `nvidia-smi topo -m` prints, of the GPUs of one host.

NV4 between two GPUs stands for four NVLinks.  If a GPU's numbers add up to more
links than any GPU has, the links lead to an NVSwitch, and each number is that
of all its links.  The other words name the way over PCIe, from the shortest:
PIX (one PCIe switch), PXB (several), PHB (a host bridge), NODE (bridges of one
NUMA node), SYS (from socket to socket).  PCIe is used if NVLinks do not join
all GPUs.  Where two GPUs share NVLinks the matrix does not say how PCIe joins
them; each is taken to have a PCIe link of its own then.

Network cards are no workers, and no way leads through them.
"""

import itertools
import re

from topology.clusters import parts
from topology.clusters.cluster import Cluster
from topology.readers.capacities import Capacities
from topology.readers.pcie import Branch, Builder

_MOST_NVLINKS = 18  # Of a GPU with NVLink 4 or 5; earlier ones have fewer.
_LEVELS = ('PIX', 'PXB', 'PHB', 'NODE', 'SYS')
_FORMER = {'SOC': 'SYS'}  # Until driver 384.
_ESCAPE = re.compile(r'\x1b\[[0-9;]*m')
_GPU, _NVLINKS = re.compile(r'GPU\d+$'), re.compile(r'NV(\d+)$')

_Pair = tuple[str, str]


def matches(text: str) -> bool:
  """Returns whether a text has the head of the matrix of nvidia-smi."""
  return any(_head(line) for line in text.splitlines())


def read(text: str, capacities: Capacities) -> Cluster:
  """Returns the GPUs of a host, as workers GPU0, GPU1 and so on.

  Args:
    text: Output of the command; lines around the matrix are ignored.
    capacities: `nvlink_GBps` of one NVLink (25 from V100 to H100, 50 of B200);
      where PCIe joins GPUs, `pcie_GBps` of a PCIe link, and `socket_GBps`
      between the sockets.

  Raises:
    ValueError: If the matrix is not complete, or a capacity is missing; names
      the line, or the capacity.
  """
  names, words = _read_words(text)
  nvlinks = _nvlinks(words)
  builder = Builder()
  if nvlinks:
    unit = capacities.need('nvlink_GBps', 'one NVLink')
    if _has_switch(names, nvlinks):
      builder.switches.append('nvswitch')
      for name in names:
        count = max(nvlinks.get((name, other), 0) for other in names)
        if count:
          builder.connect(name, 'nvswitch', count * unit)
    else:
      for (a, b), count in nvlinks.items():
        if names.index(a) < names.index(b):
          builder.connect(a, b, count * unit)
  if not _joins_all(names, nvlinks):
    _add_pcie(names, words, builder, capacities)
  return parts.make_cluster(names, builder.switches, builder.links)


def _head(line: str) -> list[str]:
  """Returns the devices of a matrix's head; [] if a line is none."""
  found = _ESCAPE.sub('', line).split()
  if not found or not _GPU.match(found[0]):
    return []
  devices = list(
    itertools.takewhile(lambda each: each not in ('CPU', 'NUMA'), found)
  )
  is_head = 'X' not in devices and not any(map(_is_word, devices))
  return devices if is_head else []


def _is_word(text: str) -> bool:
  known = text in _LEVELS or text in _FORMER
  return known or bool(_NVLINKS.match(text))


def _read_words(text: str) -> tuple[list[str], dict[_Pair, str]]:
  """Returns the GPUs, and the word of each ordered pair."""
  lines = enumerate(text.splitlines(), 1)
  devices: list[str] = []
  for head_at, line in lines:  # noqa: B007  Used by messages below.
    if devices := _head(line):
      break
  names = [each for each in devices if _GPU.match(each)]
  if len(set(devices)) != len(devices):
    raise ValueError(
      f'line {head_at}: expected each device once, got {line!r}.'
    )
  words: dict[_Pair, str] = {}
  left = [*names]
  for number, line in lines:
    row = _ESCAPE.sub('', line).split()
    if not row or row[0] not in names:
      continue
    name, *found = row
    if name not in left:
      raise ValueError(f'line {number}: expected {name} once, got it again.')
    left.remove(name)
    if len(found) < len(devices):
      raise ValueError(
        f'line {number}: expected a word for each of {len(devices)} devices, '
        f'got {len(found)}.'
      )
    for other, word in zip(devices, found, strict=False):
      if other in names:
        words[name, other] = _check_word(word, number, name, other)
  if left:
    raise ValueError(f'line {head_at}: expected a row for {left[0]}, got none.')
  for a, b in itertools.combinations(names, 2):
    if words[a, b] != words[b, a]:
      raise ValueError(
        f'{a}, {b}: expected one word both ways, got {words[a, b]!r} and '
        f'{words[b, a]!r}.'
      )
  return names, words


def _check_word(word: str, line: int, name: str, other: str) -> str:
  word = _FORMER.get(word, word)
  if word == 'X' if name == other else _is_word(word):
    return word
  expected = 'X' if name == other else f'NV and a number, or one of {_LEVELS}'
  raise ValueError(
    f'line {line}, {name} to {other}: expected {expected}, got {word!r}.'
  )


def _nvlinks(words: dict[_Pair, str]) -> dict[_Pair, int]:
  found = {pair: _NVLINKS.match(word) for pair, word in words.items()}
  return {pair: int(match[1]) for pair, match in found.items() if match}


def _has_switch(names: list[str], nvlinks: dict[_Pair, int]) -> bool:
  """Returns whether the NVLinks of a GPU lead to an NVSwitch."""
  total = dict.fromkeys(names, 0)
  for (name, _), count in nvlinks.items():
    total[name] += count
  return max(total.values()) > _MOST_NVLINKS


def _joins_all(names: list[str], nvlinks: dict[_Pair, int]) -> bool:
  return len(_groups(names, set(nvlinks))) == 1


def _groups(names: list[str], pairs: set[_Pair]) -> list[list[str]]:
  """Returns names that pairs join, directly or not, in their order."""
  groups = [[name] for name in names]
  for a, b in sorted(pairs):
    first, second = (next(g for g in groups if each in g) for each in (a, b))
    if first is not second:
      groups.remove(second)
      first += second
  order = names.index
  return sorted(
    (sorted(g, key=order) for g in groups), key=lambda g: order(g[0])
  )


def _add_pcie(
  names: list[str],
  words: dict[_Pair, str],
  builder: Builder,
  capacities: Capacities,
) -> None:
  """Adds PCIe switches, host bridges and sockets, each level above the last."""
  GBps = capacities.need('pcie_GBps', 'a PCIe link of a GPU')
  branches = {name: Branch(name, GBps) for name in names}
  near: set[_Pair] = set()
  for level in _LEVELS[:-1]:
    near |= {pair for pair, word in words.items() if word == level}
    for number, group in enumerate(_groups(names, near)):
      below = list(dict.fromkeys(branches[name] for name in group))
      joined = builder.join(f'{level.lower()}{number}', below, GBps)
      branches |= dict.fromkeys(group, joined)
  sockets = list(dict.fromkeys(branch.node for branch in branches.values()))
  if len(sockets) > 1:
    between = capacities.need('socket_GBps', 'a socket to the others')
    builder.join_sockets(sockets, between)
