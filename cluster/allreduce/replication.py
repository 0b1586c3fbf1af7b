"""Copies of the coordinator's state, from which a member can succeed it.

Before the coordinator assigns an iteration it sends its state to some members:
scheme, stream, batching, accounts, sizes of files; what checkpoints hold but
the learner, which members have.  A member that computes iteration v therefore
has the state of version v - 1 or later, and the step statistics of what it has
applied since.  A successor restores the state and records these iterations.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cluster.membership.succession import Membership
from cluster.network.messages import Assignment, CoordinatorState
from outputs import serialization
from system import clock, threads

STANDBYS = 3  # Members that get the state, at most.
_KEPT = 4  # Versions; a successor needs those of the last 3.


def encode(
  state: Mapping[str, Any],
  *,
  has_measures: bool,
  term: int,
  membership_epoch: int,
  version: int,
) -> CoordinatorState:
  """Returns the message with a state of the coordinator.

  Args:
    state: Plain data and arrays.
    has_measures: Whether the state of the recorder has its measures.
    term: Term of the coordinator.
    membership_epoch: Number of the membership epoch.
    version: Number of recorded updates.
  """
  tree = serialization.freeze(state)()
  return CoordinatorState(
    term,
    membership_epoch,
    version,
    has_measures,
    [
      (name, str(array.dtype), array.shape, array.tobytes())
      for name, array in tree.items()
    ],
  )


def decode(message: CoordinatorState) -> dict[str, Any]:
  """Returns the state in a message from `encode`.

  Raises:
    ValueError: If it has another format, or is no state.
  """
  state: dict[str, Any] = serialization.thaw(
    {
      name: np.frombuffer(data, serialization.number_type(dtype)).reshape(shape)
      for name, dtype, shape, data in message.arrays
    }
  )
  return state


@dataclasses.dataclass
class Iteration:
  """An iteration that a member has been assigned.

  Attributes:
    assignment: Its assignment.
    statistics: Its step statistics, summed over the members; None before the
      member has applied it.
  """

  assignment: Assignment
  statistics: Sequence[float] | None = None


class Inheritance(NamedTuple):
  """State from which a successor continues.

  Attributes:
    membership: Last membership epoch.
    supporters: Members that have elected the successor, with itself.
    version: Number of updates that `state` has recorded.
    state: State of the coordinator before.
    age_s: Seconds since the coordinator's last state was received.
    iterations: Iterations since, by version.
  """

  membership: Membership
  supporters: Sequence[int]
  version: int
  state: Mapping[str, Any]
  age_s: float
  iterations: Mapping[int, Iteration]


class Standby:
  """State that a member retains in order to succeed the coordinator.

  Methods may be called from any thread.

  Attributes:
    membership: Last membership epoch that is known to have begun.
  """

  def __init__(self) -> None:
    """Creates a standby that knows nothing yet."""
    self.membership = Membership()
    self._formed: dict[int, Mapping[int, str]] = {}  # Addresses, by epoch.
    self._states: list[CoordinatorState] = []
    self._received = 0.0  # When the last state came, monotonic seconds.
    self._with_measures: CoordinatorState | None = None  # The last such state.
    self._iterations: dict[int, Iteration] = {}
    self._lock = threads.Lock()

  def note_formed(
    self, membership_epoch: int, addresses: Mapping[int, str]
  ) -> None:
    """Records the members of an epoch, which may not begin."""
    with self._lock:
      self._formed = {membership_epoch: addresses}

  def take_state(self, state: CoordinatorState) -> None:
    """Records a state of the coordinator: its epoch has begun."""
    with self._lock:
      self._begin(state.term, state.membership_epoch)
      self._states = [*self._states, state][-_KEPT:]
      self._received = clock.monotonic()
      if state.has_measures:
        self._with_measures = state

  def take_assignment(self, assignment: Assignment) -> None:
    """Records an assignment, before it is computed: its epoch has begun."""
    with self._lock:
      self._begin(assignment.term, assignment.membership_epoch)
      version = assignment.version
      self._iterations[version] = Iteration(assignment)
      for old in [k for k in self._iterations if k <= version - _KEPT]:
        del self._iterations[old]

  def take_statistics(self, version: int, statistics: Sequence[float]) -> None:
    """Records that an iteration was applied."""
    with self._lock:
      self._iterations[version].statistics = statistics

  def forget(self) -> None:
    """Forgets all iterations and states: the learner got another state."""
    with self._lock:
      self._states, self._iterations = [], {}
      self._with_measures = None

  def can_succeed(self, version: int) -> bool:
    """Returns whether a coordinator can continue from here.

    Args:
      version: Version of the learner.
    """
    with self._lock:
      return self._find_state(version) is not None

  def inherit(self, version: int, supporters: Sequence[int]) -> Inheritance:
    """Returns what a successor continues from.

    Args:
      version: Version of the learner.
      supporters: Members that have elected this one, with itself.

    Raises:
      LookupError: If there is no state to continue from.
    """
    with self._lock:
      state = self._find_state(version)
      if state is None:
        raise LookupError(f'Expected a state of the coordinator at {version}.')
      content = decode(state)
      if self._with_measures and not state.has_measures:
        earlier = decode(self._with_measures)['recorder']
        content['recorder']['measures'] = earlier['measures']
      return Inheritance(
        self.membership,
        supporters,
        state.version,
        content,
        clock.monotonic() - self._received,
        dict(self._iterations),
      )

  def _begin(self, term: int, membership_epoch: int) -> None:
    """Records that an epoch has begun, of which this member is one."""
    known = self.membership
    if (term, membership_epoch) != (known.term, known.number):
      addresses = self._formed.get(membership_epoch, {})
      self.membership = Membership(term, membership_epoch, addresses)

  def _find_state(self, version: int) -> CoordinatorState | None:
    """Returns the newest state up to a version, if all since is known."""
    states = [
      each
      for each in self._states
      if each.version <= version and each.term == self.membership.term
    ]
    if not states or self._with_measures is None:
      return None
    newest = states[-1]
    known = (
      each is not None and each.statistics is not None
      for each in map(self._iterations.get, range(newest.version, version))
    )
    return newest if all(known) else None
