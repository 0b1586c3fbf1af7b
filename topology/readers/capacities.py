"""Capacities of kinds of links that a file does not have, as a user gives them.

Names are those of flags, such as `pcie_GBps`.
"""

from collections.abc import Mapping
from fractions import Fraction

from topology.clusters import parts
from topology.clusters.parts import Capacity


class Capacities:
  """Given capacities, of which each must be used.

  Args:
    given: Capacity by name, GB/s each way.

  Attributes:
    used: Names that a reader has asked for.

  Raises:
    ValueError: If a capacity is no number above 0; names it.
  """

  def __init__(self, given: Mapping[str, Capacity]):
    self._given = {
      name: parts.check_capacity(value, name) for name, value in given.items()
    }
    self.used: set[str] = set()

  def get(self, name: str) -> Fraction | None:
    """Returns a capacity, or None if it is not given."""
    self.used.add(name)
    return self._given.get(name)

  def need(self, name: str, links: str) -> Fraction:
    """Returns a capacity.

    Args:
      links: Links that have it, for the message.

    Raises:
      ValueError: If it is not given.
    """
    found = self.get(name)
    if found is None:
      raise ValueError(
        f'{name}: expected the GB/s each way of {links}, which the file does '
        f'not have; give --{name}.'
      )
    return found

  def check_used(self) -> None:
    """Raises ValueError if no link has a given capacity."""
    unused = sorted(self._given.keys() - self.used)
    if unused:
      raise ValueError(
        f'{unused[0]}: expected no value, as the cluster of this file has no '
        f'link of that kind, got {float(self._given[unused[0]]):g}.'
      )
