"""Tests for topology/measured.py."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import scipy.optimize
from absl.testing import absltest, parameterized

import topology
from tests.support import shared_links
from topology.clusters import cluster, measured, shapes


def _pairs(hosts):
  return list(itertools.permutations(range(hosts), 2))


def _random_rates(hosts, seed, slow=0.3):
  """Returns rates with some pairs that are slower than both their ends."""
  rng = random.Random(seed)
  draw = lambda: Fraction(rng.choice([4, 10, 25]), 1000)  # noqa: E731
  up, down = ([draw() for _ in range(hosts)] for _ in range(2))
  rates = measured.Rates(tuple(up), tuple(down), {})
  return rates._replace(
    pairs_GBps={
      pair: rates.between(*pair) / rng.choice([2, 5])
      for pair in _pairs(hosts)
      if rng.random() < slow
    }
  )


def _tests(rates, noise=lambda: 1.0):
  """Returns what hosts with these rates show, alone and many at once."""
  hosts = range(len(rates.up_GBps))
  rate = lambda i, j: 1e9 * float(rates.between(i, j)) * noise()  # noqa: E731
  tests = [{pair: rate(*pair)} for pair in _pairs(len(hosts))]
  for host in hosts:
    for way, limits in (('up', rates.up_GBps), ('down', rates.down_GBps)):
      pairs = [(host, other) for other in hosts if other != host]
      pairs = pairs if way == 'up' else [pair[::-1] for pair in pairs]
      whole = sum(rates.between(*pair) for pair in pairs)
      share = float(min(1, limits[host] / whole))
      tests.append({pair: share * rate(*pair) for pair in pairs})
  return tests


def _largest_scale(graph, demand):
  """Returns by how much a demand can grow until the links are full.

  A linear program: what each worker sends is a flow over links out of itself
  and out of switches, never out of other workers.
  """
  workers, links = graph.workers, graph.links
  size = len(workers) * len(links) + 1
  equal, full = [], np.zeros((len(links), size))
  for s, source in enumerate(workers):
    at = s * len(links)
    for node in graph.nodes:
      row = np.zeros(size)
      for number, link in enumerate(links):
        row[at + number] += (link.dst == node) - (link.src == node)
        full[number, at + number] = 1
      if node in workers and node != source:
        row[-1] = -demand[source, node]
        blocked = np.zeros(size)
        blocked[at : at + len(links)] = [link.src == node for link in links]
        equal.append(blocked)
      if node != source:
        equal.append(row)
  done = scipy.optimize.linprog(
    np.append(np.zeros(size - 1), -1),
    A_ub=full,
    b_ub=[float(link.GBps) for link in links],
    A_eq=np.array(equal),
    b_eq=np.zeros(len(equal)),
  )
  return -done.fun


class FitTest(parameterized.TestCase):
  @parameterized.product(hosts=[2, 3, 5, 9], seed=[0, 1, 2])
  def test_exact_measurements_give_the_rates_that_can_be_used(
    self, hosts, seed
  ):
    rates = _random_rates(hosts, seed)
    within = range(hosts)
    out = [
      min(up, sum(rates.between(i, j) for j in within if j != i))
      for i, up in enumerate(rates.up_GBps)
    ]
    into = [
      min(down, sum(rates.between(i, j) for i in within if j != i))
      for j, down in enumerate(rates.down_GBps)
    ]

    fitted = measured.fit(_tests(rates), hosts=hosts, tolerance=1e-6)

    rounding = {'rtol': 0.0051, 'atol': 0}
    floats = lambda values: np.array(values, float)  # noqa: E731
    np.testing.assert_allclose(floats(fitted.up_GBps), floats(out), **rounding)
    np.testing.assert_allclose(
      floats(fitted.down_GBps), floats(into), **rounding
    )
    for i, j in _pairs(hosts):
      np.testing.assert_allclose(
        float(fitted.between(i, j)), float(rates.between(i, j)), **rounding
      )

  def test_similar_hosts_get_equal_rates_despite_noise(self):
    rng = random.Random(0)
    rates = measured.Rates(
      tuple(Fraction(n, 1000) for n in (25, 25, 10, 25, 10)),
      tuple(Fraction(n, 1000) for n in (25, 25, 10, 10, 25)),
      {(0, 1): Fraction(5, 1000), (1, 0): Fraction(5, 1000)},
    )
    noise = lambda: 0.97 + 0.02 * rng.random()  # noqa: E731

    fitted = measured.fit(_tests(rates, noise), hosts=5, tolerance=0.1)

    fast, slow = fitted.up_GBps[0], fitted.up_GBps[2]
    self.assertEqual(fitted.up_GBps, (fast, fast, slow, fast, slow))
    self.assertEqual(fitted.down_GBps, (fast, fast, slow, slow, fast))
    self.assertEqual([*fitted.pairs_GBps], [(0, 1), (1, 0)])
    self.assertLen(set(fitted.pairs_GBps.values()), 1)
    self.assertBetween(float(fast), 0.024, 0.025)

  @parameterized.parameters(range(5))
  def test_no_rate_changes_by_more_than_tolerance_and_rounding(self, seed):
    rng = random.Random(seed)
    best = {pair: 10 ** rng.uniform(6, 8) for pair in _pairs(6)}

    fitted = measured.fit([best], hosts=6, tolerance=0.2)

    for (i, j), rate in best.items():
      up = sum(best[i, other] for other in range(6) if other != i)
      down = sum(best[other, j] for other in range(6) if other != j)
      for was, became in (
        (up, fitted.up_GBps[i]),
        (down, fitted.down_GBps[j]),
        (rate, fitted.pairs_GBps.get((i, j), Fraction(rate) / 10**9)),
      ):
        self.assertBetween(1e9 * float(became) / was, 0.795, 1.255)

  @parameterized.product(
    seed=[*range(12)], hosts=[2, 3, 7], tolerance=[0.0, 0.03, 0.1, 0.3]
  )
  def test_no_rate_exceeds_its_measurement_by_3_percent(
    self, seed, hosts, tolerance
  ):
    rng = random.Random(seed)
    scale, spread = 10 ** rng.uniform(2, 11), rng.choice([0.01, 0.1, 0.5])
    alone = {
      pair: scale * (1 - spread * rng.random()) for pair in _pairs(hosts)
    }
    # All at once, so that ends are measured in one test, and pairs in another.
    ends = {pair: rate / hosts for pair, rate in alone.items()}
    if seed % 2:
      ends |= {(0, 1): alone[0, 1]}

    own = [(0, 1)] if hosts > 2 else []
    sizes = {'hosts': hosts, 'tolerance': tolerance, 'groups': own}
    fitted = measured.fit([alone, ends], **sizes)

    for group in fitted.groups:
      across = [
        (pair[0] in group.hosts, Fraction(rate))
        for pair, rate in alone.items()
        if (pair[0] in group.hosts) != (pair[1] in group.hosts)
      ]
      for GBps, way in ((group.up_GBps, True), (group.down_GBps, False)):
        most = sum(rate for out, rate in across if out == way)
        self.assertLessEqual(float(GBps * 10**9 / most), 1.03 * (1 + 1e-12))
    sums = lambda test, end: [  # noqa: E731
      sum(Fraction(rate) for pair, rate in test.items() if pair[end] == host)
      for host in range(hosts)
    ]
    for end, promised in enumerate([fitted.up_GBps, fitted.down_GBps]):
      shown = map(max, sums(alone, end), sums(ends, end))
      for GBps, most in zip(promised, shown, strict=True):
        self.assertLessEqual(float(GBps * 10**9 / most), 1.03 * (1 + 1e-12))
    for pair, GBps in fitted.pairs_GBps.items():
      most = Fraction(max(alone[pair], ends[pair]))
      self.assertLessEqual(float(GBps * 10**9 / most), 1.03 * (1 + 1e-12))

  def test_a_class_has_the_rate_of_its_slowest_member(self):
    # Measurements of six links of one group, whose median is 10.6 % too much.
    sent = [200.0, 199.0, 199.0, 198.0, 199.0, 180.0]
    tests = [{(i, j): 1e6 * sent[i] for i in range(6) for j in [(i + 1) % 6]}]
    tests += [
      {pair: 1e5 for pair in _pairs(6) if pair not in tests[0]},
    ]

    fitted = measured.fit(tests, hosts=6, tolerance=0.1)

    self.assertEqual(set(fitted.up_GBps), {Fraction('0.185')})

  def test_a_test_with_too_high_a_rate_is_ignored(self):
    rates = _random_rates(4, 0, slow=0)
    tests = _tests(rates)
    tests.append({pair: 1.09 * rate for pair, rate in tests[0].items()})

    fitted = measured.fit(tests, hosts=4, tolerance=0.1)

    self.assertEqual(fitted, measured.fit(tests[:-1], hosts=4, tolerance=0.1))

  def test_a_pair_is_slow_below_the_tolerance_not_at_it(self):
    for slow_Bps, pairs_GBps in (
      (9e9, {}),
      (8.98e9, {(0, 1): Fraction('8.98')}),
    ):
      tests = [{pair: 1e10} for pair in _pairs(3) if pair != (0, 1)] * 3
      tests.append({(0, 1): slow_Bps})

      fitted = measured.fit(tests, hosts=3, tolerance=0.1)

      self.assertEqual(fitted.pairs_GBps, pairs_GBps)

  def test_rates_are_decimals_of_three_digits(self):
    tests = [{(0, 1): 23_456_789.0, (1, 0): 98_765.4}]

    fitted = measured.fit(tests, hosts=2, tolerance=0)

    want = (Fraction('0.0235'), Fraction('0.0000988'))
    self.assertEqual(fitted, measured.Rates(want, want[::-1], {}))

  @parameterized.parameters(
    (2, 1.0, {}, 'tolerance'),
    (2, -0.1, {}, 'tolerance'),
    (1, 0.1, {}, 'at least 2 hosts'),
    (2, 0.1, {(0, 1): 1.0}, r'none of \[\(1, 0\)\]'),
    (2, 0.1, {(0, 1): 1.0, (1, 0): 0.0}, r'none of \[\(1, 0\)\]'),
    (2, 0.1, {(0, 2): 1.0}, 'rates of 2 hosts'),
    (2, 0.1, {(0, 1): -1.0}, 'rates of 2 hosts'),
    (2, 0.1, {(0, 1): math.inf}, 'rates of 2 hosts'),
    (2, 0.1, {(0, 1): math.nan}, 'rates of 2 hosts'),
  )
  def test_invalid_measurements_are_rejected(
    self, hosts, tolerance, test, text
  ):
    with self.assertRaisesRegex(ValueError, text):
      measured.fit([test], hosts=hosts, tolerance=tolerance)


class GraphTest(parameterized.TestCase):
  def test_cluster_without_slow_pairs_is_a_star(self):
    up = [Fraction(n, 100) for n in (3, 1, 2)]
    rates = measured.Rates(tuple(up), tuple(up[::-1]), {})
    graph = measured.build_cluster(rates)
    star = shapes.star(up, up[::-1])

    names = {'w0': 'host0', 'w1': 'host1', 'w2': 'host2', 's0': 'net0'}
    links = {(names[src], names[dst], GBps) for src, dst, GBps in star.links}
    self.assertEqual(set(graph.links), links)
    self.assertEqual(graph.switches, ('net0',))

  @parameterized.product(hosts=[2, 3, 4, 5], slow=[0.1, 0.4, 1.0], seed=[0, 1])
  def test_transfers_fit_if_and_only_if_they_are_within_all_rates(
    self, hosts, slow, seed
  ):
    rates = _random_rates(hosts, seed, slow)
    graph = measured.build_cluster(rates)
    rng = np.random.default_rng(seed)
    demands = [np.ones((hosts, hosts))]
    demands += [rng.exponential(size=(hosts, hosts)) ** 3 for _ in range(3)]
    # A single pair, past which nothing may go round.
    demands += [np.eye(hosts, k=1), np.eye(hosts, k=-1)]
    for demand in demands:
      np.fill_diagonal(demand, 0)
      loads = [*demand.sum(1), *demand.sum(0)]
      loads += [demand[pair] for pair in rates.pairs_GBps]
      limits = [*rates.up_GBps, *rates.down_GBps, *rates.pairs_GBps.values()]
      used = zip(limits, loads, strict=True)
      want = min(float(limit) / load for limit, load in used if load)
      named = {(f'host{i}', f'host{j}'): demand[i, j] for i, j in _pairs(hosts)}

      self.assertAlmostEqual(_largest_scale(graph, named) / want, 1, places=6)

  @parameterized.product(hosts=[2, 5, 12], slow=[0.0, 0.1, 0.5, 1.0])
  def test_numbers_of_nodes_and_links_stay_within_the_documented_bound(
    self, hosts, slow
  ):
    rates = _random_rates(hosts, 0, slow)
    graph = measured.build_cluster(rates)

    sets = {
      tuple(j for j in range(hosts) if (i, j) in rates.pairs_GBps)
      for i in range(hosts)
    }
    most = (len(sets) + 3) * hosts + len(rates.pairs_GBps)
    self.assertLessEqual(len(graph.nodes), 3 * hosts + len(sets))
    self.assertLessEqual(len(graph.links), most)
    self.assertEqual(cluster.from_json(cluster.to_json(graph)), graph)

  @parameterized.parameters(range(3))
  def test_cluster_of_measurements_can_be_packed(self, seed):
    packed = topology.pack(measured.build_cluster(_random_rates(5, seed)))

    self.assertEqual(packed.gap, 0)


class GroupsTest(parameterized.TestCase):
  @parameterized.product(
    groups=[
      [(0, 1)],
      [(0, 1), (2, 3)],
      [(1, 2, 3), (1, 3)],
      [(0,), (2, 3, 4), (2, 4)],
      [(0, 1, 3, 4), (0, 4), (1, 3)],
    ],
    slow=[0.0, 0.5, 1.0],
  )
  def test_transfers_fit_if_and_only_if_they_are_within_all_rates(
    self, groups, slow
  ):
    rng = np.random.default_rng(len(groups))
    draw = lambda: Fraction(int(rng.integers(1, 30)), 1000)  # noqa: E731
    rates = _random_rates(5, len(groups), slow)
    rates = rates._replace(
      groups=tuple(measured.Group(each, draw(), draw()) for each in groups)
    )
    # Slow pairs that cross the link of a group are not in the graph.
    inside = {
      pair: rate
      for pair, rate in rates.pairs_GBps.items()
      if not rates.crossed(*pair)
    }
    network = shared_links.Network(
      rates.up_GBps, rates.down_GBps, rates.groups, inside
    )
    graph = measured.build_cluster(rates)

    for demand in (
      np.ones((5, 5)),
      rng.exponential(size=(5, 5)) ** 3,
      np.eye(5, k=1),
      np.eye(5, k=-2),
    ):
      named = {(f'host{i}', f'host{j}'): demand[i, j] for i, j in _pairs(5)}
      want = network.largest({pair: demand[pair] for pair in _pairs(5)})
      self.assertAlmostEqual(
        _largest_scale(graph, named) / float(want), 1, places=6
      )

  def test_two_racks_are_two_switches_with_a_link(self):
    ends = (Fraction(1, 40),) * 4
    thin = Fraction(1, 100), Fraction(1, 200)
    rack = measured.Group((0, 1), *thin)
    graph = measured.build_cluster(measured.Rates(ends, ends, {}, (rack,)))

    self.assertEqual(set(graph.switches), {'net0', 'group0.net0'})
    between = [link for link in graph.links if not {*link} & {*graph.workers}]
    self.assertEqual(
      {*between},
      {
        cluster.Link('group0.net0', 'net0', thin[0]),
        cluster.Link('net0', 'group0.net0', thin[1]),
      },
    )

  def test_groups_have_the_rates_of_traffic_across_their_links(self):
    group = (0, 1)
    alone = dict.fromkeys(_pairs(4), 20000000.0)
    for pair in itertools.product((0, 1), (2, 3)):
      alone |= {pair: 1e7, pair[::-1]: 5e6}
    tests = [{pair: rate} for pair, rate in alone.items()]
    tests.append({(0, 2): 6e6, (1, 3): 4e6, (2, 0): 1e6, (3, 1): 4e6})
    fields = {'hosts': 4, 'tolerance': 0.1}

    without = measured.fit(tests, **fields)
    rates = measured.fit(tests, groups=[group], **fields)

    self.assertLen(without.pairs_GBps, 8)
    self.assertEqual(rates.pairs_GBps, {})
    found = measured.Group(group, Fraction(1, 100), Fraction(5, 1000))
    self.assertEqual(rates.groups, (found,))

  def test_pairs_across_a_shared_link_are_slow_only_if_measured_alone(self):
    across = {(0, 2): 6e6, (0, 3): 3e6, (1, 2): 3e6, (1, 3): 1e6}
    across |= {pair[::-1]: rate for pair, rate in across.items()}
    inside = {pair: 2e7 for pair in _pairs(4) if pair not in across}
    fields = {'hosts': 4, 'tolerance': 0.1, 'groups': [(0, 1)]}

    together = measured.fit([across, inside], **fields)
    alone = measured.fit([across, inside, {(1, 3): 4e6}], **fields)

    self.assertEqual(together.pairs_GBps, {})
    self.assertEqual(alone.pairs_GBps, {(1, 3): Fraction(4, 1000)})

  def test_pairs_across_a_shared_link_are_no_shortfall(self):
    ends = (Fraction(1, 10),) * 4
    rack = measured.Group((0, 1), Fraction(1, 20), Fraction(1, 20))
    rates = measured.Rates(ends, ends, {}, (rack,))
    test = {(0, 2): 1e7, (1, 0): 5e7, (3, 1): 4e7}

    short = measured.find_shortfalls(test, rates, tolerance=0.1)

    self.assertEqual(short, {(1, 0): Fraction(1, 2)})


class ShortfallsTest(absltest.TestCase):
  def test_shortfalls_are_pairs_below_their_rates(self):
    rates = measured.Rates(
      (Fraction(1, 10),) * 4, (Fraction(1, 10),) * 4, {(2, 3): Fraction(1, 50)}
    )
    # That of 0 to 2 is the least rate that is within the tolerance.
    test = {(0, 1): 5e7, (1, 0): 9.5e7, (2, 3): 2e7, (3, 2): 8e7, (0, 2): 9e7}

    short = measured.find_shortfalls(test, rates, tolerance=0.1)

    self.assertEqual(short, {(0, 1): Fraction(1, 2), (3, 2): Fraction(4, 5)})


if __name__ == '__main__':
  absltest.main()
