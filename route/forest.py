"""A forest packed for the links: all of them at work at the same time.

Trees with different roots, of such weights that they are as fast together as
the links allow (Zhang et al., INFOCOM 2021): see `topology`.  Of all forests
tried the one is taken that is predicted to be the fastest for the bytes that
travel; where none is clearly faster than plain shards or a ring, one of those.
"""

from absl import logging

from route import choosing
from route.allreduce import AllreduceRoute
from route.choosing import Latency, Predicted
from route.route import LATENCY_S
from topology import Cluster, Forest

_CLEARLY = 1.05  # Times as fast as the plain ones.


def chosen(
  cluster: Cluster, size_bytes: int, latency_s: Latency
) -> tuple[Predicted, list[Predicted]]:
  """Returns the forest to use, and all that were tried."""
  found = [
    [
      choosing.predicted(name, cluster, forest, size_bytes, latency_s)
      for name, forest in forests
    ]
    for forests in (
      [*choosing.candidates(cluster), *choosing.others(cluster)],
      [choosing.sharded(cluster), *choosing.rings(cluster)],
    )
  ]
  packed, plain = map(choosing.fastest, found)
  better = packed.seconds * _CLEARLY <= plain.seconds
  return packed if better else plain, [*found[0], *found[1]]


def forest(
  cluster: Cluster, size_bytes: int, latency_s: Latency = LATENCY_S
) -> Forest:
  """Returns the forest to use: see `Forests`."""
  if len(cluster.workers) == 1:
    return choosing.empty(cluster)
  taken, tried = chosen(cluster, size_bytes, latency_s)
  logging.info(
    'Forest: %s, %d trees of depth %d, %.4g s for %d bytes; %d were tried.',
    taken.name,
    len(taken.forest.trees),
    max(tree.depth for tree in taken.forest.trees),
    taken.seconds,
    size_bytes,
    len(tried),
  )
  return taken.forest


def make(*, cluster: str, adapt: bool = False) -> AllreduceRoute:
  """Returns the route.

  Args:
    cluster: The links, as of `links.believed`.
    adapt: Whether links are followed, and forests changed with them.
  """
  return AllreduceRoute('forest', cluster, forest, adapt=adapt)
