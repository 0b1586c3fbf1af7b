"""Networks that are no more than limits, as an oracle of measurements."""

import random
from collections.abc import Callable


class Network:
  """Hosts in a tree of groups; transfers share it max-min fairly, or nearly.

  Attributes:
    limits: Rates with a test of whether a transfer is under them.
    tests: The transfers of each test so far.
  """

  def __init__(
    self, ups, downs=None, groups=(), pairs=None, noise=0.0, unfair=0.0, seed=0
  ):
    """Takes rates in any unit.

    Args:
      ups: What each host can send.
      downs: What each host can receive; the same by default.
      groups: Hosts, what they can send and receive together.
      pairs: What hosts can send to one other, by both.
      noise: By how much a measurement may be too low, relative.
      unfair: By how much more or less than others a transfer may get where it
        shares a limit, relative.
      seed: Of both.
    """
    self._random = random.Random(seed)
    self._noise, self._unfair = noise, unfair
    self.tests = []
    self.limits: list[tuple[float, Callable]] = []
    for host, (up, down) in enumerate(zip(ups, downs or ups, strict=True)):
      self.limits += [
        (up, lambda i, j, host=host: i == host),
        (down, lambda i, j, host=host: j == host),
      ]
    for hosts, up, down in groups:
      self.limits += [
        (up, lambda i, j, own=hosts: i in own and j not in own),
        (down, lambda i, j, own=hosts: j in own and i not in own),
      ]
    for ends, rate in (pairs or {}).items():
      self.limits.append((rate, lambda i, j, ends=ends: (i, j) == ends))

  def shares(self, pairs):
    """Returns the rates of transfers, from the definition.

    All grow at the same pace, but for what is unfair, until one of their limits
    is full.
    """
    rates = dict.fromkeys(pairs, 0.0)
    pace = {
      pair: 1 + self._unfair * self._random.uniform(-1, 1) for pair in pairs
    }
    under = [
      (rate, [pair for pair in pairs if holds(*pair)])
      for rate, holds in self.limits
    ]
    growing = set(pairs)
    while growing:
      times = []
      for rate, those in under:
        room = rate - sum(rates[pair] for pair in those)
        speed = sum(pace[pair] for pair in those if pair in growing)
        times.append(room / speed if speed else float('inf'))
      first = min(times)
      for pair in growing:
        rates[pair] += first * pace[pair]
      for took, (_, those) in zip(times, under, strict=True):
        if took <= first * (1 + 1e-9):
          growing -= {*those}
    return rates

  def measure(self, pairs):
    """Returns what a test of transfers shows."""
    self.tests.append(tuple(pairs))
    return {
      pair: rate * (1 - self._noise * self._random.random())
      for pair, rate in self.shares(pairs).items()
    }

  def largest(self, demand):
    """Returns by how much a demand can grow until a limit is full."""
    loads = [
      (rate, sum(d for pair, d in demand.items() if holds(*pair)))
      for rate, holds in self.limits
    ]
    return min(rate / load for rate, load in loads if load)
