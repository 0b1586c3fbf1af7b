"""Election of a coordinator among the members of the last agreed epoch.

A *term* is the time of one coordinator; terms are numbered, and a file in the
folder of the run, created exclusively, gives each number to one process only
(`terms`).  When members lose their coordinator they exchange their standings,
and the best of them leads: the highest membership epoch, then the highest
version, then the lowest rank.  It gathers the others, and takes the next term
at the begin of its first membership epoch.

Why there is one line of history:

  * A coordinator begins an epoch without a new term only with more than half of
    the members of the last agreed epoch.  With fewer it takes the next term.
  * A successor begins with at least half of these members, and takes the next
    term.  So it excludes both other successors and a coordinator that has lost
    half of its members; more than half are then not with the coordinator.
  * A member that has taken part in a newer epoch supports nobody who has not.
    An iteration needs all members of its epoch, so that a successor which lacks
    none of half of them lacks no iteration.

The terms resemble those of Raft (Ongaro and Ousterhout, USENIX ATC 2014), with
a file in place of the votes: all processes of a run share its folder.

No clock, socket or file here.
"""

import enum
from collections.abc import Collection, Mapping
from typing import NamedTuple


class Position(enum.StrEnum):
  """Relation of a member to the coordinators of the run."""

  FOLLOWS = 'follows'  # It has a session with a coordinator.
  LOST = 'lost'  # It has lost its coordinator.
  GATHERS = 'gathers'  # It is elected, and has not begun its first epoch.
  LEADS = 'leads'  # The coordinator is in its process.


class Standing(NamedTuple):
  """Standing of a member in an election.

  Attributes:
    worker: Rank of the member.
    position: Relation to the coordinators of the run.
    term: Last term of which the member knows that it has begun.
    membership_epoch: Last membership epoch that it knows to have begun.
    version: Version of its learner.
    has_state: Whether it has a copy of the coordinator's state from which it
      can continue.
  """

  worker: int
  position: Position
  term: int
  membership_epoch: int
  version: int
  has_state: bool

  @property
  def merit(self) -> tuple[int, int, int]:
    """Order of candidates: the largest is elected."""
    return self.membership_epoch, self.version, -self.worker


class Decision(NamedTuple):
  """Next step of a member that has lost its coordinator.

  Attributes:
    leads: Whether it leads from now on.
    follows: Rank of the member to join as a coordinator; None for none yet.
    supporters: If it leads, the members that have lost the coordinator, too.
  """

  leads: bool = False
  follows: int | None = None
  supporters: tuple[int, ...] = ()


WAIT = Decision()


def decide(
  own: Standing,
  members: Collection[int],
  answers: Mapping[int, Standing | None],
  *,
  is_patient: bool,
) -> Decision:
  """Returns the next step of a member that has lost its coordinator.

  Args:
    own: Standing of the member.
    members: Members of its last agreed epoch, with itself.
    answers: Last answer of each other member: its standing; None if it cannot
      be reached.  Members that have not been asked yet are missing.
    is_patient: Whether to wait for members that still follow the coordinator or
      that have not been asked yet, and, with exactly half of the members, for
      the other half, which the coordinator may be in; false once a timeout has
      passed.
  """
  known = [each for each in answers.values() if each is not None]
  # A leader of the same term is the old coordinator, which is alive.
  leaders = [
    each
    for each in known
    if (each.position is Position.LEADS and each.term >= own.term)
    or (
      each.position is Position.GATHERS
      and (each.term, each.membership_epoch) >= (own.term, own.membership_epoch)
    )
  ]
  if leaders:
    leader = max(leaders, key=lambda each: (each.term, each.merit))
    return Decision(follows=leader.worker)
  if any(each.term > own.term for each in known):
    return WAIT  # A newer coordinator, which others know, admits this member.
  supporters = [own] + [
    each
    for each in known
    if each.position is Position.LOST and each.worker in members
  ]
  undecided = [
    worker
    for worker in members
    if worker != own.worker
    and (
      worker not in answers
      or ((found := answers[worker]) and found.position is Position.FOLLOWS)
    )
  ]
  if undecided and is_patient:
    return WAIT
  ranks = tuple(sorted(each.worker for each in supporters))
  if not may_succeed(members, ranks):
    return WAIT
  if is_patient and 2 * len(ranks) == len(members):
    return WAIT
  newest = max(each.membership_epoch for each in supporters)
  candidates = [each for each in supporters if each.has_state]
  best = max(candidates, key=lambda each: each.merit, default=None)
  if best is not own or newest > own.membership_epoch:
    return WAIT
  return Decision(leads=True, supporters=ranks)


def may_succeed(agreed: Collection[int], present: Collection[int]) -> bool:
  """Returns whether members may begin an epoch under a new coordinator.

  Args:
    agreed: Members of the last agreed epoch.
    present: Those that are with the new coordinator.
  """
  return 2 * len({*agreed} & {*present}) >= len({*agreed})


def needs_term(agreed: Collection[int], present: Collection[int]) -> bool:
  """Returns whether a coordinator needs a new term to begin an epoch.

  Args:
    agreed: Members of the last agreed epoch; empty before the first.
    present: Those that have been with the coordinator ever since.
  """
  return 2 * len({*agreed} & {*present}) <= len({*agreed})
