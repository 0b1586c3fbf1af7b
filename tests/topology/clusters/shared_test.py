"""Tests for topology/clusters/shared.py."""

import itertools
import random
from fractions import Fraction

from absl.testing import absltest, parameterized

from tests.support import shared_links
from topology.clusters import measured, shared

_ENDS = measured.Rates((Fraction(1),) * 4, (Fraction(1),) * 4, {})


def _random_network(hosts, seed):
  """Returns a network and the rates that say the same."""
  rng = random.Random(seed)
  draw = lambda: Fraction(rng.randint(1, 30), 100)  # noqa: E731
  ups, downs = (tuple(draw() for _ in range(hosts)) for _ in range(2))
  outer = tuple(sorted(rng.sample(range(hosts), hosts - 1)))
  groups = [
    measured.Group(each, draw(), draw())
    for each in (outer, outer[: len(outer) // 2], outer[len(outer) // 2 :])
  ]
  pairs = {
    pair: draw()
    for pair in itertools.permutations(range(hosts), 2)
    if rng.random() < 0.2
  }
  network = shared_links.Network(ups, downs, groups, pairs)
  return network, measured.Rates(ups, downs, pairs, tuple(groups))


def _rack(GBps, rack=(0, 1)):
  """Returns four hosts of 1 GBps, two of them behind a link."""
  return shared_links.Network([1.0] * 4, groups=[(rack, GBps, GBps)])


class FairTest(parameterized.TestCase):
  @parameterized.product(hosts=[3, 4, 6, 9], seed=[0, 1, 2])
  def test_rates_are_those_of_transfers_that_grow_until_a_limit_is_full(
    self, hosts, seed
  ):
    network, rates = _random_network(hosts, seed)
    every = list(itertools.permutations(range(hosts), 2))
    some = random.Random(seed).sample(every, len(every) // 2)
    for pairs in (every, some, every[:1], []):
      fair = shared.compute_fair_Bps(rates, pairs)

      self.assertEqual(set(fair), set(pairs))
      for pair, want in network.shares(pairs).items():
        self.assertAlmostEqual(fair[pair] / 1e9, want, places=9)


class LoadsTest(parameterized.TestCase):
  @parameterized.parameters(
    (3, 2), (4, 2), (4, 3), (7, 2), (7, 6), (12, 2), (12, 6), (12, 11)
  )
  def test_every_host_has_a_transfer_across_the_link(self, hosts, size):
    _, rates = _random_network(hosts, hosts)
    group = tuple(random.Random(size).sample(range(hosts), size))
    out, into = shared.choose_loads(group, rates)

    for pairs, inside in ((out, 0), (into, 1)):
      self.assertLen(set(pairs), max(size, hosts - size))
      self.assertEqual({pair[inside] for pair in pairs}, {*group})
      others = {pair[1 - inside] for pair in pairs}
      self.assertEqual(others, {*range(hosts)} - {*group})

  def test_a_control_pairs_all_hosts_with_those_that_they_reach_best(self):
    network = _rack(Fraction(1, 2), rack=(0, 2))
    every = network.measure(list(itertools.permutations(range(4), 2)))
    control = shared.choose_control(every, _ENDS)

    self.assertCountEqual(map(sorted, control), [[0, 2], [1, 3]])


class GroupsTest(parameterized.TestCase):
  """A link with 0.85 of what hosts allow: 2 * 0.05 is noticed, 2 * 0.1 not."""

  @parameterized.parameters((0.05, [(0, 1)]), (0.1, []))
  def test_hosts_are_suspected_that_reach_others_too_slowly(
    self, tolerance, found
  ):
    # Pairs across the link get a quarter of it, others what is left of 1 GBps.
    network = _rack(0.85 / 0.675)
    every = network.measure(list(itertools.permutations(range(4), 2)))
    every = {pair: 1e9 * rate for pair, rate in every.items()}
    suspects = shared.find_suspects(every, _ENDS, tolerance=tolerance)

    self.assertEqual(suspects, found)

  def test_larger_groups_are_suspected_first(self):
    network = shared_links.Network(
      [1.0] * 8, groups=[((0, 1, 2, 3), 0.2, 0.2), ((0, 1), 0.6, 0.6)]
    )
    every = network.measure(list(itertools.permutations(range(8), 2)))
    every = {pair: 1e9 * rate for pair, rate in every.items()}
    rates = measured.Rates((Fraction(1),) * 8, (Fraction(1),) * 8, {})
    suspects = shared.find_suspects(every, rates, tolerance=0.05)

    # The link of hosts 0 and 1 is also that from hosts 2 and 3 to them.
    self.assertEqual(suspects, [(0, 1, 2, 3), (0, 1), (2, 3)])

  @parameterized.parameters((0.05, [(0, 1)]), (0.1, []))
  def test_a_group_is_confirmed_whose_link_slows_its_load(
    self, tolerance, found
  ):
    tests = self._measure(_rack(1.7), [(0, 1)])
    confirmed = shared.confirm_groups(
      [(0, 1)], tests, hosts=4, tolerance=tolerance
    )

    self.assertEqual(confirmed, found)

  def test_a_group_that_a_smaller_one_explains_is_not_confirmed(self):
    network = shared_links.Network([1.0] * 6, groups=[((0, 1), 0.2, 0.2)])
    groups = [(0, 1, 2), (0, 1)]
    tests = self._measure(network, groups, hosts=6)
    confirmed = shared.confirm_groups(groups, tests, hosts=6, tolerance=0.05)

    self.assertEqual(confirmed, [(0, 1)])

  @parameterized.parameters((0.05, False), (0.1, True))
  def test_a_control_is_explained_unless_it_falls_short(
    self, tolerance, explained
  ):
    tests = self._measure(_rack(0.5), [(0, 1)])
    control = {(0, 1): 0.85e9, (2, 3): 0.85e9}
    is_explained = shared.explains_control(
      control, [(0, 1)], tests, hosts=4, tolerance=tolerance
    )

    self.assertEqual(is_explained, explained)

  def _measure(self, network, groups, hosts=4):
    """Returns tests of all pairs alone, and of the loads of groups."""
    pairs = list(itertools.permutations(range(hosts), 2))
    rates = measured.Rates((Fraction(1),) * hosts, (Fraction(1),) * hosts, {})
    loads = [
      load for each in groups for load in shared.choose_loads(each, rates)
    ]
    tests = [network.measure(each) for each in ([[p] for p in pairs] + loads)]
    return [{p: 1e9 * rate for p, rate in test.items()} for test in tests]


if __name__ == '__main__':
  absltest.main()
