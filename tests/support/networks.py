"""Simulated networks and the arrival times of their flows, for tests."""

import math

from cluster.virtual import network


def make(
  *,
  up: list[float],
  down: list[float] | None,
  latency: list[float] | None = None,
  burst_bytes: float = 0.0,
) -> network.Network:
  """Returns a network; by default down equals up and latency is 0."""
  return network.Network(
    up_Bps=up,
    down_Bps=down or up,
    latency_s=latency or [0.0] * len(up),
    burst_bytes=burst_bytes,
  )


def arrivals(net: network.Network) -> dict[int, float]:
  """Runs the network until all flows have arrived; returns their times."""
  times = {}
  while net.next_time() < math.inf:
    time = net.next_time()
    times |= dict.fromkeys(net.advance(time), time)
  return times
