"""Two binary trees with half of the bytes each.

Few hops: log2 N up and as many down, for many workers and few bytes (Sanders,
Speck and Traeff, 2009).
"""

from route import choosing
from route.allreduce import AllreduceRoute
from route.choosing import Latency
from route.route import LATENCY_S
from topology import Cluster, Forest
from topology.baselines import schemes


def forest(
  cluster: Cluster, size_bytes: int = 0, latency_s: Latency = LATENCY_S
) -> Forest:
  """Returns the two trees: see `Forests`."""
  del size_bytes, latency_s
  return schemes.double_binary_tree(cluster, choosing.empty(cluster))


def make(*, cluster: str) -> AllreduceRoute:
  """Returns the route.

  Args:
    cluster: The links, as of `links.believed`.
  """
  return AllreduceRoute('double_tree', cluster, forest)
