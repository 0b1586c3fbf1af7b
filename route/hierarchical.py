"""Rings inside groups of workers, and rings between the groups.

BlueConnect (Cho et al., MLSys 2019) on two levels.  Groups are workers whose
links to each other are faster than those to others (`baselines.ways`).
"""

from absl import logging

from configs.checks import require
from route import choosing
from route.allreduce import AllreduceRoute
from route.choosing import Latency
from route.route import LATENCY_S
from topology import Cluster, Forest
from topology.baselines import schemes
from topology.baselines.ways import ways_of


def forest(
  cluster: Cluster, size_bytes: int = 0, latency_s: Latency = LATENCY_S
) -> Forest:
  """Returns the hierarchy: see `Forests`.

  Survivors of a run may be in one group, and so may all whose links were
  measured: they make its ring.
  """
  del size_bytes, latency_s
  count = len(cluster.workers)
  if len(ways_of(cluster).groups()) > 1:
    return schemes.hierarchical(cluster, choosing.empty(cluster))
  if count > 1:
    logging.warning('%d workers are one group, and sum over a ring.', count)
  return schemes.naive_ring(cluster, choosing.empty(cluster))


def fits(cluster: Cluster) -> None:
  """Raises ValueError if all of several workers are in one group."""
  several = len(cluster.workers) == 1 or len(ways_of(cluster).groups()) > 1
  expected = 'links that are faster within groups of workers than between them'
  require(several, 'cluster', expected, 'one group')


def make(*, cluster: str) -> AllreduceRoute:
  """Returns the route.

  Args:
    cluster: The links, as of `links.believed`.
  """
  return AllreduceRoute('hierarchical', cluster, forest, fits)
