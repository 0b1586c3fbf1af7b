"""Clusters from measured rates: what hosts can send and receive, and pairs.

A test is a set of transfers that went on at the same time: bytes per second by
(sender, receiver), hosts counted from 0.  The model: a host sends at most at
its `up` rate, receives at most at its `down` rate, groups of hosts, such as
those of a rack, do so together, and some pairs are slower than all that.
`find_shortfalls` finds what the model does not explain; topology/clusters/shared.py
finds the groups.
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
  """Hosts behind a link that they share.

  Attributes:
    hosts: Which, ascending.
    up_GBps: What they can send to all others, together, 1e9 bytes per second.
    down_GBps: What they can receive from all others, together.
  """

  hosts: tuple[int, ...]
  up_GBps: Fraction
  down_GBps: Fraction


class Rates(NamedTuple):
  """The rates of the links of hosts.

  Attributes:
    up_GBps: What each host can send, 1e9 bytes per second.
    down_GBps: What each host can receive.
    pairs_GBps: What a host can send to another, by (sender, receiver), where
      that is less than the one can send and the other receive, and the links of
      groups between them carry.
    groups: Hosts behind shared links; of any two, one is within the other, or
      they have no host in common.
  """

  up_GBps: tuple[Fraction, ...]
  down_GBps: tuple[Fraction, ...]
  pairs_GBps: dict[Ends, Fraction]
  groups: tuple[Group, ...] = ()

  def between(self, src: int, dst: int) -> Fraction:
    """Returns what a host can send to another if nobody else sends."""
    return min(self.limits(src, dst).values())

  def crossed(self, src: int, dst: int) -> bool:
    """Returns whether what goes from a host to another passes shared links."""
    return any(
      (src in each.hosts) != (dst in each.hosts) for each in self.groups
    )

  def limits(self, src: int, dst: int) -> dict[Hashable, Fraction]:
    """Returns all rates that what goes from a host to another has a part of.

    By what they are of: two transfers share a limit if it has one name.
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
  """Returns the rates that measurements show.

  A host can send what it has sent, to all others together, in the best of the
  tests; likewise received, and carried by a pair.  The best is the median of
  all that are within the tolerance of the highest, since short measurements can
  show too much as well: what was lost and sent again arrives in bursts.  A pair
  has a limit of its own if its best is below 1 - tolerance of what its ends can
  do.  Groups of hosts are measured like hosts, by what has left and entered
  them; a pair that crosses their links has a limit of its own only if it was
  measured alone, since links may have been shared otherwise.

  Hosts that are alike come out alike: rates, those of hosts and their groups
  (sent and received together) and then those of pairs, are sorted into classes,
  from the highest down, each of the rates that are within the tolerance of its
  highest, and replaced by the median of their class, or by 1.03 times its
  lowest where that is less: a forest is as fast as the slowest of its links.
  Rates are decimals of 3 significant digits.  No best so falls by more than the
  tolerance and the rounding, and none rises by more than 3 %; but a pair
  without a limit of its own is promised what its ends can do.

  Each ordered pair must have a transfer in some test, of 2 hosts or more; the
  tolerance is the relative error of the measurements, from 0 to below 1.  Hosts
  of a group are in ascending order; of any two groups, one is within the other,
  or they have no host in common.

  Raises:
    ValueError: If an argument is out of its range, or something is not finite,
      or some pair has never carried anything.
  """
  if hosts < 2 or not 0 <= tolerance < 1:
    raise ValueError(
      'Expected at least 2 hosts and a tolerance of 0 or more and below 1, got '
      f'{hosts} and {tolerance}.'
    )
  parties = [*((host,) for host in range(hosts)), *groups]
  sent, received, carried = _collect_rates(tests, hosts, parties)
  ends_Bps = [_best(totals, tolerance) for totals in (*sent, *received)]
  best = {pair: _best(rates, tolerance) for pair, rates in carried.items()}
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
  slow = [
    pair
    for pair in best
    if best[pair] < limit * rates.between(*pair) * _GB
    and (pair in alone or not rates.crossed(*pair))
  ]
  slow_GBps = _snap([best[pair] for pair in slow], tolerance)
  pairs_GBps = {
    pair: GBps
    for pair, GBps in zip(slow, slow_GBps, strict=True)
    if GBps < rates.between(*pair)
  }
  return rates._replace(pairs_GBps=pairs_GBps)


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
  """Returns the transfers of a test that were slower than the rates explain.

  Each such pair with its rate as a share of what was expected.  Pairs that talk
  at the same time then share a limit of which the rates know nothing, or a host
  cannot send and receive at once at its full rates; so it is meant for tests in
  which nobody sends to several, or receives from several.  Pairs that cross the
  link of a group are left out: how they share it is up to them.
  """
  shares = {
    pair: Fraction(rate) / (rates.between(*pair) * _GB)
    for pair, rate in test.items()
    if not rates.crossed(*pair)
  }
  return {
    pair: share for pair, share in shares.items() if share < 1 - tolerance
  }


def _collect_rates(
  tests: Sequence[Test], hosts: int, parties: Sequence[tuple[int, ...]]
) -> tuple[list[list[float]], list[list[float]], dict[Ends, list[float]]]:
  """Returns, by test, what each party sent and received, and pairs carried.

  Parties are hosts and groups of hosts; what stays within does not count.
  """
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
  if silent := [pair for pair, rates in carried.items() if not any(rates)]:
    raise ValueError(f'Expected a transfer of each pair, got none of {silent}.')
  return sent, received, carried


def _best(rates: Sequence[float], tolerance: float) -> float:
  least = (1 - tolerance) * max(rates)
  return statistics.median(rate for rate in rates if rate >= least)


class _Party(NamedTuple):
  """A sender and receiver at one level: a host, a group, or all around it.

  Attributes:
    host: Index of the host; -1 if it is none.
    src: Node that it sends from.
    dst: Node that it receives at.
    up_GBps: Rate at which it can send.
    down_GBps: Rate at which it can receive.
  """

  host: int
  src: str
  dst: str
  up_GBps: Fraction
  down_GBps: Fraction


def _levels(rates: Rates) -> Iterator[tuple[str, list[_Party]]]:
  """Yields what the names of switches begin with, and who talks there."""
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
  """Returns the number of the smallest of some groups."""
  sizes = [len(each.hosts) for each in levels]
  return min((size, n) for n, size in enumerate(sizes) if around[n])[1]


def _wires(
  slow: Mapping[Ends, Fraction], prefix: str, parties: Sequence[_Party]
) -> Iterator[Link]:
  """Yields the links of a level, as if all had both of their sides."""
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
  """Returns 1e9 bytes per second, of each what its class can promise."""
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
  """Returns the largest decimal of 3 significant digits that is not above."""
  quotient = _DIGITS.divide(
    decimal.Decimal(value.numerator), decimal.Decimal(value.denominator)
  )
  return Fraction(quotient)
