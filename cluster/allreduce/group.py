"""Who takes part in a generation, and over which forest: told by the coordinator."""

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.allreduce.executor.program import Group
from topology import Cluster, Forest
from topology.forests import export


def described(
  generation: int,
  addresses: Mapping[int, str],
  workers: Sequence[str],
  cluster: Cluster,
  forest: Forest,
) -> dict[str, Any]:
  """Returns what the coordinator tells of a group, as plain data.

  Args:
    generation: Which one.
    addresses: Of its members' executors, by index.
    workers: Ids of all workers of the run in clusters, by index.
    cluster: The links among the members.
    forest: Of them.
  """
  return {
    'generation': generation,
    'addresses': {str(index): addresses[index] for index in addresses},
    'names': {workers[index]: index for index in addresses},
    'forest': export.to_json(cluster, forest),
  }


def group_of(said: Mapping[str, Any]) -> Group:
  """Returns the group that the coordinator has told of, after its forest was checked.

  Raises:
    ValueError: If the forest is not sound, or is none of the members.
  """
  _, forest = export.from_json(said['forest'])
  addresses = {
    int(index): said['addresses'][index] for index in said['addresses']
  }
  return Group(said['generation'], addresses, forest, said['names'])
