"""Tests for topology/clusters/shared.py."""

import itertools
import random
from fractions import Fraction

from absl.testing import absltest, parameterized

from tests.support import shared_links
from topology.clusters import measured, shared


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


if __name__ == '__main__':
  absltest.main()
