"""Simulated networks for tests, and when their flows arrive."""

import math

from cluster.virtual import network


def make(
  *,
  up: list[float],
  down: list[float] | None,
  latency: list[float] | None = None,
) -> network.Network:
  """Returns a network; down is as up and latency 0 where not given."""
  return network.Network(
    up_Bps=up, down_Bps=down or up, latency_s=latency or [0.0] * len(up)
  )


def arrivals(net: network.Network) -> dict[int, float]:
  """Lets everything arrive; returns the time of each flow."""
  times = {}
  while net.next_time() < math.inf:
    time = net.next_time()
    times |= dict.fromkeys(net.advance(time), time)
  return times
