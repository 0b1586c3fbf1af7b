"""A ring: an equal shard of each worker goes around it once up, once down.

N workers send 2 (N - 1) / N of all bytes each, which is the optimum if all
links are equal; as slow as its slowest link (Patarasuk and Yuan, 2009).
"""

from route import choosing
from route.allreduce import AllreduceRoute
from route.choosing import Latency
from route.route import LATENCY_S
from topology import Cluster, Forest
from topology.baselines import schemes


def forest(
  cluster: Cluster, size_bytes: int, latency_s: Latency = LATENCY_S
) -> Forest:
  """Returns the ring in the fastest order, one way or both: see `Forests`."""
  found = [
    choosing.predicted(name, cluster, ring, size_bytes, latency_s)
    for name, ring in choosing.rings(cluster)
  ]
  return choosing.fastest(found).forest


def in_order(
  cluster: Cluster, size_bytes: int = 0, latency_s: Latency = LATENCY_S
) -> Forest:
  """Returns the ring in the order of the workers: see `Forests`."""
  del size_bytes, latency_s
  return schemes.naive_ring(cluster, choosing.empty(cluster))


def make(*, cluster: str) -> AllreduceRoute:
  """Returns the route.

  Args:
    cluster: The links, as of `links.believed`; '' for equal ones, where the
      order makes no difference.
  """
  return AllreduceRoute('ring', cluster, forest if cluster else in_order)
