"""Hierarchical allreduce: rings inside groups of workers, and between groups.

BlueConnect (Cho et al., MLSys 2019) on two levels.  A group is a set of workers
with faster links to each other than to others (`topology.baselines.ways`).
"""

from absl import logging

from configs.checks import require
from route import selection
from route.allreduce import AllreduceRoute
from route.route import LATENCY_S
from route.selection import Latency
from topology import Cluster, Forest
from topology.baselines import schemes
from topology.baselines.ways import ways_of


def build_forest(
  cluster: Cluster, size_bytes: int = 0, latency_s: Latency = LATENCY_S
) -> Forest:
  """Returns the hierarchy, or a ring if there is one group.

  There may be one group after workers have left, or in measured links.  See
  `ForestBuilder`.
  """
  del size_bytes, latency_s
  count = len(cluster.workers)
  if len(ways_of(cluster).groups()) > 1:
    return schemes.hierarchical(cluster, selection.make_empty(cluster))
  if count > 1:
    logging.warning('All %d workers are one group; using a ring.', count)
  return schemes.naive_ring(cluster, selection.make_empty(cluster))


def check_groups(cluster: Cluster) -> None:
  """Raises ValueError if several workers are all in one group."""
  has_groups = len(cluster.workers) == 1 or len(ways_of(cluster).groups()) > 1
  expected = 'links that are faster within groups of workers than between them'
  require(has_groups, 'cluster', expected, 'one group')


def make(*, cluster: str) -> AllreduceRoute:
  """Returns the route `hierarchical`.

  Args:
    cluster: Links, as `links.read_cluster` reads them.
  """
  return AllreduceRoute('hierarchical', cluster, build_forest, check_groups)
