"""Hosts of labs with equal and unequal links, as clusters and for tools.lab."""

import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from topology.clusters import measured
from topology.clusters.cluster import Cluster

BASE_MBIT = 200


class Case(NamedTuple):
  """Hosts of a lab; rates in Mbit/s.

  Attributes:
    up: Send rate of each host.
    down: Receive rate of each host.
    pairs: Lower rates from one host to another, by both indices.
    groups: Hosts that share a link to all others, and its rate in each
      direction.
    delay_ms: Milliseconds that the links of groups take longer, one way.
  """

  up: Sequence[int]
  down: Sequence[int]
  pairs: dict[tuple[int, int], int]
  groups: Sequence[tuple[tuple[int, ...], int]] = ()
  delay_ms: float = 0.0

  @property
  def cluster(self) -> Cluster:
    """Cluster of the hosts with nominal rates."""
    return measured.build_cluster(
      measured.Rates(
        tuple(map(_GBps, self.up)),
        tuple(map(_GBps, self.down)),
        {ends: _GBps(rate) for ends, rate in self.pairs.items()},
        tuple(
          measured.Group(hosts, _GBps(rate), _GBps(rate))
          for hosts, rate in self.groups
        ),
      )
    )

  @property
  def links(self) -> dict[str, Any]:
    """Links in the form of tools.lab."""
    hosts = {
      f'host{n}': {'up': f'{up}mbit', 'down': f'{down}mbit'}
      for n, (up, down) in enumerate(zip(self.up, self.down, strict=True))
    }
    pairs = [
      {'from': f'host{a}', 'to': f'host{b}', 'rate': f'{rate}mbit'}
      for (a, b), rate in self.pairs.items()
    ]
    groups = [
      {
        'hosts': [f'host{n}' for n in members],
        'up': f'{rate}mbit',
        'down': f'{rate}mbit',
        'delay_ms': self.delay_ms,
      }
      for members, rate in self.groups
    ]
    return {'hosts': hosts, 'pairs': pairs, 'groups': groups}


def scaled_cases(mbit: int) -> dict[str, Case]:
  """Returns all cases, with another base rate in place of 200 Mbit/s.

  Args:
    mbit: Base rate, Mbit/s; all rates are in proportion, rounded.
  """

  def scale(rate: int) -> int:
    return max(round(rate * mbit / BASE_MBIT), 1)

  return {
    name: case._replace(
      up=[*map(scale, case.up)],
      down=[*map(scale, case.down)],
      pairs={ends: scale(rate) for ends, rate in case.pairs.items()},
      groups=[(hosts, scale(rate)) for hosts, rate in case.groups],
    )
    for name, case in cases().items()
  }


def cases() -> dict[str, Case]:
  """Returns the cases that benchmarks measure, by name."""
  return {
    'equal4': _hosts(4),
    'slow4': Case([200, 200, 200, 50], [200, 200, 200, 50], {}),
    'unequal6': Case(
      [200, 200, 100, 100, 50, 200], [200, 100, 200, 100, 200, 50], {}
    ),
    'equal2': _hosts(2),
    'groups4': _hosts(4)._replace(pairs=_cross(4)),
    'groups6': _hosts(6)._replace(pairs=_cross(6)),
    'shared6': _hosts(6)._replace(groups=[((3, 4, 5), 20)]),
    'random6': _hosts(6)._replace(pairs=_random(6)),
    'random8': _hosts(8)._replace(pairs=_random(8)),
    'equal8': _hosts(8),
    # Links inside of islands are 20 times as fast as those between them.
    'islands6': Case(
      *([20 * BASE_MBIT] * 6, [20 * BASE_MBIT] * 6, {}),
      [((n, n + 1), BASE_MBIT) for n in (0, 2, 4)],
    ),
    # Two sites, 25 ms apart.
    'sites4': Case(
      *([5 * BASE_MBIT] * 4, [5 * BASE_MBIT] * 4, {}),
      groups=[((2, 3), BASE_MBIT)],
      delay_ms=25.0,
    ),
    'slow8': Case([200] * 7 + [100], [200] * 7 + [100], {}),
  }


def _hosts(count: int) -> Case:
  return Case([BASE_MBIT] * count, [BASE_MBIT] * count, {})


def _cross(count: int) -> dict[tuple[int, int], int]:
  """Returns the rates between the two halves of the hosts."""
  half = count // 2
  return {
    (a, b): 20
    for a in range(count)
    for b in range(count)
    if (a < half) != (b < half)
  }


def _random(count: int) -> dict[tuple[int, int], int]:
  rng = random.Random(count)
  return {
    (a, b): rng.randint(20, 199)
    for a in range(count)
    for b in range(count)
    if a != b
  }


def _GBps(mbit: int) -> Fraction:
  return Fraction(mbit, 8000)
