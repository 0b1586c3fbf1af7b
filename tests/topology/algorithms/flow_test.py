"""Maximum flows, against all cuts."""

import itertools
import random

from absl.testing import absltest, parameterized

from topology.algorithms import flow


class FlowTest(parameterized.TestCase):
  """Maximum flows against all cuts."""

  @parameterized.parameters(*range(8))
  def test_flow_is_the_smallest_cut(self, seed):
    rng = random.Random(seed)
    links = [
      (a, b, rng.randint(1, 9))
      for a, b in itertools.permutations(range(6), 2)
      if rng.random() < 0.4
    ]
    residual = flow.network(6, links)

    added = flow.augment(residual, 0, 5, 1000)

    cuts = [
      (sum(c for a, b, c in links if a in side and b not in side), side)
      for size in range(5)
      for side in (
        {0, *rest} for rest in itertools.combinations(range(1, 5), size)
      )
    ]
    self.assertEqual(added, min(value for value, _ in cuts))
    self.assertIn((added, set(flow.reach(residual, 0))), cuts)

  def test_flow_stops_at_its_limit_and_can_be_continued(self):
    residual = flow.network(3, [(0, 1, 5), (1, 2, 4), (0, 2, 1)])

    self.assertEqual(flow.augment(residual, 0, 2, 2), 2)
    self.assertEqual(flow.augment(residual, 0, 2, 9), 3)

  def test_parallel_links_add_up(self):
    residual = flow.network(2, [(0, 1, 5), (0, 1, 4)])

    self.assertEqual(flow.augment(residual, 0, 1, 100), 9)

  @parameterized.parameters(*range(8))
  def test_detours_carry_as_much_as_blocking_flows(self, seed):
    rng = random.Random(seed)
    links = [
      (a, b, rng.randint(1, 9))
      for a, b in itertools.permutations(range(8), 2)
      if rng.random() < 0.3
    ]
    limit = rng.choice((3, 1000))
    one, other = flow.network(8, links), flow.network(8, links)

    got = flow.detour(one, 0, 7, limit)

    self.assertEqual(got, flow.augment(other, 0, 7, limit))
    for row in one:
      self.assertGreaterEqual(min(row.values(), default=0), 0)
    if got < limit:
      self.assertEqual(flow.reach(one, 0), flow.reach(other, 0))


if __name__ == '__main__':
  absltest.main()
