"""Allreduce over a packed forest: weighted trees that share all links.

Trees with different roots have weights that make them together as fast as the
links allow (Zhang et al., INFOCOM 2021): see `topology`.  Several forests are
built, and the one with the shortest predicted time for the message is used,
unless equal shards or a ring are about as fast.
"""

from absl import logging

from configs import declared
from route import selection
from route.allreduce import AllreduceRoute
from route.route import LATENCY_S
from route.selection import Candidate, Latency
from topology import Cluster, Forest

_MIN_SPEEDUP = 1.05  # Over the best of shards and rings.


def compare_candidates(
  cluster: Cluster, size_bytes: int, latency_s: Latency
) -> tuple[Candidate, list[Candidate]]:
  """Returns the forest to use, and all candidates with predicted times.

  It is the fastest packed forest or tree if that is at least 5 % faster than
  the fastest of rings and equal shards, and else the latter.

  Args:
    cluster: Known links of two or more workers.
    size_bytes: Bytes of the message that is summed.
    latency_s: Latency of every link, or of each by its ends, seconds.
  """
  groups = [
    [
      selection.predict_time(name, cluster, forest, size_bytes, latency_s)
      for name, forest in forests
    ]
    for forests in (
      [*selection.build_packed(cluster), *selection.build_trees(cluster)],
      [selection.build_shards(cluster), *selection.build_rings(cluster)],
    )
  ]
  packed, plain = map(selection.choose_fastest, groups)
  is_faster = packed.seconds * _MIN_SPEEDUP <= plain.seconds
  return packed if is_faster else plain, [*groups[0], *groups[1]]


def build_forest(
  cluster: Cluster, size_bytes: int, latency_s: Latency = LATENCY_S
) -> Forest:
  """Returns the candidate of `compare_candidates`: see `ForestBuilder`."""
  if len(cluster.workers) == 1:
    return selection.make_empty(cluster)
  best, candidates = compare_candidates(cluster, size_bytes, latency_s)
  logging.info(
    'Forest: %s, %d trees of depth %d, %.4g s for %d bytes; %d candidates.',
    best.name,
    len(best.forest.trees),
    max(tree.depth for tree in best.forest.trees),
    best.seconds,
    size_bytes,
    len(candidates),
  )
  return best.forest


@declared.check_arguments('route.forest')
def make(*, cluster: str, adapt: bool = False) -> AllreduceRoute:
  """Returns the route `forest`.

  Args:
    cluster: Links, as `links.read_cluster` reads them.
    adapt: Whether the forest is replaced when real links change.
  """
  return AllreduceRoute('forest', cluster, build_forest, adapt=adapt)
