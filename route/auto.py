"""The route that is predicted to be the fastest over the links that there are.

Rings, hierarchies, double trees, shards and forests are carried out by one
executor, so that predictions compare them fairly.  XLA's psum on CPUs is a ring
that cannot be faster; on GPUs that are joined by more than a network choose
`native` yourself.
"""

from absl import logging

from route import choosing, forest
from route.allreduce import AllreduceRoute
from route.choosing import Latency
from route.route import LATENCY_S
from topology import Cluster, Forest


def fastest(
  cluster: Cluster, size_bytes: int, latency_s: Latency = LATENCY_S
) -> Forest:
  """Returns the fastest of all, and logs a table: see `Forests`."""
  if len(cluster.workers) == 1:
    return choosing.empty(cluster)
  _, tried = forest.chosen(cluster, size_bytes, latency_s)
  taken = choosing.fastest(tried)
  logging.info('Predicted for %d bytes, of all routes:', size_bytes)
  for each in sorted(tried, key=lambda each: each.seconds):
    logging.info(
      '  %-24s %9.4g s, %3d trees of depth %2d%s',
      each.name,
      each.seconds,
      len(each.forest.trees),
      max(tree.depth for tree in each.forest.trees),
      ', taken' if each is taken else '',
    )
  return taken.forest


def make(*, cluster: str) -> AllreduceRoute:
  """Returns the route.

  Args:
    cluster: The links, as of `links.believed`.
  """
  return AllreduceRoute('auto', cluster, fastest)
