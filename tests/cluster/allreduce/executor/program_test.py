"""Tests of cluster.allreduce.executor.program."""

import dataclasses

from absl.testing import absltest, parameterized

from cluster.allreduce.executor import program
from tests.support import groups
from topology.clusters import shapes
from topology.packing.pack import pack


def _programs(group, size, ranges, chunk_bytes=64):
  return {
    index: program.program(
      program.roles(group, index, chunk_bytes=chunk_bytes),
      size,
      ranges,
    )
    for index in group.addresses
  }


class ProgramTest(parameterized.TestCase):
  @parameterized.parameters(range(4))
  def test_what_goes_is_what_comes(self, seed):
    for name, forest, workers in groups.forests(seed):
      with self.subTest(name):
        group = groups.group(forest, workers)
        ranges = [(0, 1), (1, 1), (1, 200), (200, 401)]
        made = _programs(group, 401, ranges)
        hops = {}
        for worker, each in made.items():
          for other, count in each.goes.items():
            hops[worker, other] = count
          self.assertEqual(each.layout, made[0].layout)
        for worker, each in made.items():
          for other, count in each.comes.items():
            self.assertEqual(hops.pop((other, worker)), count)
        self.assertEmpty(hops)
        # Each chunk comes once to all but the root, and goes up as often.
        chunks = len(made[0].trees)
        self.assertEqual(
          sum(sum(each.goes.values()) for each in made.values()),
          2 * (len(workers) - 1) * chunks,
        )

  def test_chunks_are_of_one_range_and_cover_it(self):
    star = shapes.star([1, 1, 1])
    group = groups.group(pack(star), star.workers)
    ranges = [(0, 40), (40, 40), (40, 41), (41, 57), (57, 90)]
    made = _programs(group, 90, ranges)[0]
    found = [
      list(zip(made.starts[a:b], made.stops[a:b], strict=True))
      for a, b in made.chunks
    ]
    want = [
      [(0, 16), (16, 32), (32, 40)],
      [],
      [(40, 41)],
      [(41, 57)],
      [(57, 73), (73, 89), (89, 90)],
    ]
    self.assertEqual(found, want)

  def test_one_member_sends_nothing(self):
    alone = program.Group(1, {3: '127.0.0.1:1'}, pack(shapes.star([1])), {})
    made = program.program(
      program.roles(alone, 3, chunk_bytes=64), 40, [(0, 40)]
    )
    self.assertEqual((made.goes, made.comes), ({}, {}))
    self.assertEqual(made.trees, [0, 0, 0])

  @parameterized.parameters(
    ([(0, 5), (6, 9)], 'one from 5 on'),
    ([(0, 5), (5, 4)], 'one from 5 on'),
    ([(1, 9)], 'one from 0 on'),
    ([(0, 8)], 'to end at 9'),
  )
  def test_ranges_with_gaps_are_refused(self, ranges, message):
    star = shapes.star([1, 1])
    with self.assertRaisesRegex(ValueError, message):
      _programs(groups.group(pack(star), star.workers), 9, ranges)

  def test_forests_that_are_none_are_refused(self):
    star = shapes.star([1, 1, 1])
    forest = pack(star)
    group = groups.group(forest, star.workers)
    given = {'chunk_bytes': 64}
    with self.assertRaisesRegex(ValueError, 'worker 5'):
      program.roles(group, 5, **given)
    more = group._replace(addresses={**group.addresses, 3: ''})
    with self.assertRaisesRegex(ValueError, 'forest.trees'):
      program.roles(more, 0, **given)
    with self.assertRaisesRegex(ValueError, "index of 'w2'"):
      names = {'w0': 0, 'w1': 1}
      program.roles(group._replace(names=names), 0, **given)
    gather = group._replace(forest=pack(star, collective='allgather'))
    with self.assertRaisesRegex(ValueError, 'allreduce'):
      program.roles(gather, 0, **given)
    tree = forest.trees[0]
    for wrong in (
      dataclasses.replace(tree, up=tree.up[:1]),
      dataclasses.replace(tree, down=[]),
      dataclasses.replace(tree, up=[(h[-1], h[0]) for h in tree.up]),
    ):
      odd = dataclasses.replace(forest, trees=(wrong,))
      with self.assertRaisesRegex(ValueError, 'forest.trees'):
        program.roles(group._replace(forest=odd), 0, **given)


if __name__ == '__main__':
  absltest.main()
