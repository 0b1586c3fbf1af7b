"""Clusters from measured rates between hosts.

A test is a set of simultaneous transfers: bytes per second by (sender,
receiver), hosts counted from 0.  In the model, a host sends at most at its `up`
rate and receives at most at its `down` rate; groups of hosts, such as those of
a rack, have such rates as well; and some pairs of hosts are slower.
`find_shortfalls` finds transfers that are slower than the model predicts;
topology/clusters/shared.py finds the groups.
"""

import decimal
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from topology.clusters.cluster import Cluster, Link

Ends = tuple[int, int]
Test = Mapping[Ends, float]
_GB = 10**9
_PROMISED = Fraction('1.03')  # Times its best, at most, of every rate.
_DIGITS = decimal.Context(prec=3, rounding=decimal.ROUND_DOWN)


class Group(NamedTuple):
  """Hosts behind a shared link.

  Attributes:
    hosts: Indices of the hosts, ascending.
    up_GBps: Rate at which they can send to all others together, 1e9 bytes per
      second.
    down_GBps: Rate at which they can receive from all others together.
  """

  hosts: tuple[int, ...]
  up_GBps: Fraction
  down_GBps: Fraction


class Rates(NamedTuple):
  """Rates of hosts, slow pairs of hosts, and groups.

  Attributes:
    up_GBps: Rate at which each host can send, 1e9 bytes per second.
    down_GBps: Rate at which each host can receive.
    pairs_GBps: Rate from a host to another, by (sender, receiver), where it is
      below the rates of both hosts and of the groups between them.
    groups: Hosts behind shared links; of any two groups, one is within the
      other, or they are disjoint.
  """

  up_GBps: tuple[Fraction, ...]
  down_GBps: tuple[Fraction, ...]
  pairs_GBps: dict[Ends, Fraction]
  groups: tuple[Group, ...] = ()

  def between(self, src: int, dst: int) -> Fraction:
    """Returns the rate from a host to another if nothing else is sent."""
    return min(self.limits(src, dst).values())

  def crossed(self, src: int, dst: int) -> bool:
    """Returns whether transfers from a host to another pass shared links."""
    return any(
      (src in each.hosts) != (dst in each.hosts) for each in self.groups
    )

  def limits(self, src: int, dst: int) -> dict[Hashable, Fraction]:
    """Returns the rates that limit transfers from a host to another, by name.

    Two transfers share a limit if it has the same name for both.
    """
    found: dict[Hashable, Fraction] = {
      ('up', src): self.up_GBps[src],
      ('down', dst): self.down_GBps[dst],
    }
    for hosts, up_GBps, down_GBps in self.groups:
      if src in hosts and dst not in hosts:
        found['up', hosts] = up_GBps
      if dst in hosts and src not in hosts:
        found['down', hosts] = down_GBps
    if (src, dst) in self.pairs_GBps:
      found[src, dst] = self.pairs_GBps[src, dst]
    return found


def fit(
  tests: Sequence[Test],
  *,
  hosts: int,
  tolerance: float,
  groups: Sequence[tuple[int, ...]] = (),
) -> Rates:
  """Returns the rates of hosts, pairs and groups that tests show.

  The rate at which a host can send is the largest total that it has sent in a
  test; the rates of receiving and of pairs are found in the same way.  The
  median of all values within the tolerance of the highest stands for the
  largest, since short measurements can also be too high: data that was lost and
  sent again arrives in bursts.  A pair has a limit of its own if its rate is
  below 1 - tolerance of the rates of its ends.  Groups are measured like hosts,
  by the traffic out of them and into them; a pair that crosses their links has
  a limit of its own only if it was measured alone, since it may have shared the
  links otherwise.

  Similar hosts get equal rates: the rates of hosts and groups (sent and
  received together), and then those of pairs, are sorted into classes, from the
  highest down; a class has the rates within the tolerance of its highest.  They
  are replaced by the median of their class, or by 1.03 times its lowest if that
  is less, because the slowest link of a forest limits it.  Rates are decimals
  of 3 significant digits.  So no rate falls by more than the tolerance and the
  rounding, and none rises by more than 3 %; but a pair without a limit of its
  own gets the rate of its ends, also if its ends sent or received something
  else in all of its tests.

  Args:
    tests: Tests in which each host sends and receives.
    hosts: Number of hosts, at least 2.
    tolerance: Relative error of the measurements, at least 0 and below 1.
    groups: Hosts behind shared links, ascending; of any two groups, one is
      within the other, or they are disjoint.

  Raises:
    ValueError: If an argument is out of its range, a rate is not finite, a pair
      has carried nothing in any of its tests, or a host has no transfer.
  """
  if hosts < 2 or not 0 <= tolerance < 1:
    raise ValueError(
      'Expected at least 2 hosts and a tolerance of 0 or more and below 1, got '
      f'{hosts} and {tolerance}.'
    )
  parties = [*((host,) for host in range(hosts)), *groups]
  sent, received, carried = _collect_rates(tests, hosts, parties)
  ends_Bps = [_best(totals, tolerance) for totals in (*sent, *received)]
  best = {
    pair: _best(rates, tolerance) for pair, rates in carried.items() if rates
  }
  ends_GBps = _snap(ends_Bps, tolerance)
  ups, downs = ends_GBps[: len(parties)], ends_GBps[len(parties) :]
  shared = zip(groups, ups[hosts:], downs[hosts:], strict=True)
  rates = Rates(
    tuple(ups[:hosts]),
    tuple(downs[:hosts]),
    {},
    tuple(itertools.starmap(Group, shared)),
  )
  limit = 1 - Fraction(str(tolerance))
  alone = {pair for test in tests if len(test) == 1 for pair in test}
  paired = {pair for test in tests for pair in _find_paired(test)}
  slow = [
    pair
    for pair in sorted(paired)
    if (pair in alone or not rates.crossed(*pair))
    and best[pair] < limit * rates.between(*pair) * _GB
  ]
  slow_GBps = _snap([best[pair] for pair in slow], tolerance)
  pairs_GBps = {
    pair: GBps
    for pair, GBps in zip(slow, slow_GBps, strict=True)
    if GBps < rates.between(*pair)
  }
  return rates._replace(pairs_GBps=pairs_GBps)


def measure_groups(
  tests: Sequence[Test], groups: Sequence[tuple[int, ...]], *, tolerance: float
) -> list[Group]:
  """Returns the rates of groups as `fit` does, but without rounding to classes.

  Args:
    tests: Tests; each group sends and receives in some of them.
    tolerance: Relative error of the measurements.
  """
  found = []
  for hosts in groups:
    within = {*hosts}
    sent, received = [], []
    for test in tests:
      across = [
        (src in within, rate)
        for (src, dst), rate in test.items()
        if (src in within) != (dst in within)
      ]
      sent.append(sum(rate for is_out, rate in across if is_out))
      received.append(sum(rate for is_out, rate in across if not is_out))
    ways = (Fraction(_best(each, tolerance)) / _GB for each in (sent, received))
    found.append(Group(hosts, *ways))
  return found


def build_cluster(rates: Rates) -> Cluster:
  """Returns the cluster: workers host0, host1 and so on, around switches.

  Without groups and slow pairs it is a star: from each host a link to 'net0'
  with its up rate, and one back with its down rate.  Hosts of a group have a
  switch of their own, 'group0.net0' and so on, with a link of the group's up
  rate to the switch around it, and one back with its down rate.

  Hosts with the same slow receivers, if there are several of them, send to all
  other receivers through a switch in common: 'net0', 'net1' and so on.  A slow
  pair has a link of its own.  A host with several ways out has them behind
  'host0.up', the sending side of its network card, to which its only link has
  the up rate, and one with several ways in has them behind 'host0.down'.  They
  are two switches because what one host sends to another could else turn round
  in the card of a third one, past a slow pair and at no cost to that host.
  Groups have such sides where there are slow pairs: 'group0.out' with a link to
  'group0.up', and 'group0.down' with one to 'group0.in'.

  The graph is exact: transfers between hosts fit into it if, and only if, they
  are within all rates, but those of slow pairs that cross a group's link, which
  it leaves out.  With H hosts, P slow pairs, K different sets of slow receivers
  and no groups, K <= H, it has at most 3 H + K nodes and (K + 3) H + P links.
  """
  names = [f'host{host}' for host in range(len(rates.up_GBps))]
  slow = {
    pair: GBps
    for pair, GBps in rates.pairs_GBps.items()
    if not rates.crossed(*pair)
  }
  wires = [wire for level in _levels(rates) for wire in _wires(slow, *level)]
  ways = Counter(end for wire in wires for end in (wire.src, wire.dst))
  node: dict[str, str] = {}
  links: list[Link] = []
  for host, name in enumerate(names):
    up, down = f'{name}.up', f'{name}.down'
    node |= {side: side if ways[side] > 1 else name for side in (up, down)}
    links += [
      Link(name, node[up], rates.up_GBps[host]),
      Link(node[down], name, rates.down_GBps[host]),
    ]
  for number, group in enumerate(rates.groups):
    name = f'group{number}'
    links += [
      Link(f'{name}.out', f'{name}.up', group.up_GBps),
      Link(f'{name}.down', f'{name}.in', group.down_GBps),
    ]
  # A side that only a switch leads to, or from, is that switch.
  for src, dst, _ in wires:
    for side, other in ((src, dst), (dst, src)):
      if ways[side] == 1 and '.net' in f'.{other}':
        node.setdefault(side, other)
  links = [
    Link(node.get(src, src), node.get(dst, dst), GBps)
    for src, dst, GBps in [*links, *wires]
  ]
  links = [link for link in links if link.src != link.dst]
  nodes = dict.fromkeys([*names, *(end for link in links for end in link[:2])])
  return Cluster(tuple(nodes), tuple(names), tuple(links))


def find_shortfalls(
  test: Test, rates: Rates, *, tolerance: float
) -> dict[Ends, Fraction]:
  """Returns the transfers of a test that are slower than the rates predict.

  A shortfall means that simultaneous transfers share a limit that the rates do
  not have, or that a host cannot send and receive at its full rates at once.
  It is meaningful for tests in which each host sends to at most one host and
  receives from at most one.  Pairs that cross the link of a group are left out.

  Args:
    tolerance: Relative error of the measurements.

  Returns:
    Measured over predicted rate of each slower pair.
  """
  shares = {
    pair: Fraction(rate) / (rates.between(*pair) * _GB)
    for pair, rate in test.items()
    if not rates.crossed(*pair)
  }
  limit = 1 - Fraction(str(tolerance))
  return {pair: share for pair, share in shares.items() if share < limit}


def _collect_rates(
  tests: Sequence[Test], hosts: int, parties: Sequence[tuple[int, ...]]
) -> tuple[list[list[float]], list[list[float]], dict[Ends, list[float]]]:
  """Returns rates sent and received by each party, and of pairs, by test."""
  # Parties are hosts and groups of hosts; transfers within a party do not
  # count.
  sent: list[list[float]] = [[] for _ in parties]
  received: list[list[float]] = [[] for _ in parties]
  within = {
    host: {number for number, party in enumerate(parties) if host in party}
    for host in range(hosts)
  }
  carried: dict[Ends, list[float]] = {
    (i, j): [] for i in range(hosts) for j in range(hosts) if i != j
  }
  for test in tests:
    for totals in (*sent, *received):
      totals.append(0.0)
    for ends, rate in test.items():
      if ends not in carried or not 0 <= rate < math.inf:
        raise ValueError(f'Expected rates of {hosts} hosts, got {dict(test)}.')
      carried[ends].append(rate)
      src, dst = within[ends[0]], within[ends[1]]
      for party in src - dst:
        sent[party][-1] += rate
      for party in dst - src:
        received[party][-1] += rate
  tested = [pair for pair, rates in carried.items() if rates]
  senders, receivers = {i for i, _ in tested}, {j for _, j in tested}
  if silent := [
    (i, j)
    for (i, j), rates in carried.items()
    if not any(rates) and (rates or i not in senders or j not in receivers)
  ]:
    raise ValueError(f'Expected a transfer of each pair, got none of {silent}.')
  return sent, received, carried


def _find_paired(test: Test) -> Iterator[Ends]:
  """Yields transfers whose ends send and receive nothing else."""
  sent, received = (Counter(pair[way] for pair in test) for way in (0, 1))
  for src, dst in test:
    if sent[src] == received[dst] == 1:
      yield src, dst


def _best(rates: Sequence[float], tolerance: float) -> float:
  least = (1 - tolerance) * max(rates)
  return statistics.median(rate for rate in rates if rate >= least)


class _Party(NamedTuple):
  """A sender and receiver at one level: a host, a group, or its surroundings.

  Attributes:
    host: Index of the host; -1 if the party is no host.
    src: Node from which it sends.
    dst: Node at which it receives.
    up_GBps: Rate at which it can send.
    down_GBps: Rate at which it can receive.
  """

  host: int
  src: str
  dst: str
  up_GBps: Fraction
  down_GBps: Fraction


def _levels(rates: Rates) -> Iterator[tuple[str, list[_Party]]]:
  """Yields each level: the prefix of its switches' names, and its parties."""
  whole = Group(tuple(range(len(rates.up_GBps))), Fraction(0), Fraction(0))
  levels = [whole, *rates.groups]
  own: list[list[_Party]] = [[] for _ in levels]
  for number, (hosts, up_GBps, down_GBps) in enumerate(rates.groups):
    around = _innermost(levels, [{*hosts} < {*g.hosts} for g in levels])
    name = f'group{number}'
    outer, inner = (f'{name}.up', f'{name}.down'), (f'{name}.in', f'{name}.out')
    own[around].append(_Party(-1, *outer, up_GBps, down_GBps))
    own[number + 1].append(_Party(-1, *inner, down_GBps, up_GBps))
  for host, ends_GBps in enumerate(
    zip(rates.up_GBps, rates.down_GBps, strict=True)
  ):
    sides = f'host{host}.up', f'host{host}.down'
    around = _innermost(levels, [host in g.hosts for g in levels])
    own[around].append(_Party(host, *sides, *ends_GBps))
  names = ['', *(f'group{number}.' for number in range(len(rates.groups)))]
  yield from zip(names, own, strict=True)


def _innermost(levels: Sequence[Group], around: Sequence[bool]) -> int:
  """Returns the number of the smallest of the groups around something."""
  sizes = [len(each.hosts) for each in levels]
  return min((size, n) for n, size in enumerate(sizes) if around[n])[1]


def _wires(
  slow: Mapping[Ends, Fraction], prefix: str, parties: Sequence[_Party]
) -> Iterator[Link]:
  """Yields the links of a level, as if all parties had both sides."""
  sets = [
    tuple(
      number
      for number, j in enumerate(parties)
      # Past slow pairs, nothing may turn round in groups, nor outside of them.
      if (i.host, j.host) in slow or (slow and i.host < 0 and i == j)
    )
    for i in parties
  ]
  switches = 0
  for barred in dict.fromkeys(sets):
    senders = [
      i for i, those in zip(parties, sets, strict=True) if those == barred
    ]
    receivers = [each for j, each in enumerate(parties) if j not in barred]
    if len(senders) == 1:
      for each in receivers:
        if each != senders[0]:
          GBps = min(senders[0].up_GBps, each.down_GBps)
          yield Link(senders[0].src, each.dst, GBps)
      continue
    net = f'{prefix}net{switches}'
    for each in senders:
      yield Link(each.src, net, each.up_GBps)
    for each in receivers:
      yield Link(net, each.dst, each.down_GBps)
    switches += 1
  for i, those in zip(parties, sets, strict=True):
    for j in (parties[number] for number in those):
      if i != j:
        yield Link(i.src, j.dst, slow[i.host, j.host])


def _snap(rates_Bps: Sequence[float], tolerance: float) -> list[Fraction]:
  """Returns the rate of each value's class, 1e9 bytes per second."""
  snapped: dict[float, Fraction] = {}
  left = sorted(rates_Bps, reverse=True)
  while left:
    alike = [rate for rate in left if rate >= (1 - tolerance) * left[0]]
    middle = Fraction(f'{statistics.median(alike) / _GB:.3g}')
    most = _floor(Fraction(alike[-1]) * _PROMISED / _GB)
    snapped |= dict.fromkeys(alike, min(middle, most))
    left = left[len(alike) :]
  return [snapped[rate] for rate in rates_Bps]


def _floor(value: Fraction) -> Fraction:
  """Returns a value rounded down to a decimal of 3 significant digits."""
  quotient = _DIGITS.divide(
    decimal.Decimal(value.numerator), decimal.Decimal(value.denominator)
  )
  return Fraction(quotient)
