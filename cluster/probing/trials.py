"""Tests of links: their plans, the orders to processes, and their execution.

There are two plans: that of tools.probe, and a quick one for the start of a
run, which measures pairs in rounds whatever their number, and has no tests with
transfers in both directions at once.  `explore` adds tests where these leave a
question.

Time is bounded: see `measure`.  Tests are as long as stable rates need,
and what the time limit does not allow is left out, with a line of the log.
"""

import functools
import itertools
import secrets
from collections.abc import (
  Callable,
  Collection,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
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
from system import clock
from topology.clusters import measured, shared
from topology.clusters.measured import Ends

LIMIT_S = 30.0  # Time limit of all tests by default.
QUICK_S = 0.08  # `seconds` of the quick plan.
_LEAST = 4  # Number of hosts that can be two groups.
_TRIES = 3  # Attempts of the control, since a busy machine is slow for a while.
# Number of hosts up to which each pair is measured alone, and each host with
# all others.
_ALONE = 8
_STARS = 4, 16  # Hosts of a star; the larger ones if that is too few.
_MOST_HUBS = 40  # Largest number of further tests of stars, at each size.
_MOST_AGAIN = 8  # Largest number of rounds of slow pairs.
_MOST_BOTH = 8  # Largest number of rounds in both directions beyond `_ALONE`.
# Kinds with windows of 3 times the length, up to a length: on links with deep
# queues, TCP takes long to find its rate beside traffic of the other direction.
_LONG_KINDS = frozenset({'again', 'both', 'all', 'group', 'near'})
_LONGER, _LONG_S = 3, 0.3
# Slow start takes round trips: a transfer is counted for this many one-way
# latencies at least, up to a longest time.
_ONE_WAYS, _LONGEST_S = 16, 1.0
_LONGEST_TIMES = 4  # Longest window, in multiples of the one asked for.
_SHORTEST_S = 0.02  # Window if there is no time for a longer one.
_ORDERS_S = 0.015  # Expected time of the orders and connections of a test.
# Shares of the time limit: the window is chosen so that all rounds of pairs fit
# into the first; none begins after the second; further tests of hosts and pairs
# begin before the third, and those of groups before the last.
_PLANNED, _PAIRS, _HOSTS, _GROUPS = 0.45, 0.6, 0.7, 0.9


class Test(NamedTuple):
  """A test: transfers that take place at the same time.

  Attributes:
    kind: 'pairs', 'up', 'down', 'again', 'both', 'all', 'group' or 'near'.
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
  """Returns the tests of the quick plan, in order.

  H hosts need 2 (H - 1) tests of pairs, one more of each direction if H is odd,
  and as many of stars as `plan` has.

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
  circle method): each two hosts meet once.  Each host sends to all others, and
  all others to it; of many hosts, to and from those of its star, of which all
  others are measured at the same time: at most 14 tests.

  Args:
    hosts: Number of hosts, at least 2.
  """
  rounds = list(_tournament(hosts))
  pairs: list[tuple[Ends, ...]]
  if hosts <= _ALONE:
    pairs = [(pair,) for each in _both_ways(rounds) for pair in each]
  else:
    pairs = list(_both_ways(rounds))
    rounds = rounds[:: -(-len(rounds) // _MOST_BOTH)]
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
  spent: Callable[[], float] = lambda: 0.0,
  log: Callable[[str], None] = lambda text: None,
) -> tuple[list[tuple[Test, measured.Test]], list[tuple[int, ...]]]:
  """Runs tests, and finds groups of hosts behind links that they share.

  A host that reaches its best rate with its star, but no less than its pairs
  alone, may be faster: it is measured with more others, at last with all.
  Slow pairs are measured again, for longer, if that takes few rounds.

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
    spent: Returns the share of the time limit that has passed.  Tests are left
      out from certain shares on; each host is tested in any case.
    log: Called with a line about tests that are left out.

  Returns:
    The tests with their rates, and the groups.

  Raises:
    ValueError: If a pair has carried nothing.
  """
  found: list[tuple[Test, measured.Test]] = []
  missing = {(host, way) for host in range(hosts) for way in (0, 1)}

  def run_more(kind: str, pairs: Iterable[Ends]) -> measured.Test:
    test = Test(kind, tuple(pairs))
    found.append((test, run(test)))
    for pair in test.pairs:
      missing.difference_update((host, way) for way, host in enumerate(pair))
    return found[-1][1]

  def run_some(tests: Sequence[Test], until: float, what: str) -> None:
    """Runs tests while there is time, and until each host has been tested."""
    for number, test in enumerate(tests):
      if spent() >= until and not missing:
        left = len(tests) - number
        log(f'Time limit: {left} of {len(tests)} {what} are left out')
        return
      run_more(*test)

  tests = tests or plan(hosts)
  by_kind = [
    [test for test in tests if test.kind in kinds]
    for kinds in (('pairs',), ('up', 'down'), ('both',))
  ]
  pairs, hubs, both = by_kind
  run_some(
    pairs, _PAIRS, 'rounds of pairs, which count as fast as their hosts,'
  )
  run_some(hubs, _HOSTS, 'tests of hosts with several others')
  if hosts > _ALONE:
    for size in (*_STARS[1:], hosts):
      further = _stars(hosts, size, _find_unsaturated(found, tolerance))
      if len(further) > _MOST_HUBS:
        log(
          f'{len(further)} tests of hosts with {size - 1} others are left out'
        )
        break
      run_some(further, _HOSTS, 'tests of hosts with more others')
  rates = measured.fit(
    [result for _, result in found], hosts=hosts, tolerance=tolerance
  )
  are_alone = all(len(test.pairs) == 1 for test in pairs)
  slow = rates.pairs_GBps
  again = [(pair,) for pair in sorted(slow)] if are_alone else _match(slow)
  if len(again) <= _MOST_AGAIN:
    run_some(
      [Test('again', each) for each in again], _HOSTS, 'rounds of slow pairs'
    )
  run_some(both, _HOSTS, 'rounds in both directions')
  rates = measured.fit(
    [result for _, result in found], hosts=hosts, tolerance=tolerance
  )
  falls_short = any(
    measured.find_shortfalls(result, rates, tolerance=2 * tolerance)
    for test, result in found
    if test.kind == 'both'
  )
  has_slow_pairs = not are_alone and bool(rates.pairs_GBps)
  if hosts < _LEAST or not (falls_short or has_slow_pairs):
    return found, []
  if spent() >= _GROUPS:
    log('Time limit: hosts that share links are not looked for')
    return found, []

  every = run_more('all', itertools.permutations(range(hosts), 2))
  if not falls_short and _are_independent(every, rates, tolerance=tolerance):
    return found, []
  suspects = shared.find_suspects(every, rates, tolerance=tolerance)
  for number, group in enumerate(suspects):
    if spent() >= _GROUPS:
      left = [len(each) for each in suspects[number:]]
      log(f'Time limit: sets of {left} hosts are not tested for shared links')
      del suspects[number:]
      break
    for loads in shared.choose_loads(group, rates):
      run_more('group', loads)
  results = [result for _, result in found]
  groups = shared.confirm_groups(
    suspects, results, hosts=hosts, tolerance=tolerance
  )
  for _ in range(_TRIES if groups else 0):
    if spent() >= 1:
      log('Time limit: hosts that seem to share links are not confirmed')
      break
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
  limit_s: float = LIMIT_S,
  tries: int = 1,
  log: Callable[[str], None] = lambda text: None,
  clock: Callable[[], float] = clock.monotonic,
) -> Findings:
  """Measures the links between processes, by orders to all of them.

  The window w of a test is `seconds`, or up to 4 times that, until the rates of
  a first round of pairs are within half the tolerance of those of half of it.
  It is so short that N tests of pairs fit into a part of the time limit L:

    N (1.5 w + .04 s + .015 s) <= .45 L

  A test lasts 1.5 w + .04 s, where w is 3 times as long for some kinds of test,
  up to .3 s, and at least 16 latencies, up to 1 s; and up to 14 latencies for
  orders and connections.  Without failures no test begins after L, but the
  first one of each host.  With N = 126 for 64 hosts and L = 30 s, w is at most
  .035 s.  A failed test takes up to the timeouts of the client, and `tries` of
  them end the measurement.

  Args:
    client: Sends orders, which the processes execute by `carry_out`.
    processes: `name`, `address` and `port` of each process.
    seconds: Window in which a transfer is counted: see above.
    tolerance: Relative error of rates.
    streams: Number of connections of each transfer.
    tests: First tests; those of `plan` by default.
    limit_s: Time limit of all tests, seconds.
    tries: Attempts of each test, if it fails.
    log: Called with a line about the progress.
    clock: Returns monotonic seconds.

  Raises:
    Failure: If a process fails or is lost, or a pair has carried nothing; says
      which.
  """
  hosts = len(processes)
  key = secrets.token_hex(16)
  peers = [(each['name'], each['address'], each['port']) for each in processes]
  client.ask([MeetPeers(peers, own, key) for own in range(hosts)], limit_s=0.0)
  start_s = clock()
  tests = tests or plan(hosts)
  numbers = itertools.count()
  latency_s: dict[Ends, float] = {}

  def attempt(test: Test, window_s: float) -> measured.Test:
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
    if test.kind in _LONG_KINDS:
      window_s = max(window_s, min(_LONGER * window_s, _LONG_S))
    test_s = max(window_s, min(_ONE_WAYS * far_s, _LONGEST_S))
    order = TransferFor(test_s)
    whole_s = transfers.duration_s(test_s)
    answers = client.ask([order] * hosts, limit_s=whole_s)
    return {
      (i, j): Bps for j, each in enumerate(answers) for i, Bps in _rates(each)
    }

  def run(test: Test, window_s: float) -> measured.Test:
    if test.kind == 'all':
      log('Hosts may share links: some tests more')
    for _ in range(tries - 1):
      try:
        return attempt(test, window_s)
      except transfers.Failure as error:
        log(f'Once more: {error}')
    return attempt(test, window_s)

  window_s = _find_window_s(
    functools.partial(run, Test('pairs', next(_tournament(hosts)))),
    seconds,
    _longest_window_s(tests, limit_s),
    tolerance=tolerance / 2,
  )
  duration_s = transfers.duration_s(window_s) + _ORDERS_S
  log(f'{len(tests)} tests of about {duration_s:.2g} s, or longer')
  try:
    found, groups = explore(
      functools.partial(run, window_s=window_s),
      hosts,
      tolerance=tolerance,
      tests=tests,
      spent=lambda: (clock() - start_s) / limit_s,
      log=log,
    )
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
      return [*endpoint.transfer(order.seconds).items()]
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


def _hubs(hosts: int) -> list[Test]:
  """Returns tests of each host as the hub of a star; of few hosts, with all."""
  return _stars(hosts, hosts if hosts <= _ALONE else _STARS[0])


def _stars(
  hosts: int, size: int, hubs: Collection[Ends] | None = None
) -> list[Test]:
  """Returns tests in which hubs send to, or receive from, all of their stars.

  Args:
    hosts: Number of hosts.
    size: Least number of hosts of a star; stars have no host in common.
    hubs: Hosts to measure, each with 0 for sending and 1 for receiving; by
      default all of them, in both ways.
  """
  count = max(1, hosts // size)
  stars = [
    range(k * hosts // count, (k + 1) * hosts // count) for k in range(count)
  ]
  tests = []
  for way, kind in enumerate(('up', 'down')):
    for number in range(max(map(len, stars))):
      pairs = [
        (star[number], other) if way == 0 else (other, star[number])
        for star in stars
        if number < len(star) and (hubs is None or (star[number], way) in hubs)
        for other in star
        if other != star[number]
      ]
      if pairs:
        tests.append(Test(kind, tuple(pairs)))
  return tests


def _find_unsaturated(
  found: Sequence[tuple[Test, measured.Test]], tolerance: float
) -> set[Ends]:
  """Returns hosts that may be faster than any test has shown.

  These are as fast with their star as in any test, and each transfer with the
  star is as fast as that pair ever was.

  Returns:
    Each host with 0 for sending and 1 for receiving.
  """
  best: dict[Ends, float] = {}
  most: dict[Ends, float] = {}
  stars: dict[Ends, tuple[float, list[Ends]]] = {}  # Rate and pairs, the last.
  for test, rates in found:
    totals: dict[Ends, list[Ends]] = {}
    for pair in rates:
      if test.kind not in ('up', 'down'):
        best[pair] = max(best.get(pair, 0.0), rates[pair])
      for way, host in enumerate(pair):
        totals.setdefault((host, way), []).append(pair)
    for end, pairs in totals.items():
      total = sum(rates[pair] for pair in pairs)
      most[end] = max(most.get(end, 0.0), total)
      if test.kind == ('up', 'down')[end[1]]:
        stars[end] = total, pairs
  return {
    end
    for end, (total, pairs) in stars.items()
    if total >= (1 - tolerance) * sum(best.get(pair, 0.0) for pair in pairs)
    and total >= (1 - tolerance) * most[end]
  }


def _match(pairs: Iterable[Ends]) -> list[tuple[Ends, ...]]:
  """Returns rounds of some pairs, without a host in common in any round."""
  rounds: list[list[Ends]] = []
  busy: list[set[int]] = []
  for pair in sorted(pairs):
    for games, hosts in zip(rounds, busy, strict=True):
      if not hosts & {*pair}:
        games.append(pair)
        hosts.update(pair)
        break
    else:
      rounds.append([pair])
      busy.append({*pair})
  return [tuple(each) for each in rounds]


def _longest_window_s(tests: Sequence[Test], limit_s: float) -> float:
  """Returns the longest window with which the plan fits into the time limit."""
  count = sum(test.kind == 'pairs' for test in tests)
  fixed_s = transfers.duration_s(0.0) + _ORDERS_S
  fitting_s = (_PLANNED * limit_s / count - fixed_s) / 1.5
  return max(fitting_s, _SHORTEST_S)


def _find_window_s(
  run: Callable[[float], measured.Test],
  seconds: float,
  longest_s: float,
  *,
  tolerance: float,
) -> float:
  """Returns a window in which rates are stable, or the longest one.

  Args:
    run: Runs a test with a window; returns bytes per second by pair.
    seconds: Shortest window, if it is below the longest one.
    longest_s: Longest window.
    tolerance: Relative difference, to rates in half the window, of stable ones.
  """
  longest_s = min(longest_s, _LONGEST_TIMES * seconds)
  window_s = min(seconds, longest_s)
  if window_s == longest_s:
    return window_s
  before = run(window_s / 2)
  while True:
    rates = run(window_s)
    differences = [
      abs(rate - before[pair]) / max(rate, 1.0) for pair, rate in rates.items()
    ]
    if max(differences) <= tolerance or window_s == longest_s:
      return window_s
    before, window_s = rates, min(2 * window_s, longest_s)


def _tournament(hosts: int) -> Iterator[tuple[Ends, ...]]:
  """Yields rounds of pairs without a host in common."""
  ring = list(range(1, hosts + hosts % 2))  # The last host may be a dummy.
  for _ in ring:
    games = [(0, ring[0])]
    games += [(ring[k], ring[-k]) for k in range(1, len(ring) // 2 + 1)]
    yield tuple(game for game in games if max(game) < hosts)
    ring = ring[1:] + ring[:1]
