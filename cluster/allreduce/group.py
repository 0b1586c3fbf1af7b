"""Who takes part in a generation, and over which forest: told by the coordinator."""

from collections.abc import Mapping, Sequence

from cluster.allreduce.executor.program import Group
from cluster.network.messages import MemberForest
from topology import Cluster, Forest
from topology.forests import export


def described(
  addresses: Mapping[int, str],
  workers: Sequence[str],
  cluster: Cluster,
  forest: Forest,
) -> MemberForest:
  """Returns what the coordinator sends of a group.

  Args:
    addresses: Of its members' executors, by index.
    workers: Ids of all workers of the run in clusters, by index.
    cluster: The links among the members.
    forest: Of them.
  """
  return MemberForest(
    addresses={index: addresses[index] for index in addresses},
    names={workers[index]: index for index in addresses},
    forest=export.to_json(cluster, forest),
  )


def group_of(epoch: int, members: MemberForest) -> Group:
  """Returns the group that the coordinator has told of, after its forest was checked.

  Raises:
    ValueError: If the forest is not sound, or is none of the members.
  """
  _, forest = export.from_json(members.forest)
  return Group(epoch, members.addresses, forest, members.names)
