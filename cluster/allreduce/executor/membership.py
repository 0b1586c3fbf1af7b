"""Membership of an epoch: the workers that sum together, and their forest.

The coordinator sends it in a message; every member checks the forest that it
receives, as it has come over the network.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from cluster.network import messages
from cluster.network.errors import InvalidMessage, expect
from cluster.network.messages import MemberForest
from topology import Cluster, Forest
from topology.forests import compact


class Membership(NamedTuple):
  """Members of one membership epoch, and the forest that they sum over.

  Attributes:
    membership_epoch: Number of the epoch; later ones have larger numbers.
    addresses: 'host:port' of each member's executor, by worker index.
    forest: Allreduce forest of the members.
    names: Worker index by node id of the forest.
    lanes: Number of lanes that divide the chunks.
  """

  membership_epoch: int
  addresses: Mapping[int, str]
  forest: Forest
  names: Mapping[str, int]
  lanes: int = 1


def describe(membership: Membership, cluster: Cluster) -> MemberForest:
  """Returns the members and the forest of a membership, for a message.

  Args:
    membership: The membership.
    cluster: Links among its members, which its forest was packed for.
  """
  return MemberForest(
    addresses=dict(membership.addresses),
    names=dict(membership.names),
    forest=msgspec.Raw(
      messages.encode(compact.to_json(cluster, membership.forest))
    ),
    lanes=membership.lanes,
  )


def parse(membership_epoch: int, members: MemberForest) -> Membership:
  """Returns the membership of a message, after its forest was checked.

  Args:
    membership_epoch: Number of the epoch.
    members: Result of `describe`.

  Raises:
    InvalidMessage: If the forest is not sound, or not one of the members.
  """
  names, addresses = members.names, members.addresses
  # Names of nodes as `members.names` has them.
  try:
    content = messages.printable(messages.FOREST.decode(members.forest))
    cluster, forest = compact.from_json(content)
  except ValueError as error:
    raise InvalidMessage(f'forest: {error}') from error
  nodes = sorted(cluster.workers)
  expect(nodes == sorted(names), 'names', f'those of {nodes}', [*names])
  is_same = sorted(names.values()) == sorted(addresses)
  expect(is_same, 'addresses', f'those of {[*names.values()]}', [*addresses])
  return Membership(
    membership_epoch, members.addresses, forest, members.names, members.lanes
  )
