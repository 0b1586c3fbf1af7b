"""Clusters from measured rates: what hosts can send and receive, and pairs.

A test is a set of transfers that went on at the same time: bytes per second by
(sender, receiver), hosts counted from 0.  The model: a host sends at most at
its `up` rate, receives at most at its `down` rate, and some pairs are slower
than both of their ends.  Limits that several pairs share, such as the uplink of
a rack, are no part of it; `shortfalls` finds where they would be needed.
"""

import decimal
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from topology.clusters.cluster import Cluster, Link

Ends = tuple[int, int]
Test = Mapping[Ends, float]
_GB = 10**9
_PROMISED = Fraction('1.03')  # Times its best, at most, of every rate.
_DIGITS = decimal.Context(prec=3, rounding=decimal.ROUND_DOWN)


class Rates(NamedTuple):
  """What the links of hosts carry.

  Attributes:
    up_GBps: What each host can send, 1e9 bytes per second.
    down_GBps: What each host can receive.
    pairs_GBps: What a host can send to another, by (sender, receiver), where
      that is less than the one can send and the other receive.
  """

  up_GBps: tuple[Fraction, ...]
  down_GBps: tuple[Fraction, ...]
  pairs_GBps: dict[Ends, Fraction]

  def between(self, src: int, dst: int) -> Fraction:
    """Returns what a host can send to another that nobody else sends to."""
    ends = min(self.up_GBps[src], self.down_GBps[dst])
    return self.pairs_GBps.get((src, dst), ends)


def fit(tests: Sequence[Test], *, hosts: int, tolerance: float) -> Rates:
  """Returns the rates that measurements show.

  A host can send what it has sent, to all others together, in the best of the
  tests; likewise received, and carried by a pair.  The best is the median of
  all that are within the tolerance of the highest, since short measurements can
  show too much as well: what was lost and sent again arrives in bursts.  A pair
  has a limit of its own if its best is below 1 - tolerance of what its ends can
  do.

  Hosts that are alike come out alike: rates, those of hosts (sent and received
  together) and then those of pairs, are put into groups, from the highest down,
  each of the rates that are within the tolerance of its highest, and replaced
  by the median of their group, or by 1.03 times its lowest where that is less:
  a forest is as fast as the slowest of its links.  Rates are decimals of 3
  significant digits.  No best so falls by more than the tolerance and the
  rounding, and none rises by more than 3 %; but a pair without a limit of its
  own is promised what its ends can do.

  Each ordered pair must have a transfer in some test, of 2 hosts or more; the
  tolerance is the relative error of the measurements, from 0 to below 1.

  Raises:
    ValueError: If an argument is out of its range, or something is not finite,
      or some pair has never carried anything.
  """
  if hosts < 2 or not 0 <= tolerance < 1:
    raise ValueError(
      'Expected at least 2 hosts and a tolerance of 0 or more and below 1, got '
      f'{hosts} and {tolerance}.'
    )
  sent, received, carried = _seen(tests, hosts)
  ends_Bps = [_best(totals, tolerance) for totals in (*sent, *received)]
  best = {pair: _best(rates, tolerance) for pair, rates in carried.items()}
  ends_GBps = _snapped(ends_Bps, tolerance)
  rates = Rates(tuple(ends_GBps[:hosts]), tuple(ends_GBps[hosts:]), {})
  limit = 1 - Fraction(str(tolerance))
  slow = [
    pair for pair in best if best[pair] < limit * rates.between(*pair) * _GB
  ]
  slow_GBps = _snapped([best[pair] for pair in slow], tolerance)
  pairs_GBps = {
    pair: GBps
    for pair, GBps in zip(slow, slow_GBps, strict=True)
    if GBps < rates.between(*pair)
  }
  return rates._replace(pairs_GBps=pairs_GBps)


def graph(rates: Rates) -> Cluster:
  """Returns the cluster: workers host0, host1 and so on, around switches.

  Without slow pairs it is a star: from each host a link to 'net0' with its up
  rate, and one back with its down rate.

  Else hosts with the same slow receivers, if there are several of them, send to
  all other receivers through a switch in common: 'net0', 'net1' and so on.  A
  slow pair has a link of its own.  A host with several ways out has them behind
  'host0.up', the sending side of its network card, to which its only link has
  the up rate, and one with several ways in has them behind 'host0.down'.  They
  are two switches because what one host sends to another could else turn round
  in the card of a third one, past a slow pair and at no cost to that host.

  The graph is exact: transfers between hosts fit into it if, and only if, they
  are within all rates.  With H hosts, P slow pairs and K different sets of slow
  receivers, K <= H, it has at most 3 H + K nodes and (K + 3) H + P links.
  """
  names = [f'host{host}' for host in range(len(rates.up_GBps))]
  wires = list(_wires(rates))
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
  links += [
    Link(node.get(src, src), node.get(dst, dst), GBps)
    for src, dst, GBps in wires
  ]
  links = [link for link in links if link.src != link.dst]
  nodes = dict.fromkeys([*names, *(end for link in links for end in link[:2])])
  return Cluster(tuple(nodes), tuple(names), tuple(links))


def shortfalls(
  test: Test, rates: Rates, *, tolerance: float
) -> dict[Ends, Fraction]:
  """Returns the transfers of a test that were slower than the rates explain.

  Each such pair with its rate as a share of what was expected.  Pairs that talk
  at the same time then share a limit of which the rates know nothing, or a host
  cannot send and receive at once at its full rates; so it is meant for tests in
  which nobody sends to several, or receives from several.
  """
  shares = {
    pair: Fraction(rate) / (rates.between(*pair) * _GB)
    for pair, rate in test.items()
  }
  return {
    pair: share for pair, share in shares.items() if share < 1 - tolerance
  }


def _seen(
  tests: Sequence[Test], hosts: int
) -> tuple[list[list[float]], list[list[float]], dict[Ends, list[float]]]:
  """Returns, by test, what each host sent and received, and pairs carried."""
  sent: list[list[float]] = [[] for _ in range(hosts)]
  received: list[list[float]] = [[] for _ in range(hosts)]
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
      sent[ends[0]][-1] += rate
      received[ends[1]][-1] += rate
  if silent := [pair for pair, rates in carried.items() if not any(rates)]:
    raise ValueError(f'Expected a transfer of each pair, got none of {silent}.')
  return sent, received, carried


def _best(rates: Sequence[float], tolerance: float) -> float:
  least = (1 - tolerance) * max(rates)
  return statistics.median(rate for rate in rates if rate >= least)


def _wires(rates: Rates) -> Iterator[Link]:
  """Yields the links between cards, as if each had both of its switches."""
  hosts = range(len(rates.up_GBps))
  sets = [tuple(j for j in hosts if (i, j) in rates.pairs_GBps) for i in hosts]
  switches = 0
  for slow in dict.fromkeys(sets):
    senders = [host for host in hosts if sets[host] == slow]
    receivers = [host for host in hosts if host not in slow]
    if len(senders) == 1:
      for j in receivers:
        if j != senders[0]:
          yield _direct(rates, senders[0], j)
      continue
    for i in senders:
      yield Link(f'host{i}.up', f'net{switches}', rates.up_GBps[i])
    for j in receivers:
      yield Link(f'net{switches}', f'host{j}.down', rates.down_GBps[j])
    switches += 1
  for i, j in rates.pairs_GBps:
    yield _direct(rates, i, j)


def _direct(rates: Rates, src: int, dst: int) -> Link:
  GBps = rates.between(src, dst)
  return Link(f'host{src}.up', f'host{dst}.down', GBps)


def _snapped(rates_Bps: Sequence[float], tolerance: float) -> list[Fraction]:
  """Returns 1e9 bytes per second, of each what its group can promise."""
  snapped: dict[float, Fraction] = {}
  left = sorted(rates_Bps, reverse=True)
  while left:
    group = [rate for rate in left if rate >= (1 - tolerance) * left[0]]
    middle = Fraction(f'{statistics.median(group) / _GB:.3g}')
    most = _floor(Fraction(group[-1]) * _PROMISED / _GB)
    snapped |= dict.fromkeys(group, min(middle, most))
    left = left[len(group) :]
  return [snapped[rate] for rate in rates_Bps]


def _floor(value: Fraction) -> Fraction:
  """Returns the largest decimal of 3 significant digits that is not above."""
  quotient = _DIGITS.divide(
    decimal.Decimal(value.numerator), decimal.Decimal(value.denominator)
  )
  return Fraction(quotient)
