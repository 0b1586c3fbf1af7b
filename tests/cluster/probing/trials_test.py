"""Tests for cluster.probing.trials, on simulated networks."""

import itertools
import random
from fractions import Fraction

import networkx
from absl.testing import absltest, parameterized

import topology
from cluster.network import messages
from cluster.probing import transfers, trials
from tests.support import shared_links
from topology.clusters import measured

_MB = 10**6
# Limits of joint transfers, 1e6 bytes per second: (ups, downs, groups).
_RACKS = {
  '2 x 2': ([25] * 4, None, [((0, 1), 6, 6)]),
  '2 x 3': ([25] * 6, None, [((0, 1, 2), 6, 6)]),
  '2 x 4, a link of two hosts': ([25] * 8, None, [((0, 1, 2, 3), 45, 45)]),
  '2 x 3, one way': ([25] * 6, None, [((0, 1, 2), 6, 75)]),
  '2 + 3, unequal': ([25, 10, 40, 10, 25], None, [((0, 3), 8, 5)]),
  '2 + 5': ([25] * 7, None, [((1, 4), 10, 10)]),
  '3 x 2, mixed': (
    [25] * 6,
    None,
    [((0, 3), 10, 10), ((1, 4), 10, 10), ((2, 5), 10, 10)],
  ),
  '2 x 2 x 2, nested': (
    [25] * 8,
    None,
    [((0, 1, 2, 3), 4, 4)] + [((i, i + 1), 10, 10) for i in (0, 2, 4, 6)],
  ),
  '2 x 5': ([25] * 10, None, [((0, 1, 2, 3, 4), 10, 10)]),
  '3 x 4': (
    [25] * 12,
    None,
    [(tuple(range(i, 12, 3)), 12, 20) for i in range(3)],
  ),
}


_LARGE = {
  '8 x 8': (
    [125] * 64,
    [(tuple(range(k, k + 8)), 250, 250) for k in range(0, 64, 8)],
  ),
  '4 x 2 x 8': (
    [125] * 64,
    [(tuple(range(k, k + 16)), 200, 200) for k in range(0, 64, 16)]
    + [(tuple(range(k, k + 8)), 250, 250) for k in range(0, 64, 8)],
  ),
  '16 x 4': (
    [125] * 64,
    [(tuple(range(k, k + 4)), 125, 250) for k in range(0, 64, 4)],
  ),
  '21 of 64': (
    [125 if k % 4 else 60 for k in range(64)],
    [(tuple(range(21)), 400, 300)],
  ),
}


def _network(ups, downs, groups, **fields):
  scaled = [[rate * _MB for rate in rates] for rates in (ups, downs or ups)]
  shared = [(hosts, up * _MB, down * _MB) for hosts, up, down in groups]
  return shared_links.Network(*scaled, shared, **fields)


def _random(seed):
  """Returns rates of hosts and racks: at least two of at least two hosts."""
  rng = random.Random(seed)
  hosts = [*range(rng.randint(5, 12))]
  draw = lambda: [rng.choice([10, 25, 40]) for _ in hosts]  # noqa: E731
  ups, downs = draw(), draw()
  rng.shuffle(hosts)
  racks = [hosts[:2], hosts[2:4]]
  for host in hosts[4:]:
    rng.choice([*racks, []]).append(host)
  return (
    ups,
    downs,
    [
      (tuple(sorted(rack)), rng.uniform(3, 40), rng.uniform(3, 40))
      for rack in racks
    ],
  )


def _most(senders, ups, downs, groups):
  """Returns what some hosts can send to all others, as a flow in a tree."""
  graph = networkx.DiGraph()
  rack = dict.fromkeys(range(len(ups)), 'core')
  for number, (hosts, up, down) in enumerate(groups):
    rack |= dict.fromkeys(hosts, number)
    graph.add_edge(number, 'core', capacity=up)
    graph.add_edge('core', number, capacity=down)
  for host, name in rack.items():
    sends = host in senders
    ends = ('from', f'h{host}') if sends else (f'h{host}', 'to')
    rate = ups[host] if sends else downs[host]
    graph.add_edge(*ends, capacity=rate)
    graph.add_edge(*((ends[1], name) if sends else (name, ends[0])))
  return networkx.maximum_flow_value(graph, 'from', 'to')


def _explore(network, hosts, tolerance=0.1):
  """Returns kinds of tests, and the rates that they show."""
  run = lambda test: network.measure(test.pairs)  # noqa: E731
  tests, groups = trials.explore(run, hosts, tolerance=tolerance)
  shown = [rates for _, rates in tests]
  sizes = {'hosts': hosts, 'tolerance': tolerance, 'groups': groups}
  return [test.kind for test, _ in tests], measured.fit(shown, **sizes)


def _cuts(groups, hosts):
  """Returns sets of hosts that are cut off, as the side without host 0."""
  every = frozenset(range(hosts))
  return {
    every - {*group} if 0 in group else frozenset(group) for group in groups
  }


class _Cluster:
  """Processes on a simulated network, with a clock that transfers advance.

  Rates grow with the window up to a length, as they do in slow start.
  """

  def __init__(self, network, hosts, *, latency_s=1e-4, stable_s=1e-3):
    self.network, self.latency_s, self.stable_s = network, latency_s, stable_s
    self.now_s, self.windows_s, self.lines = 0.0, [], []
    self.hosts = [
      {'name': f'host{k}', 'address': '10.0.0.1', 'port': 1 + k}
      for k in range(hosts)
    ]

  def ask(self, orders, *, limit_s):
    del limit_s
    match orders[0]:
      case messages.OpenTransfers():
        # Two ways for the handshakes, five round trips of pings, and orders.
        self.now_s += 0.015 + 14 * self.latency_s
        self.orders = orders
        pings = [order.receivers if order.pings else [] for order in orders]
        return [[(k, self.latency_s) for k in each] for each in pings]
      case messages.TransferFor(seconds=seconds):
        self.now_s += transfers.duration_s(seconds)
        self.windows_s.append(seconds)
        pairs = [
          (i, j) for i, each in enumerate(self.orders) for j in each.receivers
        ]
        rates = self.network.measure(pairs)
        factor = min(1.0, seconds / self.stable_s)
        return [
          [(i, factor * rate) for (i, k), rate in rates.items() if k == j]
          for j in range(len(orders))
        ]
    return [[] for _ in orders]

  def measure(self, **fields):
    """Returns the findings, and the rates that they show."""
    found = trials.measure(
      self,
      self.hosts,
      tolerance=0.1,
      clock=lambda: self.now_s,
      log=self.lines.append,
      **fields,
    )
    return found, measured.fit(
      [rates for _, rates in found.tests],
      hosts=len(self.hosts),
      tolerance=0.1,
      groups=found.groups,
    )


class MeasureTest(parameterized.TestCase):
  """64 simulated hosts within the time limit."""

  @parameterized.parameters('8 x 8', '4 x 2 x 8', '16 x 4', '21 of 64')
  def test_64_hosts_and_their_groups_take_30_s(self, name):
    ups, groups = _LARGE[name]
    rng = random.Random(name)
    places = rng.sample(range(64), 64)  # Ranks do not follow the racks.
    ups = [ups[place] for place in places]
    groups = [
      (tuple(k for k in range(64) if places[k] in hosts), up, down)
      for hosts, up, down in groups
    ]
    fields = {'noise': 0.05, 'unfair': 0.2, 'seed': 1}
    cluster = _Cluster(_network(ups, None, groups, **fields), 64)

    _, rates = cluster.measure(seconds=0.5)

    self.assertLessEqual(cluster.now_s, 30.0)
    found = {each.hosts: each for each in rates.groups}
    self.assertEqual(
      _cuts(found, 64), _cuts([hosts for hosts, *_ in groups], 64)
    )
    for hosts, up, down in groups:
      ways = found[hosts].up_GBps, found[hosts].down_GBps
      for GBps, want in zip(ways, (up, down), strict=True):
        self.assertBetween(float(GBps) * 1e3 / want, 0.88, 1.031)
    for host, up in enumerate(ups):
      for GBps in (rates.up_GBps[host], rates.down_GBps[host]):
        self.assertBetween(float(GBps) * 1e3 / up, 0.88, 1.031)

  def test_slow_pairs_and_a_fast_host_among_64_are_found(self):
    ups = [1000] + [125] * 63
    slow = {(5, 9): 20 * _MB, (9, 5): 40 * _MB, (0, 63): 10 * _MB}
    rates = [up * _MB for up in ups]
    network = shared_links.Network(rates, pairs=slow, noise=0.05)
    cluster = _Cluster(network, 64)

    _, rates = cluster.measure(seconds=0.08, tests=trials.quick(64))

    self.assertLessEqual(cluster.now_s, 30.0)
    for pair, want in slow.items():
      share = float(rates.pairs_GBps[pair]) * 1e9 / want
      self.assertBetween(share, 0.9, 1.03)
    self.assertLen(rates.pairs_GBps, 3)
    for got, up in zip(rates.up_GBps, ups, strict=True):
      self.assertBetween(float(got) * 1e3 / up, 0.9, 1.03)
    self.assertBetween(float(rates.down_GBps[0]), 0.9, 1.03)

  @parameterized.parameters((64, 0.05), (128, 1e-4), (7, 0.05))
  def test_what_does_not_fit_into_the_limit_is_left_out_and_logged(
    self, hosts, latency_s
  ):
    network = _network([25] * hosts, None, [])
    cluster = _Cluster(network, hosts, latency_s=latency_s)

    _, rates = cluster.measure(seconds=0.5)

    # The last test begins before the limit.
    self.assertLess(cluster.now_s, 30.0 + 1.7 + 0.015 + 14 * latency_s)
    self.assertRegex('\n'.join(cluster.lines), r'limit: \d+ of \d+ rounds of p')
    self.assertEqual(rates.up_GBps, (Fraction(25, 1000),) * hosts)
    self.assertEqual(rates.pairs_GBps, {})
    self.assertEqual(rates.groups, ())

  @parameterized.parameters((1e-3, 0.1), (0.2, 0.4), (0.8, 0.4))
  def test_windows_are_as_long_as_stable_rates_need(self, stable_s, want_s):
    network = _network([25] * 4, None, [])
    cluster = _Cluster(network, 4, stable_s=stable_s)

    found, rates = cluster.measure(seconds=0.1)

    measuring = cluster.windows_s[-len(found.tests) :]
    self.assertAlmostEqual(min(measuring), want_s, places=2)
    seen = Fraction(25, 1000) * min(1, Fraction(want_s / stable_s))
    self.assertAlmostEqual(float(rates.up_GBps[0]), float(seen), places=4)


class ExploreTest(parameterized.TestCase):
  @parameterized.product(name=[*_RACKS], noise=[0.0, 0.05], seed=[0, 1])
  def test_finds_the_links_that_hosts_share_and_their_rates(
    self, name, noise, seed
  ):
    ups, _, groups = _RACKS[name]
    fields = {'noise': noise, 'unfair': 4 * noise, 'seed': seed}
    network = _network(*_RACKS[name], **fields)

    kinds, rates = _explore(network, len(ups))

    found = {each.hosts: each for each in rates.groups}
    self.assertEqual(
      _cuts(found, len(ups)), _cuts([each[0] for each in groups], len(ups))
    )
    for hosts, up, down in groups:
      if hosts in found:
        ways = found[hosts].up_GBps, found[hosts].down_GBps
      else:  # The others are behind the same link.
        (other,) = found
        ways = found[other].down_GBps, found[other].up_GBps
      for GBps, want in zip(ways, (up, down), strict=True):
        self.assertBetween(float(GBps) * 1e3 / want, 0.9, 1.031)
    self.assertEmpty(rates.pairs_GBps)
    more = len(kinds) - len(trials.plan(len(ups))) - kinds.count('again')
    self.assertLessEqual(more, 4 + 2 * (len(ups) - 2))

  @parameterized.parameters(*range(12))
  def test_rates_of_groups_are_their_joint_upload_and_download(self, seed):
    network = _random(seed)
    hosts = len(network[0])
    fields = {'noise': 0.03, 'unfair': 0.3, 'seed': seed}

    _, rates = _explore(_network(*network, **fields), hosts)

    for group in rates.groups:
      others = {*range(hosts)} - {*group.hosts}
      for senders, GBps in (
        (group.hosts, group.up_GBps),
        (others, group.down_GBps),
      ):
        share = float(GBps) * 1e3 / _most(senders, *network)
        self.assertBetween(share, 0.85, 1.03)

  @parameterized.product(hosts=[2, 3, 5, 8, 9], noise=[0.0, 0.05])
  def test_without_shared_links_nothing_more_is_measured(self, hosts, noise):
    ups = [(10, 25)[host % 3 == 0] for host in range(hosts)]
    network = _network(ups, None, [], noise=noise, unfair=4 * noise)

    kinds, rates = _explore(network, hosts)

    self.assertLen(kinds, len(trials.plan(hosts)))
    self.assertEmpty(rates.groups)

  def test_slow_pairs_are_no_groups(self):
    slow = dict.fromkeys(itertools.product((0, 1), (2, 3)), 3 * _MB)
    network = shared_links.Network([25 * _MB] * 4, pairs=slow)

    _, rates = _explore(network, 4)

    self.assertEmpty(rates.groups)
    self.assertEqual(set(rates.pairs_GBps), set(slow))

  def test_hosts_that_cannot_send_and_receive_at_once_are_no_group(self):
    class Half(shared_links.Network):
      def __init__(self):
        super().__init__([25 * _MB] * 5)
        for host in range(5):
          both = lambda i, j, host=host: host in (i, j)  # noqa: E731
          self.limits.append((30 * _MB, both))

    kinds, rates = _explore(Half(), 5)

    self.assertIn('all', kinds)
    self.assertEmpty(rates.groups)
    self.assertEqual(rates.up_GBps, (Fraction(25, 1000),) * 5)

  @parameterized.product(hosts=[4, 6], seed=[0, 1, 2, 3, 4])
  def test_hosts_that_share_a_machine_are_no_group(self, hosts, seed):
    ups = [25 * _MB] * hosts
    network = shared_links.Network(ups, unfair=0.9, noise=0.2, seed=seed)
    network.limits.append((6 * hosts * _MB, lambda i, j: True))

    kinds, rates = _explore(network, hosts)

    self.assertIn('all', kinds)
    self.assertEmpty(rates.groups)

  @parameterized.parameters('2 x 2', '2 x 3', '2 x 4, a link of two hosts')
  def test_forests_are_as_fast_as_the_shared_link_allows(self, name):
    ups, _, ((_, up, _),) = _RACKS[name]
    _, rates = _explore(_network(*_RACKS[name]), len(ups))

    packed = topology.pack(measured.build_cluster(rates))

    hosts = len(ups)
    star = Fraction(25 * _MB * hosts, 2 * (hosts - 1))
    self.assertEqual(packed.bound_Bps, min(up * _MB, star))
    self.assertEqual(packed.rate_Bps, packed.bound_Bps)


if __name__ == '__main__':
  absltest.main()
