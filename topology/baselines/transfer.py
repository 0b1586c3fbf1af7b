"""Transfer of a forest to a cluster with other links.

Used when links have changed, to time the running forest over the new ones.
"""

import dataclasses
from collections.abc import Mapping

from topology.baselines.ways import ways_of
from topology.clusters.cluster import Cluster
from topology.forests import trees


def transfer_forest(
  forest: trees.Forest, cluster: Cluster, name_of: Mapping[str, str]
) -> trees.Forest:
  """Returns the trees of a forest at the rate that other links allow.

  Weights keep their ratios.  The result has neither bound nor certificate, as
  those of `forest` hold for its own links.

  Args:
    forest: Forest of another cluster.
    cluster: Links of the result.
    name_of: Worker of `cluster` that replaces each worker of the forest.
  """
  ways = ways_of(cluster)

  def transfer(hops: list[trees.Hop]) -> list[trees.Hop]:
    return [ways.hop(name_of[hop[0]], name_of[hop[-1]]) for hop in hops]

  plain = dataclasses.replace(forest, bound_Bps=None, certificate=None)
  if not forest.trees:
    return plain
  columns = [
    trees.Column(
      name_of[tree.root],
      tree.weight_Bps,
      transfer(tree.up),
      transfer(tree.down),
    )
    for tree in forest.trees
  ]
  return trees.fit_forest(cluster, columns, plain)
