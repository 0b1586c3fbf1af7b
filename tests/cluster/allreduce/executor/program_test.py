"""Tests for cluster.allreduce.executor.program."""

import dataclasses

from absl.testing import absltest, parameterized

from cluster.allreduce.executor import membership, program
from tests.support import groups
from topology.clusters import shapes
from topology.packing.pack import pack


def _programs(members, size, buckets, chunk_bytes=64):
  return {
    index: program.make_program(
      program.find_roles(members, index, chunk_bytes=chunk_bytes),
      size,
      buckets,
    )
    for index in members.addresses
  }


class ProgramTest(parameterized.TestCase):
  @parameterized.parameters(range(4))
  def test_each_chunk_that_is_sent_is_received(self, seed):
    for name, forest, workers in groups.forests(seed):
      with self.subTest(name):
        members = groups.make_membership(forest, workers)
        buckets = [(0, 1), (1, 1), (1, 200), (200, 401)]
        programs = _programs(members, 401, buckets)
        hops = {}
        for worker, each in programs.items():
          for other, count in each.num_sent.items():
            hops[worker, other] = count
          self.assertEqual(each.layout, programs[0].layout)
        for worker, each in programs.items():
          for other, count in each.num_received.items():
            self.assertEqual(hops.pop((other, worker)), count)
        self.assertEmpty(hops)
        # Each chunk comes once to all but the root, and goes up as often.
        chunks = len(programs[0].trees)
        self.assertEqual(
          sum(sum(each.num_sent.values()) for each in programs.values()),
          2 * (len(workers) - 1) * chunks,
        )

  def test_chunks_lie_in_one_bucket_and_cover_it(self):
    star = shapes.star([1, 1, 1])
    members = groups.make_membership(pack(star), star.workers)
    buckets = [(0, 40), (40, 40), (40, 41), (41, 57), (57, 90)]
    programs = _programs(members, 90, buckets)[0]
    bounds = [
      list(zip(programs.starts[a:b], programs.stops[a:b], strict=True))
      for a, b in programs.bucket_chunks
    ]
    expected = [
      [(0, 16), (16, 32), (32, 40)],
      [],
      [(40, 41)],
      [(41, 57)],
      [(57, 73), (73, 89), (89, 90)],
    ]
    self.assertEqual(bounds, expected)

  def test_one_member_sends_nothing(self):
    alone = membership.Membership(
      1, {3: '127.0.0.1:1'}, pack(shapes.star([1])), {}
    )
    programs = program.make_program(
      program.find_roles(alone, 3, chunk_bytes=64), 40, [(0, 40)]
    )
    self.assertEqual((programs.num_sent, programs.num_received), ({}, {}))
    self.assertEqual(programs.trees, [0, 0, 0])

  @parameterized.parameters(
    ([(0, 5), (6, 9)], 'one from 5 on'),
    ([(0, 5), (5, 4)], 'one from 5 on'),
    ([(1, 9)], 'one from 0 on'),
    ([(0, 8)], 'to end at 9'),
  )
  def test_buckets_with_gaps_are_rejected(self, buckets, message):
    star = shapes.star([1, 1])
    with self.assertRaisesRegex(ValueError, message):
      _programs(groups.make_membership(pack(star), star.workers), 9, buckets)

  def test_forests_that_do_not_span_the_members_are_rejected(self):
    star = shapes.star([1, 1, 1])
    forest = pack(star)
    members = groups.make_membership(forest, star.workers)
    given = {'chunk_bytes': 64}
    with self.assertRaisesRegex(ValueError, 'worker 5'):
      program.find_roles(members, 5, **given)
    more = members._replace(addresses={**members.addresses, 3: ''})
    with self.assertRaisesRegex(ValueError, 'forest.trees'):
      program.find_roles(more, 0, **given)
    with self.assertRaisesRegex(ValueError, "index of 'w2'"):
      names = {'w0': 0, 'w1': 1}
      program.find_roles(members._replace(names=names), 0, **given)
    gather = members._replace(forest=pack(star, collective='allgather'))
    with self.assertRaisesRegex(ValueError, 'allreduce'):
      program.find_roles(gather, 0, **given)
    tree = forest.trees[0]
    for wrong in (
      dataclasses.replace(tree, up=tree.up[:1]),
      dataclasses.replace(tree, down=[]),
      dataclasses.replace(tree, up=[(h[-1], h[0]) for h in tree.up]),
    ):
      odd = dataclasses.replace(forest, trees=(wrong,))
      with self.assertRaisesRegex(ValueError, 'forest.trees'):
        program.find_roles(members._replace(forest=odd), 0, **given)


if __name__ == '__main__':
  absltest.main()
