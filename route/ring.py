"""Ring allreduce: each worker's shard travels around the ring twice.

In the first round the shard is summed, in the second the sum is distributed.
Each of N workers sends 2 (N - 1) / N of all bytes, which is optimal on equal
links; the slowest link of the ring limits the rate (Patarasuk and Yuan, 2009).
"""

from route import selection
from route.allreduce import AllreduceRoute
from route.route import LATENCY_S
from route.selection import Latency
from topology import Cluster, Forest
from topology.baselines import schemes


def build_forest(
  cluster: Cluster, size_bytes: int, latency_s: Latency = LATENCY_S
) -> Forest:
  """Returns the fastest ring, in one direction or both: see `ForestBuilder`."""
  candidates = [
    selection.predict_time(name, cluster, ring, size_bytes, latency_s)
    for name, ring in selection.build_rings(cluster)
  ]
  return selection.choose_fastest(candidates).forest


def build_in_order(
  cluster: Cluster, size_bytes: int = 0, latency_s: Latency = LATENCY_S
) -> Forest:
  """Returns the ring in the order of the workers: see `ForestBuilder`."""
  del size_bytes, latency_s
  return schemes.naive_ring(cluster, selection.make_empty(cluster))


def make(*, cluster: str) -> AllreduceRoute:
  """Returns the route `ring`.

  Args:
    cluster: Links, as `links.read_cluster` reads them; '' for equal links, on
      which the order makes no difference.
  """
  build = build_forest if cluster else build_in_order
  return AllreduceRoute('ring', cluster, build)
