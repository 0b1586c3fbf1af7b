"""Networks described by limits, as an oracle of measurements."""

import random
from collections.abc import Callable


class Network:
  """Hosts in a tree of groups, whose transfers share limits max-min fairly.

  Attributes:
    limits: Rates, each with a predicate of transfers that it limits.
    tests: Transfers of each measurement so far.
  """

  def __init__(
    self, ups, downs=None, groups=(), pairs=None, noise=0.0, unfair=0.0, seed=0
  ):
    """Initializes the limits, with rates in any unit.

    Args:
      ups: Send rate of each host.
      downs: Receive rate of each host; `ups` by default.
      groups: Hosts, and their common send and receive rates.
      pairs: Rates from one host to another, by both.
      noise: Largest relative error by which a measurement is too low.
      unfair: Largest relative deviation of a share from the fair one.
      seed: Seed of noise and unfairness.
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
        (up, lambda i, j, members=hosts: i in members and j not in members),
        (down, lambda i, j, members=hosts: j in members and i not in members),
      ]
    for ends, rate in (pairs or {}).items():
      self.limits.append((rate, lambda i, j, ends=ends: (i, j) == ends))

  def shares(self, pairs):
    """Returns the max-min fair rates of transfers, from the definition.

    All rates grow at the same pace, apart from unfairness, until one of their
    limits is full.
    """
    rates = dict.fromkeys(pairs, 0.0)
    pace = {
      pair: 1 + self._unfair * self._random.uniform(-1, 1) for pair in pairs
    }
    limited = [
      (rate, [pair for pair in pairs if holds(*pair)])
      for rate, holds in self.limits
    ]
    growing = set(pairs)
    while growing:
      times = []
      for rate, transfers in limited:
        capacity = rate - sum(rates[pair] for pair in transfers)
        speed = sum(pace[pair] for pair in transfers if pair in growing)
        times.append(capacity / speed if speed else float('inf'))
      first = min(times)
      for pair in growing:
        rates[pair] += first * pace[pair]
      for time, (_, transfers) in zip(times, limited, strict=True):
        if time <= first * (1 + 1e-9):
          growing -= {*transfers}
    return rates

  def measure(self, pairs):
    """Returns the measured rates of simultaneous transfers."""
    self.tests.append(tuple(pairs))
    return {
      pair: rate * (1 - self._noise * self._random.random())
      for pair, rate in self.shares(pairs).items()
    }

  def largest(self, demand):
    """Returns the factor by which a demand can grow until a limit is full."""
    loads = [
      (rate, sum(d for pair, d in demand.items() if holds(*pair)))
      for rate, holds in self.limits
    ]
    return min(rate / load for rate, load in loads if load)
