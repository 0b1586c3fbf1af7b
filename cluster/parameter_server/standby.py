"""State from which a worker succeeds a coordinator with parameter servers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cluster.membership.succession import Membership
from cluster.network.messages import MirrorCompleted
from cluster.parameter_server.mirrors import COORDINATOR, MirrorStore
from outputs import serialization
from system import clock


class Inheritance(NamedTuple):
  """State from which a successor continues.

  Attributes:
    membership: Members, and the coordinator's term, at the mirror.
    supporters: Members that have elected the successor, with itself.
    number: Number of the mirror.
    state: The coordinator's state in it.
    age_s: Seconds since the mirror was complete.
  """

  membership: Membership
  supporters: Sequence[int]
  number: int
  state: Mapping[str, Any]
  age_s: float


class MirrorStandby:
  """The coordinator's part of the newest mirror, if this process has it.

  The version of a process, in elections, is the number of that mirror.

  Attributes:
    membership: Members at the newest complete mirror, whose number it has.
  """

  def __init__(self, mirrors: MirrorStore):
    """Creates a standby that knows no mirror.

    Args:
      mirrors: Parts of mirrors that this process holds.
    """
    self.membership = Membership()
    self._mirrors = mirrors
    self._completed_at = 0.0

  @property
  def version(self) -> int:
    """Number of the newest complete mirror; 0 before the first."""
    return max(self.membership.number, 0)

  def complete(self, message: MirrorCompleted) -> None:
    """Records that a mirror is complete."""
    self._completed_at = clock.monotonic()
    self.membership = Membership(message.term, message.number, message.members)

  def can_succeed(self, version: int) -> bool:
    """Returns whether a coordinator can continue from a mirror from here."""
    return self._mirrors.has(version, COORDINATOR)

  def inherit(self, version: int, supporters: Sequence[int]) -> Inheritance:
    """Returns the state that a successor continues from.

    Args:
      version: Number of the mirror.
      supporters: Members that have elected this process, with itself.

    Raises:
      LookupError: If this process does not have it.
    """
    return Inheritance(
      self.membership,
      supporters,
      version,
      serialization.thaw(self._mirrors.get(version, COORDINATOR)),
      clock.monotonic() - self._completed_at,
    )
