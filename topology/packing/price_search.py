"""Search for link prices that bound an allreduce, among many candidates.

Some candidates follow the load of links while trees avoid full links
(multiplicative weights: Garg and Koenemann, "Faster and simpler algorithms for
multicommodity flow and other fractional packing problems", 1998).  Prices
rounded to two values often close the remaining gap.
"""

import math
from fractions import Fraction

import numpy as np

from topology.algorithms import stopping
from topology.bounds import prices as certificates
from topology.clusters.cluster import Cluster
from topology.packing import growing
from topology.packing.arrays import Arrays

_CLASSES = 20  # Different capacities whose links are tried separately.
_FINE = 2**30  # Highest price of a certificate.


class Bound:
  """The best link prices so far, and the bound that they prove.

  The search ends after `stop` returns True.  Raises `Stopped` if `end` returns
  True before there are any prices.

  Attributes:
    rate: Rate that no allreduce can exceed, GB/s.
  """

  def __init__(
    self,
    cluster: Cluster,
    arrays: Arrays,
    stop: stopping.Stop = stopping.never,
    end: stopping.Stop = stopping.never,
  ) -> None:
    self._cluster = cluster
    self._arrays = arrays
    self._stop, self._end = stop, end
    self._prices = np.ones(len(arrays.capacity))
    self.rate = math.inf
    self._try(self._prices)
    for around in (*arrays.around_thinnest(), *arrays.layers()):
      self._try(around)
    for value in np.unique(arrays.capacity)[:_CLASSES]:
      self._try((arrays.capacity == value).astype(float))

  def follow(self, rounds: int, stop: stopping.Stop) -> None:
    """Tries link prices that rise with the load of cheapest trees, by round."""
    arrays = self._arrays
    load, total = np.zeros((2, len(arrays.capacity)))
    for i in range(rounds):
      used = load / arrays.capacity
      heat = max(0.002, 0.8 / math.sqrt(i + 1.0))
      fullest = max(used.max(), 1e-300)
      prices = growing.exp((used / fullest - 1) / heat) / arrays.capacity
      prices = np.maximum(prices, prices.max() * 1e-12)
      cells = arrays.cells(prices)
      cost, kept = arrays.tree(cells, prices)
      self._keep(prices, self._worth(prices) / cost)
      load += arrays.loads(cells, kept)
      total += prices / cost
      if stop():
        break
      if i & (i + 1) == 0 or i + 1 == rounds:
        self.improve(total)

  def improve(self, prices: np.ndarray) -> None:
    """Tries link prices, and their rounding to 0 or 1 at several thresholds."""
    self._try(prices)
    parts = 25 if self._arrays.paired else 3
    for level in np.quantile(prices, np.linspace(0, 0.98, parts)):
      self._try((prices > level).astype(float))
      self._try((prices >= level).astype(float))

  def certificate(self) -> certificates.Prices:
    """Returns the link prices that prove the lowest bound so far.

    Prices are rounded to integers, and links of price 0 are left out.
    `prove_rate` computes from them, in exact arithmetic, a rate that no
    allreduce can exceed: `rate`, up to the rounding.  There is always one, as
    the constructor has tried equal prices for all links.
    """
    return self._exact(self._prices)

  def _try(self, prices: np.ndarray) -> None:
    stop = self._end if self.rate == math.inf else self._stop
    if not prices.max() > 0 or (self.rate < math.inf and stop()):
      return
    if self._arrays.paired:
      prices = np.maximum(prices / prices.max(), 1e-12)
      cost, _ = self._arrays.tree(self._arrays.cells(prices), prices)
      self._keep(prices, self._worth(prices) / cost)
      return
    try:
      units = self._units(prices)[self._arrays.use].tolist()
      proven = certificates.prove_rate_of_units(self._cluster, units, stop)
    except ValueError:  # A tree is free: the prices prove no bound.
      return
    except stopping.Stopped:
      stopping.check(self._end)
      return
    self._keep(prices, float(proven))

  def _keep(self, prices: np.ndarray, rate: float) -> None:
    if rate < self.rate:
      self.rate, self._prices = rate, prices

  def _worth(self, prices: np.ndarray) -> float:
    return float((prices * self._arrays.capacity).sum())

  def _units(self, prices: np.ndarray) -> np.ndarray:
    units: np.ndarray = np.rint(prices / prices.max() * _FINE).astype(int)
    return units

  def _exact(self, prices: np.ndarray) -> certificates.Prices:
    fine = self._units(prices)
    links = zip(
      self._cluster.links, fine[self._arrays.use].tolist(), strict=True
    )
    fractions = {price: Fraction(price) for price in set(fine.tolist())}
    return certificates.Prices(
      tuple((src, dst, fractions[p]) for (src, dst, _), p in links if p)
    )
