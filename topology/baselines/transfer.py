"""A forest over other links than those that it was made for."""

import dataclasses
from collections.abc import Mapping

from topology.baselines.ways import ways_of
from topology.clusters.cluster import Cluster
from topology.forests import trees


def transfer_forest(
  forest: trees.Forest, cluster: Cluster, name_of: Mapping[str, str]
) -> trees.Forest:
  """Returns the same trees as fast as other links let them be.

  Weights keep their ratios.  It is not bound by what bounds the other one, so
  that it has neither bound nor proof.

  Args:
    forest: Of another cluster.
    cluster: The links.
    name_of: By worker of the other cluster, the worker here in its place.
  """
  ways = ways_of(cluster)

  def there(hops: list[trees.Hop]) -> list[trees.Hop]:
    return [ways.hop(name_of[hop[0]], name_of[hop[-1]]) for hop in hops]

  plain = dataclasses.replace(forest, bound_Bps=None, certificate=None)
  if not forest.trees:
    return plain
  columns = [
    trees.Column(
      name_of[tree.root], tree.weight_Bps, there(tree.up), there(tree.down)
    )
    for tree in forest.trees
  ]
  return trees.fit_forest(cluster, columns, plain)
