"""Tests of links: their plans, the orders to processes, and their execution.

There are two plans: that of tools.probe, and a quick one for the start of a
run, which measures pairs in rounds whatever their number, and has no tests with
transfers in both directions at once.
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

_LEAST = 4  # Number of hosts that can be two groups.
_TRIES = 3  # Attempts of the control, since a busy machine is slow for a while.
_ALONE = 8  # Number of hosts up to which each pair is measured alone.
# Factors of the seconds of some kinds of test: on links with deep queues, TCP
# takes long to find its rate beside traffic of the other direction.
_LONGER = dict.fromkeys(('both', 'all', 'group', 'near'), 3)
# Slow start takes round trips: a transfer is counted for this many one-way
# latencies at least, up to a longest time.
_ONE_WAYS, _LONGEST_S = 16, 1.0
QUICK_S, QUICK_LATE_S = 0.08, 0.04  # `seconds` and `late_s` of the quick plan.


class Test(NamedTuple):
  """A test: transfers that take place at the same time.

  Attributes:
    kind: 'pairs', 'up', 'down', 'both', 'all', 'group' or 'near'.
    pairs: Sender and receiver of each transfer.
  """

  kind: str
  pairs: tuple[Ends, ...]


class Findings(NamedTuple):
  """The results of all tests.

  Attributes:
    hosts: `hostname` and `address` of each host.
    tests: Tests, each with bytes per second by sender and receiver.
    latency_s: Half of the round trip, seconds, by sender and receiver.
    groups: Groups of hosts behind links that they share.
  """

  hosts: list[Mapping[str, Any]]
  tests: list[tuple[Test, measured.Test]]
  latency_s: Mapping[Ends, float]
  groups: list[tuple[int, ...]]


class ProbeClient(Protocol):
  """Sends orders to the processes that measure, and collects the answers."""

  def ask(
    self, orders: Sequence[Probe], *, limit_s: float
  ) -> list[HostDescription | Rates]:
    """Returns the answers of all processes to their orders.

    Args:
      orders: One for each.
      limit_s: Longest time of executing them, seconds.

    Raises:
      Failure: If a process cannot execute its order, or does not answer in
        time.
    """


def quick(hosts: int) -> list[Test]:
  """Returns the tests of the quick plan, in order: at most 4 H - 2 of H hosts.

  Args:
    hosts: Number of hosts, at least 2.
  """
  rounds = _both_ways(_tournament(hosts))
  pairs = [Test('pairs', each) for each in rounds]
  # With two hosts these tests already give the rates of sending and receiving.
  return pairs if hosts == 2 else [*pairs, *_hubs(hosts)]


def plan(hosts: int) -> list[Test]:
  """Returns the tests of tools.probe, in order.

  Pairs that have no host in common come from the rounds of a tournament (the
  circle method): each two hosts meet once.

  Args:
    hosts: Number of hosts, at least 2.
  """
  rounds = list(_tournament(hosts))
  pairs: list[tuple[Ends, ...]]
  if hosts <= _ALONE:
    pairs = [((i, j),) for i in range(hosts) for j in range(hosts) if i != j]
  else:
    pairs = list(_both_ways(rounds))
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
  """Runs tests, and finds groups of hosts behind links that they share.

  Groups are looked for, with 2 + 2 S to 4 + 2 S more tests for S suspects (at
  most H - 2), if there are at least 4 hosts and one of these is true:

  - Rates of `both` are lower than those of pairs by twice the tolerance.
  - Pairs that were not measured alone are slower than both of their ends, and
    slower still, by twice the tolerance in sum, while all hosts send to all.

  Args:
    run: Runs a test; returns bytes per second by sender and receiver.
    hosts: Number of hosts, at least 2.
    tolerance: Relative error of rates.
    tests: First tests; those of `plan` by default.

  Returns:
    The tests with their rates, and the groups.

  Raises:
    ValueError: If a pair has carried nothing.
  """
  found = [(test, run(test)) for test in tests or plan(hosts)]
  results = [result for _, result in found]
  rates = measured.fit(results, hosts=hosts, tolerance=tolerance)
  falls_short = any(
    measured.find_shortfalls(result, rates, tolerance=2 * tolerance)
    for test, result in found
    if test.kind == 'both'
  )
  are_alone = all(len(t.pairs) == 1 for t, _ in found if t.kind == 'pairs')
  has_slow_pairs = not are_alone and bool(rates.pairs_GBps)
  if hosts < _LEAST or not (falls_short or has_slow_pairs):
    return found, []

  def run_more(kind: str, pairs: Iterable[Ends]) -> measured.Test:
    test = Test(kind, tuple(pairs))
    found.append((test, run(test)))
    return found[-1][1]

  every = run_more('all', itertools.permutations(range(hosts), 2))
  if not falls_short and _are_independent(every, rates, tolerance=tolerance):
    return found, []
  suspects = shared.find_suspects(every, rates, tolerance=tolerance)
  for group in suspects:
    for pairs in shared.choose_loads(group, rates):
      run_more('group', pairs)
  results = [result for _, result in found]
  groups = shared.confirm_groups(
    suspects, results, hosts=hosts, tolerance=tolerance
  )
  for _ in range(_TRIES if groups else 0):
    control = run_more('near', shared.choose_control(every, rates))
    results = [result for _, result in found]
    if shared.explains_control(
      control, groups, results, hosts=hosts, tolerance=tolerance
    ):
      return found, groups
  return found, []


def measure(
  client: ProbeClient,
  processes: list[Mapping[str, Any]],
  *,
  seconds: float,
  tolerance: float,
  streams: int = 1,
  tests: Sequence[Test] | None = None,
  late_s: float = transfers.LATE_S,
  tries: int = 1,
  log: Callable[[str], None] = lambda text: None,
) -> Findings:
  """Measures the links between processes, by orders to all of them.

  Args:
    client: Sends orders, which the processes execute by `carry_out`.
    processes: `name`, `address` and `port` of each process.
    seconds: Length of the window in which each transfer is counted; 3 times
      that where many take place at once, and longer where the latency is long.
    tolerance: Relative error of rates.
    streams: Number of connections of each transfer.
    tests: First tests; those of `plan` by default.
    late_s: Greatest delay between the starts of two processes.
    tries: Attempts of each test, if it fails.
    log: Called with a line about the progress.

  Raises:
    Failure: If a process fails or is lost, or a pair has carried nothing; says
      which.
  """
  hosts = len(processes)
  key = secrets.token_hex(16)
  peers = [(each['name'], each['address'], each['port']) for each in processes]
  client.ask([MeetPeers(peers, own, key) for own in range(hosts)], limit_s=0.0)
  tests = tests or plan(hosts)
  whole_s = sum(
    transfers.duration_s(_counted_s(test, seconds), late_s) for test in tests
  )
  log(f'{len(tests)} tests, about {whole_s:.0f} s')
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
    answers = client.ask(orders, limit_s=transfers.PINGS_S * streams)
    pings = {
      (i, j): s for i, each in enumerate(answers) for j, s in _rates(each)
    }
    latency_s.update(pings)
    far_s = max(latency_s.get(pair, 0.0) for pair in test.pairs)
    test_s = max(_counted_s(test, seconds), min(_ONE_WAYS * far_s, _LONGEST_S))
    order = TransferFor(test_s, late_s)
    limit_s = transfers.duration_s(test_s, late_s)
    answers = client.ask([order] * hosts, limit_s=limit_s)
    return {
      (i, j): Bps for j, each in enumerate(answers) for i, Bps in _rates(each)
    }

  def run(test: Test) -> measured.Test:
    if test.kind == 'all':
      log('Hosts may share links: some tests more')
    for _ in range(tries - 1):
      try:
        return attempt(test)
      except transfers.Failure as error:
        log(f'Once more: {error}')
    return attempt(test)

  try:
    found, groups = explore(run, hosts, tolerance=tolerance, tests=tests)
  except ValueError as error:
    raise transfers.Failure(str(error)) from error
  return Findings(processes, found, latency_s, groups)


def carry_out(order: Probe, endpoint: transfers.Endpoint) -> Rates:
  """Executes an order, and returns the answer.

  Args:
    order: An order of `measure`.
    endpoint: Endpoint of this process.

  Raises:
    Broken: If a transfer fails.
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
        receivers=order.receivers,
        senders=order.senders,
        streams=order.streams,
      )
      return [*endpoint.ping().items()] if order.pings else []
  return []


def _rates(answer: HostDescription | Rates) -> Rates:
  if isinstance(answer, HostDescription):
    raise transfers.Failure('a process has answered another order')
  return answer


def _are_independent(
  every: measured.Test, rates: measured.Rates, *, tolerance: float
) -> bool:
  """Returns whether slow pairs are as fast while all hosts send to all.

  A link that they share with others would leave each of them less.
  """
  fair = shared.compute_fair_Bps(rates, every)
  slow = rates.pairs_GBps
  want = sum(fair[pair] for pair in slow)
  return sum(every[pair] for pair in slow) >= (1 - 2 * tolerance) * want


def _both_ways(
  rounds: Iterable[tuple[Ends, ...]],
) -> Iterator[tuple[Ends, ...]]:
  """Yields each round in one direction and then in the other."""
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
  """Yields rounds of pairs without a host in common."""
  ring = list(range(1, hosts + hosts % 2))  # The last host may be a dummy.
  for _ in ring:
    games = [(0, ring[0])]
    games += [(ring[k], ring[-k]) for k in range(1, len(ring) // 2 + 1)]
    yield tuple(game for game in games if max(game) < hosts)
    ring = ring[1:] + ring[:1]
