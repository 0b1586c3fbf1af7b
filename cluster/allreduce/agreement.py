"""Agreement of replicas: majority vote on their states, measure of drift.

Replicas on like processors hold the same bits.  On unlike ones each rounds its
updates in its own way.  So at each check all members of a membership epoch send
a digest of their state.  If digests differ, the largest group of equal ones is
the reference; the others fetch its state, measure the difference of theirs, and
adopt it if that is no more than rounding (`learning.drift`).  One that differs
by more is corrupt.

The alternative would be replicas that are equal by construction: the root of
each chunk applies the update and sends displacements down.  It was not chosen:
clipping and other norms over all parameters would need every sum before the
first displacement may travel, optimizer state would be lost with a root unless
it is mirrored, and XLA's collectives (`native`) could not do it, while
repairing costs one transfer of the state at each check, and only on unlike
hardware (figures: docs/benchmarks.md).
"""

import collections
import math
from collections.abc import Iterable, Mapping
from typing import Any

from learning import drift


class Agreement:
  """The check of one version at a time; plain data, without clock or network.

  Attributes:
    agreed: The last version at which all members had the same state; -1 before
      the first.
    reference: Members that hold the reference state of the running check,
      ascending; known once all digests have come.
    differences: Relative difference of each member that has compared its state
      with the reference, in the running check.
    totals: Counts over the run: `repairs`, states that were replaced;
      `corrupt`, replicas that differed by more than rounding; and `largest`,
      the largest relative difference that counted as rounding.
  """

  def __init__(self) -> None:
    """Creates the state before the first check."""
    self.agreed = -1
    self.reference: tuple[int, ...] = ()
    self.differences: dict[int, float] = {}
    self.totals: dict[str, Any] = {'repairs': 0, 'corrupt': 0, 'largest': 0.0}
    self._version = -1
    self._members: tuple[int, ...] = ()
    self._voters: set[int] = set()
    self._digests: dict[int, str] = {}
    self._comparing: set[int] = set()

  @property
  def is_running(self) -> bool:
    """True while a check runs."""
    return bool(self._members)

  @property
  def version(self) -> int:
    """Version of the running check."""
    return self._version

  @property
  def awaited(self) -> list[int]:
    """Members whose answer the running check needs next, ascending."""
    missing = {*self._members} - self._digests.keys()
    return sorted(missing or self._comparing)

  @property
  def reference_digest(self) -> str:
    """Digest of the reference state, once all digests have come."""
    return self._digests[self.reference[0]]

  @property
  def differing(self) -> list[int]:
    """Members whose state is not the reference, ascending."""
    reference = {*self.reference}
    return [k for k in self._members if k not in reference]

  @property
  def corrupt(self) -> list[int]:
    """Members that differ from the reference by more than rounding."""
    return sorted(
      k for k, each in self.differences.items() if not each <= drift.BOUND
    )

  @property
  def has_majority(self) -> bool:
    """True if most voters hold the reference, to rounding."""
    corrupt = self._voters.intersection(self.corrupt)
    return 2 * len(corrupt) < len(self._voters)

  def begin(
    self,
    version: int,
    members: Iterable[int],
    voters: Iterable[int] | None = None,
  ) -> None:
    """Begins the check of a version; cancels one that is running.

    Args:
      version: Version that all members have.
      members: Members whose states are compared.
      voters: Members whose digests choose the reference, at least one: a state
        that was just copied from another member is no evidence for it, and a
        state that is known to be corrupt neither.  None for all.
    """
    self._version, self._members = version, tuple(sorted(members))
    self._voters = {*(self._members if voters is None else voters)}
    self.reference = ()
    self.differences, self._digests = {}, {}
    self._comparing.clear()

  def cancel(self) -> None:
    """Cancels the running check, if there is one."""
    self._members = ()

  def add_digest(self, index: int, version: int, digest: str) -> bool:
    """Adds a member's digest.

    Args:
      index: The member.
      version: Version of the state.
      digest: Digest of the state.

    Returns:
      Whether this was the last missing one; then `reference` and `differing`
      are known.
    """
    is_missing = index in self._members and index not in self._digests
    if not is_missing or version != self._version:
      return False
    self._digests[index] = digest
    if len(self._digests) < len(self._members):
      return False
    votes = {k: self._digests[k] for k in self._voters}
    reference = votes[_largest_group(votes)[0]]
    self.reference = tuple(
      k for k in self._members if self._digests[k] == reference
    )
    return True

  def compare(self, members: Iterable[int]) -> None:
    """Begins to wait for the differences of some members from the reference."""
    self._comparing = {*members}

  def add_difference(
    self, index: int, version: int, difference: float | None, digest: str
  ) -> bool:
    """Adds the difference of a member's state from the reference.

    Args:
      index: The member.
      version: Version of the states that were compared.
      difference: Relative difference; None if it is not a finite number.
      digest: Digest of its state after the comparison; a member that should
        have adopted the reference and has another state counts as corrupt.

    Returns:
      Whether this was the last expected one.
    """
    if index not in self._comparing or version != self._version:
      return False
    self._comparing.discard(index)
    if difference is None or (
      difference <= drift.BOUND and digest != self.reference_digest
    ):
      difference = math.inf
    self.differences[index] = difference
    return not self._comparing

  def count_replaced(self, index: int) -> None:
    """Counts a corrupt member whose state was replaced by the reference."""
    self.differences.pop(index, None)
    self.totals['repairs'] += 1

  def count(self, known: Iterable[int] = ()) -> None:
    """Adds the differences of the running check to `totals`.

    Args:
      known: Members that were counted as corrupt by an earlier check.
    """
    corrupt = self.corrupt
    rounding = [x for k, x in self.differences.items() if k not in corrupt]
    self.totals['corrupt'] += len({*corrupt} - {*known})
    self.totals['repairs'] += len(rounding)
    self.totals['largest'] = max([self.totals['largest'], *rounding])

  def end(self) -> None:
    """Ends the check: all members have the same state."""
    self.agreed = self._version
    self._members = ()


def _largest_group(digests: Mapping[int, str]) -> tuple[int, ...]:
  """Returns the members of the most frequent digest; ties: the lowest rank."""
  groups: dict[str, list[int]] = collections.defaultdict(list)
  for index in sorted(digests):
    groups[digests[index]].append(index)
  # In order of lowest ranks: the first of the largest.
  largest: list[int] = max(groups.values(), key=len)
  return tuple(largest)
