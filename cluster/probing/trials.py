"""Tests of links: which there are, ordering them, and obeying.

Two plans: the one of tools.probe, and a quick one for the start of a run, which
measures pairs in rounds whatever their number, and leaves out what goes both
ways at once.
"""

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from cluster.network.messages import (
  HostDescription,
  MeetPeers,
  OpenTransfers,
  Probe,
  Rates,
  TransferFor,
)
from cluster.probing import transfers
from topology.clusters import measured, shared
from topology.clusters.measured import Ends

_LEAST = 4  # Hosts that can be two groups.
_TRIES = 3  # Of the control, since a busy machine is slow for a while.
_ALONE = 8  # Hosts up to which each pair is measured alone.
# Times the seconds of others: where links have deep queues, TCP takes long to
# find its rate beside what goes the other way.
_LONGER = dict.fromkeys(('both', 'all', 'group', 'near'), 3)
# Slow start takes round trips: a transfer is counted for so many one-way times.
_ONE_WAYS, _LONGEST_S = 16, 1.0
QUICK_S, QUICK_LATE_S = 0.08, 0.04  # Counted, and of being late.


class Test(NamedTuple):
  """Transfers that go on at the same time.

  Attributes:
    kind: 'pairs', 'up', 'down', 'both', 'all', 'group' or 'near'.
    pairs: Sender and receiver of each.
  """

  kind: str
  pairs: tuple[Ends, ...]


class Found(NamedTuple):
  """What was measured.

  Attributes:
    hosts: Of each, its `hostname` and `address`.
    tests: Each with bytes per second by sender and receiver.
    latency_s: Half a round trip, by who has sent first and the other.
    groups: Hosts behind links that they share.
  """

  hosts: list[Mapping[str, Any]]
  tests: list[tuple[Test, measured.Test]]
  latency_s: Mapping[Ends, float]
  groups: list[tuple[int, ...]]


class Asking(Protocol):
  """Who orders, and gets answers."""

  def ask(
    self, orders: Sequence[Probe], *, limit_s: float
  ) -> list[HostDescription | Rates]:
    """Returns what all answer to their orders.

    Args:
      orders: One for each.
      limit_s: Seconds that they take at most, if nobody is silent.

    Raises:
      Failure: If one cannot carry it out, or does not answer in time.
    """


def quick(hosts: int) -> list[Test]:
  """Returns the tests of so many hosts, in order: 4 H - 2 at most.

  Args:
    hosts: How many, at least 2.
  """
  rounds = _both_ways(_tournament(hosts))
  pairs = [Test('pairs', each) for each in rounds]
  # Two hosts have shown with that what they can send and receive.
  return pairs if hosts == 2 else [*pairs, *_hubs(hosts)]


def plan(hosts: int) -> list[Test]:
  """Returns the tests of so many hosts, in order.

  Pairs that have no host in common come from the rounds of a tournament (the
  circle method): each two hosts meet once.

  Args:
    hosts: How many, at least 2.
  """
  rounds = list(_tournament(hosts))
  if hosts <= _ALONE:
    pairs = [((i, j),) for i in range(hosts) for j in range(hosts) if i != j]
  else:
    pairs = [*_both_ways(rounds)]
  return [
    *(Test('pairs', each) for each in pairs),
    *_hubs(hosts),
    *(Test('both', (*each, *((j, i) for i, j in each))) for each in rounds),
  ]


def explore(
  run: Callable[[Test], measured.Test],
  hosts: int,
  *,
  tolerance: float,
  tests: Sequence[Test] | None = None,
) -> tuple[list[tuple[Test, measured.Test]], list[tuple[int, ...]]]:
  """Returns tests with what they have shown, and groups of hosts.

  The groups are those behind links that they share.  They are looked for, with
  2 + 2 S more tests, 4 + 2 S at most, for S suspects, H - 2 of them at most, if
  there are 4 hosts or more, and `both` has fallen short of what pairs can do by
  twice the tolerance, or pairs that were not measured alone are slower than
  both of their ends, and slower still, all together by twice the tolerance,
  while all hosts send to all.

  Args:
    run: Carries a test out.
    hosts: How many, at least 2.
    tolerance: Relative error of rates.
    tests: What to begin with; those of `plan` by default.

  Raises:
    ValueError: If a pair has carried nothing.
  """
  found = [(test, run(test)) for test in tests or plan(hosts)]
  seen = [shown for _, shown in found]
  rates = measured.fit(seen, hosts=hosts, tolerance=tolerance)
  short = any(
    measured.shortfalls(shown, rates, tolerance=2 * tolerance)
    for test, shown in found
    if test.kind == 'both'
  )
  alone = all(len(t.pairs) == 1 for t, _ in found if t.kind == 'pairs')
  together = not alone and bool(rates.pairs_GBps)
  if hosts < _LEAST or not (short or together):
    return found, []

  def more(kind: str, pairs: Iterable[Ends]) -> measured.Test:
    test = Test(kind, tuple(pairs))
    found.append((test, run(test)))
    return found[-1][1]

  every = more('all', itertools.permutations(range(hosts), 2))
  if not short and _independent(every, rates, tolerance=tolerance):
    return found, []
  suspects = shared.suspects(every, rates, tolerance=tolerance)
  for group in suspects:
    for pairs in shared.loads(group, rates):
      more('group', pairs)
  sizes = {'hosts': hosts, 'tolerance': tolerance}
  groups = shared.confirmed(suspects, [each for _, each in found], **sizes)
  for _ in range(_TRIES if groups else 0):
    control = more('near', shared.nearest(every, rates))
    seen = [each for _, each in found]
    if shared.explained(control, groups, seen, **sizes):
      return found, groups
  return found, []


def measure(
  asking: Asking,
  met: list[Mapping[str, Any]],
  *,
  seconds: float,
  tolerance: float,
  streams: int = 1,
  tests: Sequence[Test] | None = None,
  late_s: float = transfers.LATE_S,
  tries: int = 1,
  tell: Callable[[str], None] = lambda text: None,
) -> Found:
  """Has all processes measure, and returns what they have found.

  Args:
    asking: Gives them orders, which they carry out as `carry_out` does.
    met: What each has said of itself: `name`, `address` and `port`.
    seconds: For which each transfer is counted; 3 times as long where many go
      on at once, and longer where the latency is long.
    tolerance: Relative error of rates.
    streams: Connections of each transfer.
    tests: What to begin with; those of `plan` by default.
    late_s: How much later than others a process may hear an order.
    tries: Of each test, if it fails.
    tell: Called with how far it has come.

  Raises:
    Failure: If a process fails or is lost, or a pair has carried nothing; says
      which.
  """
  hosts = len(met)
  key = secrets.token_hex(16)
  peers = [(each['name'], each['address'], each['port']) for each in met]
  asking.ask([MeetPeers(peers, own, key) for own in range(hosts)], limit_s=0.0)
  tests = tests or plan(hosts)
  whole_s = sum(
    transfers.duration_s(_counted_s(test, seconds), late_s) for test in tests
  )
  tell(f'{len(tests)} tests, about {whole_s:.0f} s')
  numbers = itertools.count()
  latency_s: dict[Ends, float] = {}

  def attempt(test: Test) -> measured.Test:
    number = next(numbers)
    orders = [
      OpenTransfers(
        number=number,
        receivers=[j for i, j in test.pairs if i == rank],
        senders=[i for i, j in test.pairs if j == rank],
        streams=streams,
        pings=test.kind == 'pairs',
      )
      for rank in range(hosts)
    ]
    answers = asking.ask(orders, limit_s=transfers.PINGS_S * streams)
    pings = {
      (i, j): s for i, each in enumerate(answers) for j, s in _rates(each)
    }
    latency_s.update(pings)
    far_s = max(latency_s.get(pair, 0.0) for pair in test.pairs)
    test_s = max(_counted_s(test, seconds), min(_ONE_WAYS * far_s, _LONGEST_S))
    order = TransferFor(test_s, late_s)
    limit_s = transfers.duration_s(test_s, late_s)
    answers = asking.ask([order] * hosts, limit_s=limit_s)
    return {
      (i, j): Bps for j, each in enumerate(answers) for i, Bps in _rates(each)
    }

  def run(test: Test) -> measured.Test:
    if test.kind == 'all':
      tell('Hosts may share links: some tests more')
    for _ in range(tries - 1):
      try:
        return attempt(test)
      except transfers.Failure as error:
        tell(f'Once more: {error}')
    return attempt(test)

  try:
    found, groups = explore(run, hosts, tolerance=tolerance, tests=tests)
  except ValueError as error:
    raise transfers.Failure(str(error)) from error
  return Found(met, found, latency_s, groups)


def _rates(answer: HostDescription | Rates) -> Rates:
  if isinstance(answer, HostDescription):
    raise transfers.Failure('a process has answered another order')
  return answer


def carry_out(order: Probe, endpoint: transfers.Endpoint) -> Rates:
  """Does what is ordered, and returns the answer.

  Args:
    order: Of `measure`.
    endpoint: Of this process.

  Raises:
    Broken: If a transfer does not go as it should.
  """
  match order:
    case MeetPeers():
      peers = [transfers.Peer(*peer) for peer in order.peers]
      endpoint.meet(peers, own=order.own, key=bytes.fromhex(order.key))
    case TransferFor():
      return [*endpoint.transfer(order.seconds, order.late_s).items()]
    case OpenTransfers():
      endpoint.connect(
        order.number,
        to=order.receivers,
        of=order.senders,
        streams=order.streams,
      )
      return [*endpoint.ping().items()] if order.pings else []
  return []


def _independent(
  every: measured.Test, rates: measured.Rates, *, tolerance: float
) -> bool:
  """Returns whether slow pairs are as fast when all hosts send to all.

  What they share with others would leave each of them less.
  """
  fair = shared.fair_Bps(rates, every)
  slow = rates.pairs_GBps
  want = sum(fair[pair] for pair in slow)
  return sum(every[pair] for pair in slow) >= (1 - 2 * tolerance) * want


def _both_ways(
  rounds: Iterable[tuple[Ends, ...]],
) -> Iterator[tuple[Ends, ...]]:
  """Yields rounds, each one way and then the other."""
  for games in rounds:
    yield games
    yield tuple((j, i) for i, j in games)


def _hubs(hosts: int) -> Iterator[Test]:
  """Yields tests of one host with all others."""
  others = [[j for j in range(hosts) if j != i] for i in range(hosts)]
  for i in range(hosts):
    yield Test('up', tuple((i, j) for j in others[i]))
  for i in range(hosts):
    yield Test('down', tuple((j, i) for j in others[i]))


def _counted_s(test: Test, seconds: float) -> float:
  return seconds * _LONGER.get(test.kind, 1)


def _tournament(hosts: int) -> Iterator[tuple[Ends, ...]]:
  """Yields rounds of pairs in which nobody is twice."""
  ring = list(range(1, hosts + hosts % 2))  # The last one may be nobody.
  for _ in ring:
    games = [(0, ring[0])]
    games += [(ring[k], ring[-k]) for k in range(1, len(ring) // 2 + 1)]
    yield tuple(game for game in games if max(game) < hosts)
    ring = ring[1:] + ring[:1]
