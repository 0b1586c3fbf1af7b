"""Checks of the replicas' states, by the coordinator: repair or eviction.

`agreement` decides which replicas differ; this module exchanges the messages.
A check runs between two iterations:

  coordinator              member
  check              ->
                     <-    checked: digest of its state
  compare            ->                                    if it differs
                           fetches the reference state from other members
                     <-    compared: difference, digest afterwards

A member that differs by more than rounding is evicted, and rejoins with fetched
state.  The coordinator's own worker cannot be evicted without ending the run:
its state is replaced in place.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from cluster.allreduce.agreement import Agreement
from cluster.allreduce.rendezvous import Rendezvous
from cluster.network.messages import CheckState, CompareState, ToReplica
from cluster.process.exits import Unmendable
from learning import drift
from system import clock


class StateCheck:
  """Checks of the members' states, one after the other.

  Attributes:
    agreement: Votes of the running check, and totals of all checks.
  """

  def __init__(
    self,
    rendezvous: Rendezvous,
    *,
    send: Callable[[int, ToReplica], None],
    evict: Callable[[int, str], None],
    record: Callable[[Mapping[str, Any]], None],
    forget: Callable[[int], None],
    limit_s: float,
  ):
    """Creates the state without a running check.

    Args:
      rendezvous: The members, and which of them can give others their state.
      send: Sends a message to a member.
      evict: Evicts a worker, for a reason.
      record: Writes a row about a replica that has differed.
      forget: Records that a worker's residual is lost.
      limit_s: Seconds without an answer or progress after which a member is
        evicted.
    """
    self.agreement = Agreement()
    self._rendezvous = rendezvous
    self._send, self._evict = send, evict
    self._record, self._forget = record, forget
    self._limit_s = limit_s
    self._asked_at = 0.0
    self._on_agreed: Callable[[], None] = lambda: None
    # The state of the coordinator's worker, in place.
    self._is_replacing = False
    # Members that cannot yet connect to a member with the reference state.
    self._unreached: list[int] = []

  @property
  def is_running(self) -> bool:
    """True while a check runs."""
    return self.agreement.is_running

  def begin(
    self,
    version: int,
    on_agreed: Callable[[], None],
    digests: Mapping[int, str] | None = None,
  ) -> None:
    """Begins a check of all members.

    Args:
      version: Version that all of them have, or will have when they handle
        the next message.
      on_agreed: Called once all have the same state; not called if the
        membership changes before.
      digests: Digests of all members, if they are known; None to request
        them.

    Raises:
      Unmendable: If only a checkpoint can help.
    """
    self._on_agreed, self._is_replacing = on_agreed, False
    self._unreached = []
    voters = self._rendezvous.sound
    if digests is not None:
      voters = [k for k in voters if k not in self._rendezvous.fetching]
    if not voters:
      raise Unmendable(
        f'Only corrupt replicas have version {version}. All return to the '
        'newest checkpoint.'
      )
    self.agreement.begin(version, self._rendezvous.members, voters)
    self._asked_at = clock.monotonic()
    if digests is None:
      for index in self.agreement.awaited:
        self._send(index, CheckState(self._rendezvous.membership_epoch))
    else:
      for index, digest in [*digests.items()]:
        self.add_digest(index, version, digest)

  def cancel(self) -> None:
    """Cancels the running check: the membership changes."""
    self._is_replacing = False
    self.agreement.cancel()

  def add_digest(self, index: int, version: int, digest: str) -> None:
    """Adds a member's digest; raises as `begin`."""
    if self.agreement.add_digest(index, version, digest):
      self._compare(self.agreement.differing, replace=False)

  def add_difference(
    self, index: int, version: int, difference: float | None, digest: str
  ) -> None:
    """Adds the difference of a member's state from the reference.

    Args:
      index: The member.
      version: Version of the states that it has compared.
      difference: Relative difference; None if it is not a finite number.
      digest: Digest of its state after the comparison.

    Raises:
      Unmendable: If only a checkpoint can help.
    """
    is_local = index == self._rendezvous.local
    is_current = version == self.agreement.version
    if self._is_replacing and is_local and is_current:
      self._finish_replacement(digest)
    elif self.agreement.add_difference(index, version, difference, digest):
      if self._unreached:
        self._compare(self._unreached, replace=False)
      else:
        self._judge()

  def overdue(self, moved: Callable[[int], float]) -> list[int]:
    """Returns members that have neither answered nor made progress in time.

    Args:
      moved: Returns the time of a member's last progress, monotonic seconds.
    """
    if not self.is_running:
      return []
    now = clock.monotonic()
    return [
      index
      for index in self.agreement.awaited
      if now - max(self._asked_at, moved(index)) > self._limit_s
    ]

  def _compare(self, members: list[int], *, replace: bool) -> None:
    """Orders members to compare their state with the reference and adopt it.

    Args:
      members: Members that differ; if there are none, the check ends.
      replace: Whether they adopt it whatever the difference.
    """
    if not members:
      self._end()
      return
    # Members that have adopted it can pass it on.
    rounding = self.agreement.differences.keys() - {*self.agreement.corrupt}
    holders = sorted({*self.agreement.reference, *rounding})
    sources = {
      index: found
      for index in members
      if (found := self._rendezvous.find_sources(index, holders))
    }
    if not sources:
      reason = 'It can connect to no replica with the same state.'
      self._evict(members[0], reason)
      return  # The membership changes.
    self._unreached = [index for index in members if index not in sources]
    self.agreement.compare(sources)
    self._asked_at = clock.monotonic()
    for index, found in sources.items():
      self._send(
        index,
        CompareState(
          membership_epoch=self._rendezvous.membership_epoch,
          version=self.agreement.version,
          sources=found,
          replaces=replace,
        ),
      )

  def _judge(self) -> None:
    """Accepts, replaces or evicts members once all differences are known.

    Raises:
      Unmendable: If there is no majority, or a corrupt replica where XLA sums.
    """
    agreement = self.agreement
    corrupt, differences = agreement.corrupt, dict(agreement.differences)
    # The coordinator's may be known to be corrupt from a cancelled check.
    known = {*differences} - {*self._rendezvous.sound}
    agreement.count(known)
    for index, difference in sorted(differences.items()):
      if index not in known:
        self._report(index, difference, index in corrupt)
    if not corrupt:
      self._end()
      return
    description = f'workers {corrupt} at version {agreement.version}'
    if not agreement.has_majority:
      raise Unmendable(
        'Replicas differ by more than rounding, without a majority: '
        f'{description}. All return to the newest checkpoint.'
      )
    if not self._rendezvous.tolerates_loss:
      raise Unmendable(
        f'Replicas are corrupt, and XLA needs all: {description}.'
      )
    for index in corrupt:
      self._rendezvous.mark_corrupt(index)
    local = self._rendezvous.local
    others = [index for index in corrupt if index != local]
    for index in others:
      self._evict(
        index,
        'It is corrupt: its state differs by '
        f'{differences[index]:.3g} of its norm at version {agreement.version}.',
      )
    if not others:
      # The process of the coordinator stays, with a new state.
      self._is_replacing = True
      self._compare([local], replace=True)

  def _finish_replacement(self, digest: str) -> None:
    """Ends the check: the coordinator's worker has the reference state.

    Raises:
      Unmendable: If it has another state nevertheless.
    """
    if digest != self.agreement.reference_digest:
      raise Unmendable(
        'The worker of the coordinator does not have the state that it has '
        'fetched.'
      )
    self.agreement.count_replaced(self._rendezvous.local)
    self._forget(self._rendezvous.local)
    self._end()

  def _report(self, index: int, difference: float, corrupt: bool) -> None:
    """Logs and records the difference of a member's state."""
    agreement = self.agreement
    logging.log(
      logging.ERROR if corrupt else logging.INFO,
      'Worker %d %s: at version %d its state differs from that of workers %s '
      'by %.3g of its norm (rounding: up to %g).',
      index,
      'is corrupt' if corrupt else 'has drifted and is repaired',
      agreement.version,
      [*agreement.reference],
      difference,
      drift.BOUND,
    )
    self._record(
      {
        'worker': index,
        'version': agreement.version,
        'difference': difference if math.isfinite(difference) else None,
        'corrupt': corrupt,
        'reference': [*agreement.reference],
      }
    )

  def _end(self) -> None:
    on_agreed, self._on_agreed = self._on_agreed, lambda: None
    self._is_replacing = False
    for index in self._rendezvous.members:
      self._rendezvous.mark_sound(index)
    self.agreement.end()
    on_agreed()
