"""Double binary tree allreduce: two trees with half of the bytes each.

It has few hops, log2 N up and as many down, which suits many workers and few
bytes (Sanders, Speck and Traeff, 2009).
"""

from route import selection
from route.allreduce import AllreduceRoute
from route.route import LATENCY_S
from route.selection import Latency
from topology import Cluster, Forest
from topology.baselines import schemes


def build_forest(
  cluster: Cluster, size_bytes: int = 0, latency_s: Latency = LATENCY_S
) -> Forest:
  """Returns the forest of two binary trees: see `ForestBuilder`."""
  del size_bytes, latency_s
  return schemes.double_binary_tree(cluster, selection.make_empty(cluster))


def make(*, cluster: str) -> AllreduceRoute:
  """Returns the route `double_tree`.

  Args:
    cluster: Links, as `links.read_cluster` reads them.
  """
  return AllreduceRoute('double_tree', cluster, build_forest)
