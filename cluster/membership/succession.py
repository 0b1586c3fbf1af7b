"""Succession: members of a run replace a coordinator that is lost.

Each process answers requests for its standing at its port, for as long as it
lives.  A member that has lost its coordinator asks all others, and `election`
decides from the answers whether it leads, joins another coordinator, or waits.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec
from absl import logging

from cluster.membership import election
from cluster.membership.election import Position, Standing
from cluster.membership.joining import drop
from cluster.membership.process import Settings
from cluster.membership.terms import Place, Terms
from cluster.network.frame_reader import Receiving
from cluster.network.heartbeat import within
from cluster.network.loop_streams import LoopListener, LoopStream
from cluster.network.messages import (
  STANDING,
  STANDING_REQUEST,
  MemberStanding,
  StandingRequest,
)
from cluster.network.streams import (
  ELECTION,
  Closed,
  Corrupt,
  Security,
  TransportError,
  connect,
)
from cluster.process.exits import Unmendable
from system import clock, threads

_POLL_S = 0.05
_FILE_S = 0.5  # Between two looks into the run's folder.
LIMIT = 5  # Timeouts after which a member without a coordinator gives up.


class Membership(NamedTuple):
  """A membership that has begun.

  Attributes:
    term: Term of its coordinator; 0 for none yet.
    number: Number of the membership; -1 for none yet.
    addresses: Address of each member, by rank.
  """

  term: int = 0
  number: int = -1
  addresses: Mapping[int, str] = {}


class Standby(Protocol):
  """State that a process retains in order to succeed the coordinator.

  Attributes:
    membership: Last membership that is known to have begun.
  """

  membership: Membership

  def can_succeed(self, version: int) -> bool:
    """Returns whether a coordinator can continue at a version from here."""

  def inherit(self, version: int, supporters: Sequence[int]) -> Any:
    """Returns the state that a successor continues from.

    Args:
      version: Version of this process.
      supporters: Members that have elected it, with itself.
    """


S = TypeVar('S', bound=Standby)


class Succession(Generic[S]):
  """A process's part in the elections of a run.

  Attributes:
    terms: Terms of the run.
    standby: State that this process retains to succeed the coordinator.
    inheritance: State that this process continues from, once it is elected.
  """

  def __init__(
    self,
    index: int,
    *,
    settings: Settings,
    terms: Terms,
    standby: S,
    version: Callable[[], int],
  ):
    """Creates the part; it answers nobody yet.

    Args:
      index: Rank of this process among the members: that of its worker.
      settings: Settings of this process.
      terms: Terms of the run.
      standby: State that this process retains to succeed the coordinator.
      version: Returns the version that this process has.
    """
    self.terms = terms
    self.inheritance: Any = None
    self._index, self._settings = index, settings
    self.standby, self._version = standby, version
    self._latest = ''  # Address of the last coordinator that was found.
    self._position = Position.FOLLOWS
    self._listener: LoopListener | None = None
    self._run = ''  # Identity of the run, while this process listens.

  def listen(self) -> str:
    """Answers requests from now on; returns the address of the port.

    Raises:
      TransportError: If the port cannot be listened on.
      OSError: If the identity of the run cannot be read.
    """
    if self._listener is None:
      self._run = self.terms.identify()
      self._listener = LoopListener(
        self._settings.port, self._answer, service=ELECTION
      )
    return self._listener.address

  def close(self) -> None:
    """Stops answering requests, as the run of this process has ended."""
    listener, self._listener = self._listener, None
    self._position = Position.FOLLOWS
    if listener:
      listener.close(0.0)

  def follow(self) -> None:
    """Records that this process has a session with a coordinator."""
    if self._position is Position.LOST:
      self._position = Position.FOLLOWS

  def lose(self) -> None:
    """Records that the session has ended; an iteration may not have ended."""
    if self._position is Position.FOLLOWS:
      self._position = Position.LOST

  def lead(self, term: int, number: int, addresses: Mapping[int, str]) -> None:
    """Records that the coordinator in this process has begun an epoch.

    Args:
      term: Term of the coordinator.
      number: Number of the membership epoch.
      addresses: Address of each member, by rank.

    Raises:
      OSError: If the coordinator cannot be published in the run's folder.
    """
    self._position = Position.LEADS
    self.standby.membership = Membership(term, number, addresses)
    self.terms.publish(Place(term, self._index, self.listen(), addresses))

  @property
  def is_member(self) -> bool:
    """True if this process is a member of an epoch that has begun."""
    return self._index in self.membership.addresses

  @property
  def membership(self) -> Membership:
    """Last membership that is known to have begun."""
    return self.standby.membership

  def locate(self, given: str) -> str:
    """Returns the address of the run's coordinator, and remembers it.

    Args:
      given: Address that this process was started with, which is that of the
        first coordinator.
    """
    known = self._latest or given
    try:
      place = self.terms.find()
    except OSError as error:  # The folder may be unreachable for a while.
      logging.warning('The coordinator is not known: %s', error)
      return known
    if place is None:  # The first one starts, or starts from a checkpoint.
      self._latest = ''
      return given
    if place.term <= self.membership.term:
      return known
    run, security = self.terms.identify(), self._settings.security
    found = ask(place.address, run, security, self._ask_s)
    if found and found.position == 'leads':
      self._latest = place.address
    elif not self.is_member:
      # One that gathers the others has not been published yet.
      leaders = _find_leaders(place, run, security, self._ask_s)
      self._latest = leaders[0] if leaders else known
    return self._latest or known

  def find_coordinator(self) -> str | None:
    """Returns the address of a coordinator after the last one was lost.

    Returns:
      The address; None if this process is to be the coordinator, with
      `inheritance`.

    Raises:
      TransportError: If there is none in time.
    """
    self.lose()
    membership, start = self.membership, clock.monotonic()
    logging.info('Worker %d looks for a coordinator.', self._index)
    with _Poll(
      self._index, membership, self._run, self._settings.security, self._ask_s
    ) as poll:
      look_at = 0.0
      while (now := clock.monotonic()) < start + LIMIT * self._timeout_s:
        answers = poll.answers()
        decision = election.decide(
          self._standing,
          tuple(membership.addresses),
          {
            k: None if found is None else _read(found)
            for k, found in answers.items()
          },
          is_patient=now < start + self._timeout_s,
        )
        if decision.leads:
          self._succeed(decision.supporters)
          self._latest = self._settings.port.address
          return None
        if decision.follows is not None:
          found = answers[decision.follows]
          if found is not None and found.address is not None:
            self._latest = found.address
            return found.address
        if now >= look_at:
          look_at = now + _FILE_S
          place = self._find_place()
          if place and place.term > membership.term:
            self._latest = place.address
            return place.address
        clock.sleep(_POLL_S)
    raise Closed(
      f'No coordinator within {LIMIT * self._timeout_s:g} s: too few members '
      'of the last membership epoch are left, or none has the state.'
    )

  def _succeed(self, supporters: tuple[int, ...]) -> None:
    """Becomes the candidate that gathers the others."""
    self._position = Position.GATHERS
    version = self._version()
    self.inheritance = self.standby.inherit(version, supporters)
    logging.info(
      'Worker %d is elected by workers %s to coordinate the run, from version '
      '%d.',
      *(self._index, [*supporters], version),
    )

  @property
  def _timeout_s(self) -> float:
    return self._settings.timeout_s

  @property
  def _ask_s(self) -> float:
    """Limit of one request, seconds."""
    return self._timeout_s / 2

  @property
  def _standing(self) -> Standing:
    version, membership = self._version(), self.membership
    return Standing(
      self._index,
      self._position,
      membership.term,
      membership.number + 1,
      version,
      self.standby.can_succeed(version),
    )

  def _find_place(self) -> Place | None:
    """Returns the published coordinator; None if it cannot be read."""
    try:
      return self.terms.find()
    except OSError as error:  # The folder may be unreachable for a while.
      logging.warning('The coordinator is not known: %s', error)
      return None

  def _answer(self, stream: LoopStream, hello: msgspec.Raw) -> Receiving[None]:
    """Answers a request."""
    try:
      request = STANDING_REQUEST.decode(hello)
    except ValueError as error:
      raise Corrupt(f'sent another hello: {error}') from error
    if request.run != self._run:
      raise Corrupt('asks a process of another run')
    own = self._standing
    leads = own.position in (Position.LEADS, Position.GATHERS)
    stream.send(
      MemberStanding(
        worker=own.worker,
        position=own.position.value,
        term=own.term,
        membership_epoch=own.membership_epoch,
        version=own.version,
        has_state=own.has_state,
        address=self._settings.port.address if leads else None,
      )
    )
    yield from ()


class _Poll:
  """Requests to all other members, again and again, in threads."""

  def __init__(
    self,
    index: int,
    membership: Membership,
    run: str,
    security: Security,
    limit_s: float,
  ):
    self._run_identity, self._security = run, security
    self._limit_s = limit_s
    self._others = {
      rank: address
      for rank, address in membership.addresses.items()
      if rank != index
    }
    self._answers: dict[int, MemberStanding | None] = {}
    self._over = threads.Event()

  def __enter__(self) -> '_Poll':
    for rank in self._others:
      threads.Thread(target=self._run, args=[rank], daemon=True).start()
    return self

  def __exit__(self, *exception: object) -> None:
    self._over.set()

  def answers(self) -> dict[int, MemberStanding | None]:
    """Returns the last answer of each member that was asked."""
    return dict(self._answers)

  def _run(self, rank: int) -> None:
    while not self._over.is_set():
      answer = ask(
        self._others[rank], self._run_identity, self._security, self._limit_s
      )
      # Another process may have the address of the member by now.
      is_of_member = answer is not None and answer.worker == rank
      self._answers[rank] = answer if is_of_member else None
      self._over.wait(_POLL_S)


def _find_leaders(
  place: Place, run: str, security: Security, limit_s: float
) -> list[str]:
  """Returns addresses of members that lead or gather, the newest term first."""
  with threads.ThreadPoolExecutor(len(place.members) or 1) as pool:
    asked = pool.map(
      lambda address: ask(address, run, security, limit_s),
      place.members.values(),
    )
    leaders = [
      (each.term, each.address)
      for each in asked
      if each and each.address and each.position in ('leads', 'gathers')
    ]
  return [address for _, address in sorted(leaders, reverse=True)]


def limit_join(settings: Settings, *, follows: bool) -> Settings:
  """Returns settings with a shorter limit for joining the coordinator.

  The process that coordinates a run at its start joins another coordinator if
  one has taken over.  If that one is lost, the process has to give up, so that
  it starts again and coordinates the run from a checkpoint.

  Args:
    settings: Settings of the process.
    follows: Whether this is such a process; else the settings are unchanged.
  """
  if not follows:
    return settings
  limit_s = min(settings.start_s, LIMIT * settings.timeout_s)
  return settings._replace(start_s=limit_s)


def find_running(
  terms: Terms, security: Security, *, timeout_s: float, limit_s: float
) -> str | None:
  """Returns the address of the coordinator of a run that members continue.

  Waits while members of the last epoch elect one.

  Args:
    terms: Terms of the run.
    security: Credentials of the streams.
    timeout_s: Silence after which a process counts as lost, seconds.
    limit_s: Limit of the wait, seconds.

  Returns:
    The address; None if no member can be reached.

  Raises:
    Unmendable: If members are there, and have elected none in time.
  """
  deadline = clock.monotonic() + limit_s
  run = terms.identify()
  while place := terms.find():
    with threads.ThreadPoolExecutor(len(place.members) or 1) as pool:
      asked = pool.map(
        lambda address: ask(address, run, security, timeout_s / 2),
        place.members.values(),
      )
      found = [each for each in asked if each]
    leaders = [each for each in found if each.position == 'leads']
    if leaders:
      return max(leaders, key=lambda each: each.term).address
    if not found and terms.find() == place:
      return None
    if clock.monotonic() >= deadline:
      raise Unmendable(
        f'Workers {sorted(each.worker for each in found)} have elected no '
        f'coordinator within {limit_s:g} s.'
      )
    clock.sleep(_POLL_S)
  return None


def ask(
  address: str, run: str, security: Security, limit_s: float
) -> MemberStanding | None:
  """Returns the standing of a process of the run.

  Args:
    address: 'address:port' of the process.
    run: Identity of the run.
    security: Credentials of the stream.
    limit_s: Limit of the request, seconds.

  Returns:
    The standing; None if the process cannot be reached, or is of another run.
  """
  stream = None
  with contextlib.suppress(TransportError):
    try:
      stream = connect(
        address,
        StandingRequest(run),
        security,
        limit_s,
        service=ELECTION,
        waits=lambda: False,
      )
      with within(stream, limit_s):
        standing: MemberStanding = stream.receive(STANDING).header
        return standing
    finally:
      if stream is not None:
        drop(stream)
  return None


def _read(message: MemberStanding) -> Standing:
  """Returns the standing in a message."""
  return Standing(
    message.worker,
    Position(message.position),
    message.term,
    message.membership_epoch,
    message.version,
    message.has_state,
  )
