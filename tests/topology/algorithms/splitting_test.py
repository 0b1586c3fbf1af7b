"""Switches that are bypassed."""

import itertools
import random

from absl.testing import absltest, parameterized

from tests.support import edmonds
from topology.algorithms import splitting


class SplittingTest(parameterized.TestCase):
  """Switches are bypassed without harm to any set of workers."""

  @parameterized.parameters(*range(15))
  def test_links_between_workers_still_enter_each_set_often_enough(self, seed):
    rng = random.Random(seed)
    workers, switches = rng.randint(2, 5), rng.randint(1, 3)
    nodes = workers + switches
    amount = dict.fromkeys(itertools.permutations(range(nodes), 2), 0)
    for _ in range(rng.randint(2, 12)):  # Round trips keep switches balanced.
      trip = rng.sample(range(nodes), rng.randint(2, nodes))
      for ends in itertools.pairwise([*trip, trip[0]]):
        amount[ends] += 1 + seed % 3
    links = [(a, b, c) for (a, b), c in amount.items() if c]
    units = [rng.randint(0, 3) for _ in range(workers)]

    if not edmonds.enterable(nodes, links, units, workers):
      with self.assertRaisesRegex(ValueError, 'units into node'):
        splitting.bypass(nodes, range(workers), links, units)
      return
    routes = splitting.bypass(nodes, range(workers), links, units)

    self.assertTrue(
      edmonds.enterable(
        workers,
        [(a, b, sum(c for _, c in paths)) for (a, b), paths in routes.items()],
        units,
      )
    )
    for (a, b), paths in routes.items():
      for path, count in paths:
        self.assertEqual((path[0], path[-1]), (a, b))
        self.assertTrue(all(v >= workers for v in path[1:-1]))
        for ends in itertools.pairwise(path):
          amount[ends] -= count
    self.assertGreaterEqual(min(amount.values()), 0)


if __name__ == '__main__':
  absltest.main()
