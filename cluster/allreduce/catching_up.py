"""Workers that catch up with a running allreduce run before they join it.

A large state takes long over a slow link, and the members of an epoch wait for
one that fetches it.  A worker that joins a running run therefore fetches its
state as no member yet, while the others train:

  1. Before the coordinator assigns an iteration, some members are ordered to
     retain the state before it, and the sums of all updates from there on
     (`RetainState`).
  2. The worker fetches that state (`CatchUp`), and then, round by round, the
     sums of the updates since, up to the last recorded one; it applies them.
  3. Once it has no update left, or a round takes almost no time, it is a
     newcomer like any other: after the next iteration an epoch begins with it.
     It is ordered to fetch the last updates as they come, so that the others
     wait for the sum of one iteration, rarely of more.
  4. Members drop what no worker needs any longer (`ReleaseState`).

A worker that cannot get closer, or that fails to fetch a state several times,
joins nevertheless; the others may then wait for its whole state.

An update that the coordinator has recorded is final while it lives: no worker
can be ahead of the members.  With another coordinator, sessions end, members
drop what they retain, and the worker asks again.

No messages, threads or clocks of its own: see `epochs`, which alone changes it.
"""

import dataclasses
from collections.abc import Callable, Collection

from absl import logging

from cluster.allreduce.rendezvous import Rendezvous
from cluster.network.messages import (
  CatchUp,
  CaughtUp,
  ReleaseState,
  RetainState,
  ToReplica,
)

ATTEMPTS = 3  # Times that a worker begins with a state.
ROUNDS = 4  # Rounds in a row after which a worker is no closer than before.
# Longest rest that members wait for, in updates; a state is fetched otherwise.
MOST_UPDATES = 4
_SHORT_S = 0.2  # A round that takes less is as good as none.


@dataclasses.dataclass
class _Joiner:
  """A worker that catches up.

  Attributes:
    began: When it began, monotonic seconds.
    version: Version of its state; None before it has one of this run.
    order: The order that it executes; None for none.
    ordered: When it was ordered, monotonic seconds.
    fetched: Versions of the states that it was ordered to fetch.
    fewest: Fewest updates that it was behind after a round; None before.
    idle_rounds: Rounds since, in which it has got no closer.
    is_close: Whether it may join the members.
  """

  began: float
  version: int | None = None
  order: CatchUp | None = None
  ordered: float = 0.0
  fetched: list[int] = dataclasses.field(default_factory=list)
  fewest: int | None = None
  idle_rounds: int = 0
  is_close: bool = False


class CatchingUp:
  """Orders to the workers that catch up, and to the members that help them."""

  def __init__(
    self,
    rendezvous: Rendezvous,
    *,
    send: Callable[[int, ToReplica], None],
    now: Callable[[], float],
    limit_s: float,
  ):
    """Creates the state before any worker joins.

    Args:
      rendezvous: The members, and ways to reach them.
      send: Sends a message to a worker.
      now: Returns monotonic seconds.
      limit_s: Seconds without progress after which a worker is overdue.
    """
    self._rendezvous, self._send = rendezvous, send
    self._now, self._limit_s = now, limit_s
    self._joiners: dict[int, _Joiner] = {}
    # Version from which each member retains updates.
    self._recorded: dict[int, int] = {}
    # Version of the newest retained state, and the members that have it.
    self._state: tuple[int, tuple[int, ...]] | None = None
    self._released = 0  # Versions before are released.

  def add(self, index: int) -> None:
    """Adds a worker that is ready, which is not to hold the others up."""
    self._joiners[index] = _Joiner(self._now())

  def remove(self, index: int) -> None:
    """Removes a worker that is lost or has left: joining, or a member."""
    self._recorded.pop(index, None)
    if self._state:
      version, holders = self._state
      self._state = version, tuple(k for k in holders if k != index)
    if self._joiners.pop(index, None):
      self._release()

  def delays(self, index: int) -> bool:
    """Returns whether a worker is not to join the members yet."""
    joiner = self._joiners.get(index)
    return joiner is not None and not joiner.is_close

  def retain(self, version: int) -> None:
    """Orders members to retain a state, if a worker has to fetch one.

    Args:
      version: Version that no member can have passed.
    """
    needing = [
      index
      for index, joiner in self._joiners.items()
      if joiner.version is None and not joiner.order and not joiner.is_close
    ]
    if not needing or self._state:
      return
    sources = [
      k
      for k, _ in self._rendezvous.find_sources(
        needing[0], self._find_present(self._rendezvous.sound)
      )
    ]
    if not sources:  # No member can be reached.
      self._give_up(needing[0], 'no member can be reached')
      return
    self._state = version, tuple(sources)
    for source in sources:
      self._recorded.setdefault(source, version)
      self._send(source, RetainState(version))

  def advance(self, recorded: int) -> None:
    """Orders workers to fetch what they can.

    Args:
      recorded: Version up to which all updates are recorded, and final.
    """
    for index, joiner in self._joiners.items():
      if joiner.order is not None:
        continue
      if joiner.version is not None:
        if joiner.version < recorded:
          self._order_updates(index, joiner, recorded)
      elif self._state and self._state[0] <= recorded and not joiner.is_close:
        self._order_state(index, joiner, *self._state)

  def take_report(self, index: int, message: CaughtUp, recorded: int) -> None:
    """Handles the answer of a worker to an order.

    Args:
      index: The worker.
      message: Its answer.
      recorded: As of `advance`.
    """
    joiner = self._joiners.get(index)
    order = joiner.order if joiner else None
    if joiner is None or order is None or message.version != order.version:
      return  # Of an earlier order than the last one.
    took_s, joiner.order = self._now() - joiner.ordered, None
    if message.problem:
      self._begin_again(index, message.problem, order)
    else:
      joiner.version = message.version
      self._judge(index, joiner, order, recorded - message.version, took_s)
    self._release()
    self.advance(recorded)

  def complete(self, members: Collection[int], version: int) -> None:
    """Orders those that are members now to fetch the last updates.

    Args:
      members: Members of an epoch, which are ordered to connect afterwards.
      version: Version that they need.
    """
    for index, joiner in self._joiners.items():
      if index not in members:
        continue
      expected = joiner.order.version if joiner.order else joiner.version
      if expected is None or version - expected > MOST_UPDATES:
        logging.warning(
          'Worker %d has not caught up: the others wait until it has fetched '
          'the state of version %d.',
          *(index, version),
        )
        joiner.version = joiner.order = None
      elif expected < version:
        self._order_updates(index, joiner, version, since=expected)

  def settle(self, members: Collection[int]) -> None:
    """Forgets the workers that are members, as their epoch has begun."""
    for index in [k for k in self._joiners if k in members]:
      logging.info(
        'Worker %d takes part, %.1f s after it was ready.',
        *(index, self._now() - self._joiners[index].began),
      )
      self.remove(index)

  def find_overdue(self, moved_at: Callable[[int], float]) -> list[int]:
    """Returns the workers that make no progress at an order.

    Args:
      moved_at: Returns when a worker last made progress, monotonic seconds.
    """
    now = self._now()
    return [
      index
      for index, joiner in self._joiners.items()
      if joiner.order
      and now - max(joiner.ordered, moved_at(index)) > self._limit_s
    ]

  def _find_present(self, members: Collection[int]) -> list[int]:
    living = {*self._rendezvous.living}
    return [k for k in members if k in living and k not in self._joiners]

  def _order_state(
    self, index: int, joiner: _Joiner, version: int, holders: Collection[int]
  ) -> None:
    """Orders a worker to fetch a state that members retain."""
    present = self._find_present(holders)
    sources = self._rendezvous.find_sources(index, present)
    if not sources:
      self._state = None  # Others are asked before the next iteration.
      return
    joiner.fetched.append(version)
    logging.info(
      'Worker %d fetches version %d from workers %s while they continue.',
      *(index, version, ', '.join(str(k) for k, _ in sources)),
    )
    self._order(index, joiner, CatchUp(version, None, sources))

  def _order_updates(
    self,
    index: int,
    joiner: _Joiner,
    version: int,
    since: int | None = None,
  ) -> None:
    """Orders a worker to fetch updates that members retain."""
    since = joiner.version if since is None else since
    if since is None:
      raise RuntimeError('Expected a worker with a state, got none.')
    holders = [k for k, first in self._recorded.items() if first <= since]
    sources = self._rendezvous.find_sources(index, self._find_present(holders))
    if sources:
      self._order(index, joiner, CatchUp(version, since, sources))
    elif not joiner.is_close:
      self._restart(index, joiner, 'no member is left that retains its updates')

  def _order(self, index: int, joiner: _Joiner, order: CatchUp) -> None:
    joiner.order, joiner.ordered = order, self._now()
    self._send(index, order)

  def _judge(
    self,
    index: int,
    joiner: _Joiner,
    order: CatchUp,
    behind: int,
    took_s: float,
  ) -> None:
    """Decides whether a worker that has completed an order may join."""
    if joiner.is_close:
      return
    is_first = order.since is None
    is_idle = not (is_first or joiner.fewest is None or behind < joiner.fewest)
    joiner.idle_rounds = joiner.idle_rounds + 1 if is_idle else 0
    is_last = joiner.idle_rounds == ROUNDS
    if (
      not behind
      or (took_s < _SHORT_S and not is_first)
      or (is_last and behind <= MOST_UPDATES)
    ):
      joiner.is_close = True
      logging.info(
        'Worker %d has caught up at version %d, %d updates behind, after '
        '%.1f s.',
        *(index, order.version, behind, self._now() - joiner.began),
      )
    elif is_last:
      self._give_up(index, f'it remains {behind} updates behind')
    elif not is_idle:
      joiner.fewest = behind

  def _begin_again(self, index: int, problem: str, order: CatchUp) -> None:
    """Makes a worker begin with a newer state, as an order has failed."""
    joiner = self._joiners[index]
    if self._state and order.since is None and self._state[0] == order.version:
      self._state = None
    if joiner.is_close:
      joiner.version = None  # It fetches the state as a member.
    else:
      self._restart(index, joiner, problem)

  def _restart(self, index: int, joiner: _Joiner, problem: str) -> None:
    joiner.version = joiner.fewest = None
    if self._state and self._state[0] in joiner.fetched:
      self._state = None  # Updates since have been dropped.
    if len(joiner.fetched) >= ATTEMPTS:
      self._give_up(index, problem)
    else:
      logging.warning(
        'Worker %d has to fetch a newer state: %s', index, problem
      )

  def _give_up(self, index: int, problem: str) -> None:
    """Lets a worker join that has not caught up."""
    self._joiners[index].is_close = True
    logging.warning(
      'Worker %d cannot catch up while the others continue: %s. It joins '
      'nevertheless, and they may wait for its state.',
      *(index, problem),
    )

  def _release(self) -> None:
    """Orders members to drop what no worker needs any longer."""
    if not self._joiners:
      for source in self._recorded:
        self._send(source, ReleaseState(None))
      self._recorded, self._state, self._released = {}, None, 0
      return
    needed = [
      need
      for joiner in self._joiners.values()
      if (need := self._find_needed(joiner)) is not None
    ]
    before = min(needed, default=None)
    if before is None or before <= self._released:
      return
    self._released = before
    if self._state and self._state[0] < before:
      self._state = None
    for source, first in [*self._recorded.items()]:
      self._recorded[source] = max(first, before)
      self._send(source, ReleaseState(before))

  def _find_needed(self, joiner: _Joiner) -> int | None:
    """Returns the first version that a worker needs; None for none yet."""
    if joiner.version is not None:
      return joiner.version
    if joiner.order is not None:
      return joiner.order.version
    return self._state[0] if self._state else None
