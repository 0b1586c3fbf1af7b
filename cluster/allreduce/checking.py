"""The coordinator's part of a check of replicas: repairs, evicts, records.

`reduced.agreement` says which replicas differ; this module exchanges the
messages.  A check runs between two iterations:

  coordinator              member
  check              ->
                     <-    checked: digest of its state
  compare            ->                                    if it differs
                           fetches the reference state from another member
                     <-    compared: difference, digest afterwards

A member that differs by more than rounding is evicted, and rejoins with fetched
state.  The coordinator's own worker cannot be evicted without ending the run:
its state is replaced in place.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from cluster.allreduce.agreement import Agreement
from cluster.allreduce.formation import Formation
from cluster.network.messages import CheckState, CompareState, ToReplica
from cluster.process.exits import Unmendable
from learning import drift


class StateCheck:
  """Checks of one run, one after the other.

  Attributes:
    agreement: The running check, and what is counted of all.
  """

  def __init__(
    self,
    formation: Formation,
    *,
    say: Callable[[int, ToReplica], None],
    lose: Callable[[int, str], None],
    record: Callable[[Mapping[str, Any]], None],
    forget: Callable[[int], None],
    limit_s: float,
  ):
    """Starts with no check.

    Args:
      formation: Knows the members, and from which of them others can fetch.
      say: Sends a message to a member.
      lose: Evicts a worker, for a reason.
      record: Writes a row on a replica that has differed.
      forget: Records that what a worker kept of gradients is lost.
      limit_s: Seconds without an answer or progress after which a member is
        evicted.
    """
    self.agreement = Agreement()
    self._formation = formation
    self._say, self._lose = say, lose
    self._record, self._forget = record, forget
    self._limit_s = limit_s
    self._asked_at = 0.0
    self._then: Callable[[], None] = lambda: None
    self._replacing = False  # The state of worker 0, in place.
    self._later: list[int] = []  # Members that reach no store of it yet.

  @property
  def is_running(self) -> bool:
    """True while a check runs."""
    return self.agreement.is_running

  def begin(
    self,
    version: int,
    then: Callable[[], None],
    digests: Mapping[int, str] | None = None,
  ) -> None:
    """Begins a check of all members.

    Args:
      version: That all of them have, or will have when they read messages.
      then: Called once all hold the same state.  Not called if the membership
        changes before: what follows has to check again.
      digests: Of all members, if they are known; None to ask for them.

    Raises:
      Unmendable: If only a checkpoint can help.
    """
    self._then, self._replacing, self._later = then, False, []
    voters = self._formation.trusted
    if digests is not None:
      voters = [k for k in voters if k not in self._formation.fetched]
    if not voters:
      raise Unmendable(
        f'Only corrupt replicas have version {version}. All return to the '
        'newest checkpoint.'
      )
    self.agreement.begin(version, self._formation.members, voters)
    self._asked_at = time.monotonic()
    if digests is None:
      for index in self.agreement.awaited:
        self._say(index, CheckState(self._formation.generation))
    else:
      for index, digest in [*digests.items()]:
        self.add_digest(index, version, digest)

  def cancel(self) -> None:
    """Gives the running check up: the membership changes."""
    self._replacing = False
    self.agreement.cancel()

  def add_digest(self, index: int, version: int, digest: str) -> None:
    """Takes in a member's digest; what follows is as of `begin`."""
    if self.agreement.add_digest(index, version, digest):
      self._compare(self.agreement.differing, replace=False)

  def add_difference(
    self, index: int, version: int, difference: float | None, digest: str
  ) -> None:
    """Takes in how far a member's state was from the reference.

    Args:
      index: The member.
      version: Of the states that it has compared.
      difference: Relative; None if it is not a finite number.
      digest: Of its state now.

    Raises:
      Unmendable: If only a checkpoint can help.
    """
    if self._replacing and index == 0 and version == self.agreement.version:
      self._replaced(digest)
    elif self.agreement.add_difference(index, version, difference, digest):
      if self._later:
        self._compare(self._later, replace=False)
      else:
        self._judge()

  def overdue(self, moved: Callable[[int], float]) -> list[int]:
    """Returns members that have neither answered nor moved in time.

    Args:
      moved: Returns when a member has made progress, monotonic seconds.
    """
    if not self.is_running:
      return []
    now = time.monotonic()
    return [
      index
      for index in self.agreement.awaited
      if now - max(self._asked_at, moved(index)) > self._limit_s
    ]

  def _compare(self, members: list[int], *, replace: bool) -> None:
    """Asks members to compare their state with the reference and adopt it.

    Args:
      members: Those that differ; if there are none, the check ends.
      replace: Whether they take it over whatever the difference.
    """
    if not members:
      self._end()
      return
    # Those that have taken it over can give it to members that they reach.
    rounding = self.agreement.differences.keys() - {*self.agreement.corrupt}
    holders = sorted({*self.agreement.reference, *rounding})
    sources = {
      index: found
      for index in members
      if (found := self._formation.source(index, holders)) is not None
    }
    if not sources:
      reason = 'It can connect to no replica with the same state.'
      self._lose(members[0], reason)
      return  # The membership changes.
    self._later = [index for index in members if index not in sources]
    self.agreement.compare(sources)
    self._asked_at = time.monotonic()
    for index, source in sources.items():
      self._say(
        index,
        CompareState(
          epoch=self._formation.generation,
          version=self.agreement.version,
          source=source,
          replaces=replace,
        ),
      )

  def _judge(self) -> None:
    """Decides what follows once all differences are known.

    Raises:
      Unmendable: If there is no majority, or a corrupt replica where XLA sums.
    """
    agreement = self.agreement
    corrupt, differences = agreement.corrupt, dict(agreement.differences)
    # Worker 0 may be known to be corrupt from a check that has been given up.
    known = {*differences} - {*self._formation.trusted}
    agreement.count(known)
    for index, apart in sorted(differences.items()):
      if index not in known:
        self._report(index, apart, index in corrupt)
    if not corrupt:
      self._end()
      return
    named = f'workers {corrupt} at version {agreement.version}'
    if not agreement.has_majority:
      raise Unmendable(
        f'Replicas differ by more than rounding, without a majority: {named}. '
        'All return to the newest checkpoint.'
      )
    if not self._formation.mends:
      raise Unmendable(f'Replicas are corrupt, and XLA needs all: {named}.')
    for index in corrupt:
      self._formation.distrust(index)
    others = [index for index in corrupt if index]
    for index in others:
      self._lose(
        index,
        f'It is corrupt: its state differs by {differences[index]:.3g} of its '
        f'norm at version {agreement.version}.',
      )
    if not others:
      # The process of the coordinator stays: its state is replaced.
      self._replacing = True
      self._compare([0], replace=True)

  def _replaced(self, digest: str) -> None:
    """Ends the check: worker 0 has taken the reference state over.

    Raises:
      Unmendable: If it has another state all the same.
    """
    if digest != self.agreement.reference_digest:
      raise Unmendable('Worker 0 does not hold the state that it has fetched.')
    self.agreement.replaced(0)
    self._forget(0)
    self._end()

  def _report(self, index: int, apart: float, corrupt: bool) -> None:
    agreement = self.agreement
    finite = apart if apart != float('inf') else None
    logging.log(
      logging.ERROR if corrupt else logging.INFO,
      'Worker %d %s: at version %d its state differs from that of workers %s '
      'by %.3g of its norm (rounding: up to %g).',
      index,
      'is corrupt' if corrupt else 'has drifted and is repaired',
      agreement.version,
      [*agreement.reference],
      apart,
      drift.BOUND,
    )
    self._record(
      {
        'worker': index,
        'version': agreement.version,
        'difference': finite,
        'corrupt': corrupt,
        'reference': [*agreement.reference],
      }
    )

  def _end(self) -> None:
    then, self._then = self._then, lambda: None
    self._replacing = False
    for index in self._formation.members:
      self._formation.trust(index)
    self.agreement.end()
    then()
