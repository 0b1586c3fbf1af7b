"""Links of hosts with servers, compared by the rates of connections.

Where every worker exchanges parts of each push with a server on every host, a
host with a slow link slows down all workers: their transfers take the same
time.  The rates of connections still identify the host: all connections out of
it, or all into it, are slow, and those between other hosts are not.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from diagnosis import rule

MOST_SERVERS = 64  # Whose connections are compared, at most.
MOST = 64 * MOST_SERVERS  # Connections that are compared, at most.
_QUANTILE = 0.75  # Of a host's connections: its link slows all of them.


class Rates(NamedTuple):
  """Rates of the connections of one host.

  Attributes:
    Bps: Upper quartile of the rates of connections out of the host, or of those
      into it if that is lower; bytes per second.
    usual_Bps: Median of the connections between other hosts.
  """

  Bps: float
  usual_Bps: float

  @property
  def slowness(self) -> float:
    """Usual over own rate; 1 if the difference is usual between equal links.

    Connections that share a link get unequal parts of it.
    """
    ratio = self.usual_Bps / self.Bps
    return ratio if ratio >= rule.LINK_EFFECT else 1.0


def compare(
  rates: Mapping[tuple[int, int], float],
  worker_hosts: Sequence[str],
  server_hosts: Sequence[str],
) -> dict[str, Rates]:
  """Returns the rates of each host that has a server.

  Hosts with workers alone are not compared here, since their transfers take
  longer if their links are slower.

  Args:
    rates: Bytes per second of each connection from a worker to a server.
    worker_hosts: Host of each worker.
    server_hosts: Host of each server; [] while one is missing.

  Returns:
    The rates by host; {} if there are no other hosts to compare with.
  """
  if not server_hosts:
    return {}
  connections: dict[tuple[str, str], list[float]] = {}
  for (worker, server), Bps in rates.items():
    src, dst = worker_hosts[worker], server_hosts[server]
    if src != dst:
      connections.setdefault((src, dst), []).append(Bps)
  Bps_of = {ends: float(np.median(own)) for ends, own in connections.items()}
  found = {}
  for host in sorted({*server_hosts}):
    sends = [Bps for (src, _), Bps in Bps_of.items() if src == host]
    receives = [Bps for (_, dst), Bps in Bps_of.items() if dst == host]
    others = [Bps for ends, Bps in Bps_of.items() if host not in ends]
    if others and (sends or receives):
      own = [
        float(np.quantile(each, _QUANTILE, method='higher'))
        for each in (sends, receives)
        if each
      ]
      found[host] = Rates(min(own), float(np.median(others)))
  return found


def medians(windows: Iterable[Mapping[str, Rates]]) -> dict[str, Rates]:
  """Returns the median rates of each host over windows of a run."""
  known: dict[str, list[Rates]] = {}
  for window in windows:
    for host, rates in window.items():
      known.setdefault(host, []).append(rates)
  return {
    host: Rates(*map(float, np.median(np.array(each), axis=0)))
    for host, each in known.items()
  }
