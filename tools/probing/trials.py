"""The tests of tools.probe: which there are, ordering them, and obeying."""

import secrets
import socket
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cluster.transport.streams import Security
from tools.probing import flows, lockstep
from topology.clusters.measured import Ends

_ALONE = 8  # Hosts up to which each pair is measured alone.
# Times the seconds of others: where links have deep queues, TCP takes long to
# find its rate beside what goes the other way.
_LONGER = {'both': 3}


class Test(NamedTuple):
  """Transfers that go on at the same time.

  Attributes:
    kind: 'pairs', 'up', 'down' or 'both'.
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
  """

  hosts: list[Mapping[str, Any]]
  tests: list[tuple[Test, Mapping[Ends, float]]]
  latency_s: Mapping[Ends, float]


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


def measure(
  leader: lockstep.Leader, hosts: int, *, seconds: float, streams: int
) -> Found:
  """Has all members measure, and returns what they have found.

  Args:
    leader: Whose members do as `follow` does.
    hosts: How many they are.
    seconds: For which each transfer is counted; 3 times as long in `both`.
    streams: Connections of each transfer.

  Raises:
    Failure: If a process fails or is lost; says which.
  """
  met = leader.gather()
  key = secrets.token_hex(16)
  peers = [(each['name'], each['address'], each['port']) for each in met]
  meet = {'do': 'meet', 'peers': peers, 'key': key}
  leader.ask([meet] * hosts, limit_s=0.0)
  tests = plan(hosts)
  counted_s = [seconds * _LONGER.get(test.kind, 1) for test in tests]
  whole_s = sum(map(flows.duration_s, counted_s))
  print(f'{len(tests)} tests, about {whole_s:.0f} s', flush=True)
  found = Found(met, [], {})
  for number, (test, test_s) in enumerate(zip(tests, counted_s, strict=True)):
    ping = test.kind == 'pairs'
    connect = {'do': 'connect', 'number': number, 'streams': streams}
    orders = [
      {
        'to': [j for i, j in test.pairs if i == rank],
        'of': [i for i, j in test.pairs if j == rank],
        'ping': ping,
        **connect,
      }
      for rank in range(hosts)
    ]
    answers = leader.ask(orders, limit_s=flows.PINGS_S * streams)
    pings = {(i, j): s for i, each in enumerate(answers) for j, s in each}
    found.latency_s.update(pings)
    order = {'do': 'transfer', 'seconds': test_s}
    limit_s = flows.duration_s(test_s)
    answers = leader.ask([order] * hosts, limit_s=limit_s)
    rates = {(i, j): Bps for j, each in enumerate(answers) for i, Bps in each}
    found.tests.append((test, rates))
  return found


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


def _tournament(hosts: int) -> Iterator[tuple[Ends, ...]]:
  """Yields rounds of pairs in which nobody is twice."""
  ring = list(range(1, hosts + hosts % 2))  # The last one may be nobody.
  for _ in ring:
    games = [(0, ring[0])]
    games += [(ring[k], ring[-k]) for k in range(1, len(ring) // 2 + 1)]
    yield tuple(game for game in games if max(game) < hosts)
    ring = ring[1:] + ring[:1]
