"""Prices of links that bound an allreduce, found by trying many.

Among them prices that follow how full the links are when trees avoid what is
full (multiplicative weights: Garg and Koenemann, "Faster and simpler algorithms
for multicommodity flow and other fractional packing problems", 1998).  Rounded
to two values, prices often close what is left open.
"""

from fractions import Fraction

import numpy as np

from topology import cluster as clusters
from topology import growing, routing, stopping
from topology import prices as certificates

_CLASSES = 20  # Different capacities of which the links are tried alone.
_FINE = 2**30  # The highest price of a certificate.


class Bound:
  """The best prices of links so far.

  Attributes:
    rate: In GB/s, what they prove.
  """

  def __init__(
    self, cluster: clusters.Cluster, network: routing.Network
  ) -> None:
    self._cluster = cluster
    self._network = network
    self._prices = np.ones(len(network.capacity))
    self.rate = np.inf
    self._try(self._prices)
    for around in (*network.around_thinnest(), *network.layers()):
      self._try(around)
    for value in np.unique(network.capacity)[:_CLASSES]:
      self._try((network.capacity == value).astype(float))

  def follow(self, rounds: int, stop: stopping.Stop) -> None:
    """Tries the prices of spanning trees that avoid what is full."""
    network = self._network
    load, total = np.zeros(len(network.capacity)), 0.0
    for i in range(rounds):
      used = load / network.capacity
      heat = max(0.002, 0.8 / (i + 1.0) ** 0.5)
      fullest = max(used.max(), 1e-300)
      prices = growing.exp((used / fullest - 1) / heat) / network.capacity
      prices = np.maximum(prices, prices.max() * 1e-12)
      cells = network.cells(prices)
      cost, kept = network.tree(cells, prices)
      self._keep(prices, self._worth(prices) / cost)
      load += network.loads(cells, kept)
      total = total + prices / cost
      if stop():
        break
      if i & (i + 1) == 0 or i + 1 == rounds:
        self.improve(total)

  def improve(self, prices: np.ndarray) -> None:
    """Tries the prices, and those above a threshold made 1, the others 0."""
    self._try(prices)
    parts = 25 if self._network.paired else 3
    for level in np.quantile(prices, np.linspace(0, 0.98, parts)):
      self._try((prices > level).astype(float))
      self._try((prices >= level).astype(float))

  def certificate(self) -> certificates.Prices:
    """Returns the best prices, as integers."""
    return self._exact(self._prices)

  def _try(self, prices: np.ndarray) -> None:
    if not prices.max() > 0:
      return
    if self._network.paired:
      prices = np.maximum(prices / prices.max(), 1e-12)
      cost, _ = self._network.tree(self._network.cells(prices), prices)
      self._keep(prices, self._worth(prices) / cost)
      return
    try:
      proven = certificates.proven(self._cluster, self._exact(prices))
    except ValueError:  # Some tree is free, so that they prove nothing.
      return
    self._keep(prices, float(proven))

  def _keep(self, prices: np.ndarray, rate: float) -> None:
    if rate < self.rate:
      self.rate, self._prices = rate, prices

  def _worth(self, prices: np.ndarray) -> float:
    return float((prices * self._network.capacity).sum())

  def _exact(self, prices: np.ndarray) -> certificates.Prices:
    fine = np.rint(prices / prices.max() * _FINE)[self._network.use]
    return certificates.Prices(
      tuple(
        (src, dst, Fraction(int(price)))
        for (src, dst, _), price in zip(self._cluster.links, fine, strict=True)
        if price
      )
    )
