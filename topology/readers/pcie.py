"""Trees of PCIe switches and sockets, for readers of single machines."""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from topology.clusters.parts import LinkTo


class Branch(NamedTuple):
  """Part of a machine below one link.

  Attributes:
    node: Id of the node at the upper end of the part.
    GBps: Capacity of the link above it, each way.
  """

  node: str
  GBps: Fraction


class Builder:
  """Switches and links that have been added so far.

  Attributes:
    switches: Ids of the switches.
    links: Links, both ways.
  """

  def __init__(self) -> None:
    self.switches: list[str] = []
    self.links: list[LinkTo] = []

  def join(
    self, name: str, below: Sequence[Branch], above_GBps: Fraction
  ) -> Branch:
    """Joins parts by a switch; a single one needs none.

    Args:
      name: Id of the switch.
      below: Parts, one or more.
      above_GBps: Capacity of the link above the switch.

    Returns:
      The joined part; for a single part, the lower of the two capacities
      counts.
    """
    if len(below) == 1:
      return Branch(below[0].node, min(below[0].GBps, above_GBps))
    self.switches.append(name)
    for branch in below:
      self.connect(branch.node, name, branch.GBps)
    return Branch(name, above_GBps)

  def join_sockets(self, sockets: Sequence[str], GBps: Fraction) -> None:
    """Joins two sockets by a link, more of them by a switch `sockets`.

    Args:
      sockets: Ids of their upper nodes, two or more.
      GBps: Capacity of a socket's link to the others, each way.
    """
    if len(sockets) == 2:
      self.connect(sockets[0], sockets[1], GBps)
      return
    self.switches.append('sockets')
    for socket in sockets:
      self.connect(socket, 'sockets', GBps)

  def connect(self, a: str, b: str, GBps: Fraction) -> None:
    """Adds a link in each direction between two nodes."""
    self.links += [(a, b, GBps), (b, a, GBps)]
