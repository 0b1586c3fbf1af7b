"""The tests of tools.probe: which there are, ordering them, and obeying."""

import itertools
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from cluster.transport.streams import Security
from tools.probing import flows, lockstep
from topology.clusters import measured, shared
from topology.clusters.measured import Ends

_LEAST = 4  # Hosts that can be two groups.
_TRIES = 3  # Of the control, since a busy machine is slow for a while.
_ALONE = 8  # Hosts up to which each pair is measured alone.
# Times the seconds of others: where links have deep queues, TCP takes long to
# find its rate beside what goes the other way.
_LONGER = dict.fromkeys(('both', 'all', 'group', 'near'), 3)


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
    back = [tuple((j, i) for i, j in games) for games in rounds]
    pairs = [way for ways in zip(rounds, back, strict=True) for way in ways]
  others = [[j for j in range(hosts) if j != i] for i in range(hosts)]
  return [
    *(Test('pairs', each) for each in pairs),
    *(Test('up', tuple((i, j) for j in others[i])) for i in range(hosts)),
    *(Test('down', tuple((j, i) for j in others[i])) for i in range(hosts)),
    *(Test('both', (*each, *((j, i) for i, j in each))) for each in rounds),
  ]


def explore(
  run: Callable[[Test], measured.Test], hosts: int, *, tolerance: float
) -> tuple[list[tuple[Test, measured.Test]], list[tuple[int, ...]]]:
  """Returns tests with what they have shown, and groups of hosts.

  The groups are those behind links that they share.  They are looked for, with
  2 + 2 S more tests, 4 + 2 S at most, for S suspects, H - 2 of them at most, if
  there are 4 hosts or more, and `both` has fallen short of what pairs can do by
  twice the tolerance, or pairs that were not measured alone are slower than
  both of their ends.

  Args:
    run: Carries a test out.
    hosts: How many, at least 2.
    tolerance: Relative error of rates.

  Raises:
    ValueError: If a pair has carried nothing.
  """
  found = [(test, run(test)) for test in plan(hosts)]
  seen = [shown for _, shown in found]
  rates = measured.fit(seen, hosts=hosts, tolerance=tolerance)
  short = any(
    measured.shortfalls(shown, rates, tolerance=2 * tolerance)
    for test, shown in found
    if test.kind == 'both'
  )
  together = hosts > _ALONE and bool(rates.pairs_GBps)
  if hosts < _LEAST or not (short or together):
    return found, []

  def more(kind: str, pairs: Iterable[Ends]) -> measured.Test:
    test = Test(kind, tuple(pairs))
    found.append((test, run(test)))
    return found[-1][1]

  every = more('all', itertools.permutations(range(hosts), 2))
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
  leader: lockstep.Leader,
  hosts: int,
  *,
  seconds: float,
  streams: int,
  tolerance: float,
) -> Found:
  """Has all members measure, and returns what they have found.

  Args:
    leader: Whose members do as `follow` does.
    hosts: How many they are.
    seconds: For which each transfer is counted; 3 times as long where many go
      on at once.
    streams: Connections of each transfer.
    tolerance: Relative error of rates.

  Raises:
    Failure: If a process fails or is lost, or a pair has carried nothing; says
      which.
  """
  met = leader.gather()
  key = secrets.token_hex(16)
  peers = [(each['name'], each['address'], each['port']) for each in met]
  meet = {'do': 'meet', 'peers': peers, 'key': key}
  leader.ask([meet] * hosts, limit_s=0.0)
  tests = plan(hosts)
  whole_s = sum(flows.duration_s(_counted_s(test, seconds)) for test in tests)
  print(f'{len(tests)} tests, about {whole_s:.0f} s', flush=True)
  numbers = itertools.count()
  latency_s: dict[Ends, float] = {}

  def run(test: Test) -> measured.Test:
    if test.kind == 'all':
      print('Hosts may share links: some tests more', flush=True)
    connect = {'do': 'connect', 'number': next(numbers), 'streams': streams}
    orders = [
      {
        'to': [j for i, j in test.pairs if i == rank],
        'of': [i for i, j in test.pairs if j == rank],
        'ping': test.kind == 'pairs',
        **connect,
      }
      for rank in range(hosts)
    ]
    answers = leader.ask(orders, limit_s=flows.PINGS_S * streams)
    pings = {(i, j): s for i, each in enumerate(answers) for j, s in each}
    latency_s.update(pings)
    test_s = _counted_s(test, seconds)
    order = {'do': 'transfer', 'seconds': test_s}
    limit_s = flows.duration_s(test_s)
    answers = leader.ask([order] * hosts, limit_s=limit_s)
    return {(i, j): Bps for j, each in enumerate(answers) for i, Bps in each}

  try:
    found, groups = explore(run, hosts, tolerance=tolerance)
  except ValueError as error:
    raise lockstep.Failure(str(error)) from error
  return Found(met, found, latency_s, groups)


def follow(
  leader: str,
  endpoint: flows.Endpoint,
  rank: int,
  *,
  address: str,
  security: Security,
  timeout_s: float,
  start_s: float,
) -> str:
  """Takes part in the tests.

  Args:
    leader: HOST:PORT where it listens.
    endpoint: Of this process.
    rank: Of this process.
    address: Of the endpoint, IPv4.
    security: Of the stream to the leader.
    timeout_s: Silence of a process after which it counts as lost.
    start_s: Until all have to be there.

  Returns:
    Why they have ended too early; '' if they have not.

  Raises:
    TransportError: If the leader is lost, or does not know the token.
  """

  def obey(order: Mapping[str, Any]) -> list[tuple[int, float]]:
    if order['do'] == 'meet':
      peers = [flows.Peer(*peer) for peer in order['peers']]
      endpoint.meet(peers, own=rank, key=bytes.fromhex(order['key']))
      return []
    if order['do'] == 'transfer':
      return [*endpoint.transfer(order['seconds']).items()]
    ends = {'to': order['to'], 'of': order['of']}
    endpoint.connect(order['number'], **ends, streams=order['streams'])
    return [*endpoint.ping().items()] if order['ping'] else []

  hostname = socket.gethostname()
  hello = {
    'rank': rank,
    'name': f'host{rank} ({hostname})',
    'hostname': hostname,
    'address': address,
    'port': endpoint.port,
  }
  return lockstep.follow(
    leader,
    hello,
    obey,
    security=security,
    timeout_s=timeout_s,
    start_s=start_s,
  )


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
