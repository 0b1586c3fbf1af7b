"""Tests for topology.coloring."""

import itertools
import random
from collections import Counter

from absl.testing import absltest, parameterized

from topology import coloring


class ColoredTest(parameterized.TestCase):
  @parameterized.product(seed=[*range(60)], growing=[False, True])
  def test_random_multigraph_needs_as_many_colors_as_its_degree(
    self, seed, growing
  ):
    rng = random.Random(seed)
    count = rng.randint(1, 9)
    pairs = [
      (rng.randrange(count), rng.randrange(count))
      for _ in range(rng.randint(1, 80))
    ]
    groups = coloring.colored(pairs, growing=growing)

    self.assertEqual(_degree(pairs), len(groups))
    _check_groups(self, pairs, groups)

  @parameterized.parameters(False, True)
  def test_complete_graph_with_repeated_edges_is_filled(self, growing):
    pairs = list(itertools.product(range(6), range(6))) * 3
    random.Random(0).shuffle(pairs)

    groups = coloring.colored(pairs, growing=growing)

    self.assertEqual([len(group) for group in groups], [6] * 18)
    _check_groups(self, pairs, groups)

  def test_nothing_needs_no_color(self):
    self.assertEqual(coloring.colored([]), [])


class PermutesTest(parameterized.TestCase):
  @parameterized.parameters(*range(30))
  def test_swaps_keep_the_number_and_make_none_slower(self, seed):
    transfers = _random_transfers(seed, 60)
    pairs = [transfer[:2] for transfer in transfers]

    groups = coloring.permutes(transfers)

    self.assertLen(groups, _degree(pairs))
    _check_groups(self, pairs, groups)
    slowest = sorted(range(len(transfers)), key=lambda i: -transfers[i].time)
    for growing in (False, True):
      plain = coloring.colored([pairs[i] for i in slowest], growing=growing)
      before = [[slowest[i] for i in group] for group in plain]
      self.assertLessEqual(_cost(transfers, groups), _cost(transfers, before))
    self.assertGreaterEqual(_cost(transfers, groups)[0], _least_time(transfers))

  @parameterized.parameters(*range(40))
  def test_few_transfers_take_little_more_than_the_least_time(self, seed):
    transfers = _random_transfers(seed, 8)

    groups = coloring.permutes(transfers)

    best = min(
      _cost(transfers, other)
      for other in _all_colorings(transfers, len(groups))
    )
    self.assertLessEqual(_cost(transfers, groups)[0], 1.2 * best[0])

  def test_hops_that_share_a_link_are_kept_apart(self):
    inner = (('s0', 's1'), 6)
    transfers = []
    for src, dst in ((0, 4), (1, 5), (0, 2), (1, 3)):
      own = ((f'w{src}', 's0'), 3)
      links = (own, inner) if dst > 3 else (own,)
      transfers.append(coloring.Transfer(src, dst, links))

    groups = coloring.permutes(transfers)

    self.assertEqual(_cost(transfers, groups), (12, 0))


def _random_transfers(seed, most):
  rng = random.Random(seed)
  count = rng.randint(2, 6)
  pairs = list(itertools.permutations(range(count), 2))
  times = {pair: rng.choice((1, 2, 5, 20)) for pair in pairs}
  shared = rng.random() < 0.5
  transfers = []
  for _ in range(rng.randint(1, most)):
    src, dst = rng.choice(pairs)
    links = [((f'w{src}', f'w{dst}'), times[src, dst])]
    if shared and src < 2 <= dst:
      links.append((('s0', 's1'), 3))
    transfers.append(coloring.Transfer(src, dst, tuple(links)))
  return transfers


def _degree(pairs):
  degree = Counter(('src', src) for src, _ in pairs)
  degree.update(('dst', dst) for _, dst in pairs)
  return max(degree.values())


def _check_groups(test, pairs, groups):
  """All pairs once, no src and no dst twice in a group."""
  test.assertEqual(
    sorted(itertools.chain.from_iterable(groups)), list(range(len(pairs)))
  )
  for group in groups:
    test.assertNotEmpty(group)
    for side in (0, 1):
      test.assertLen({pairs[i][side] for i in group}, len(group))


def _cost(transfers, groups):
  """Time of all groups in turn, and transfers with an opposite one."""
  time = opposite = 0
  for group in groups:
    load = Counter()
    for i in group:
      load.update(dict(transfers[i].links))
    time += max(load.values(), default=0)
    pairs = {transfers[i][:2] for i in group}
    opposite += sum((dst, src) in pairs for src, dst in pairs)
  return time, opposite


def _least_time(transfers):
  """As many groups have some time as the degree of what takes as long."""
  times = sorted({transfer.time for transfer in transfers})
  return sum(
    (time - before) * _degree([t[:2] for t in transfers if t.time >= time])
    for before, time in itertools.pairwise([0, *times])
  )


def _all_colorings(transfers, count):
  groups = [[] for _ in range(count)]

  def place(i):
    if i == len(transfers):
      yield groups
      return
    for group in groups:
      if all(
        transfers[i].src != transfers[j].src
        and transfers[i].dst != transfers[j].dst
        for j in group
      ):
        group.append(i)
        yield from place(i + 1)
        group.pop()
      if not group:  # The other empty ones are alike.
        break

  return place(0)


if __name__ == '__main__':
  absltest.main()
