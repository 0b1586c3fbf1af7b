"""The allreduce of the shortest predicted time over the given links.

One executor runs rings, hierarchies, double trees, shards and forests, so that
predictions are comparable.  XLA's psum is not among the candidates: on CPUs it
is a ring and no faster; on GPUs with direct links choose `native` instead.
"""

from absl import logging

from route import forest, selection
from route.allreduce import AllreduceRoute
from route.route import LATENCY_S
from route.selection import Latency
from topology import Cluster, Forest


def build_forest(
  cluster: Cluster, size_bytes: int, latency_s: Latency = LATENCY_S
) -> Forest:
  """Returns the fastest candidate, and logs a table: see `ForestBuilder`."""
  if len(cluster.workers) == 1:
    return selection.make_empty(cluster)
  _, candidates = forest.compare_candidates(cluster, size_bytes, latency_s)
  fastest = selection.choose_fastest(candidates)
  logging.info('Predicted seconds of all routes for %d bytes:', size_bytes)
  for each in sorted(candidates, key=lambda each: each.seconds):
    logging.info(
      '  %-24s %9.4g s, %3d trees of depth %2d%s',
      each.name,
      each.seconds,
      len(each.forest.trees),
      max(tree.depth for tree in each.forest.trees),
      ', chosen' if each is fastest else '',
    )
  return fastest.forest


def make(*, cluster: str) -> AllreduceRoute:
  """Returns the route `auto`.

  Args:
    cluster: Links, as `links.read_cluster` reads them.
  """
  return AllreduceRoute('auto', cluster, build_forest)
