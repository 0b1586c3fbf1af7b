"""Tests for topology/forests/compact.py."""

import json
import random

from absl.testing import absltest, parameterized

import topology
from route import links, selection
from topology.baselines import schemes
from topology.clusters.builders import build_cluster
from topology.forests import compact, export

_SPECS = (
  'full_mesh(4, "100/3")',
  'star([10, 20, 30], [5, 6, 7])',
  'tree([2, 3], [[30, 20], 25])',
  'random_mesh(5, 1)',
  'random_switched(5, 3, 4)',
  'ring(1, 1)',
)


def _make_ring(count, build=schemes.naive_ring):
  cluster = links.read_cluster('', count)
  return cluster, build(cluster, selection.make_empty(cluster))


class CompactTest(parameterized.TestCase):
  @parameterized.product(
    spec=_SPECS, collective=('allreduce', 'allgather', 'reduce_scatter')
  )
  def test_packed_forests_are_read_back(self, spec, collective):
    cluster = build_cluster(spec)
    forest = topology.pack(cluster, collective=collective)
    data = json.loads(json.dumps(compact.to_json(cluster, forest)))
    self.assertEqual(compact.from_json(data), (cluster, forest))

  @parameterized.product(
    count=(2, 3, 8, 13),
    build=(schemes.naive_ring, schemes.naive_ring_both_ways),
  )
  def test_rings_are_read_back(self, count, build):
    cluster, forest = _make_ring(count, build)
    data = json.loads(json.dumps(compact.to_json(cluster, forest)))
    self.assertEqual(compact.from_json(data), (cluster, forest))

  def test_a_ring_has_few_runs_in_each_tree(self):
    cluster, forest = _make_ring(64)
    form = compact.compress(forest)
    self.assertLen(form.hops, 64)
    for runs in (*form.up, *form.down):
      self.assertLessEqual(len(runs), 6)
    size, whole = (
      len(json.dumps(module.to_json(cluster, forest)))
      for module in (compact, export)
    )
    self.assertLess(size, whole / 8)

  @parameterized.parameters(range(10))
  def test_runs_of_shuffled_hops_are_these_hops(self, seed):
    source = random.Random(seed)
    _, forest = _make_ring(9)
    for tree in forest.trees:  # In some places the order differs.
      for hops in (tree.up, tree.down):
        a, b = source.choices(range(len(hops)), k=2)
        hops[a], hops[b] = hops[b], hops[a]
    form = compact.compress(forest)
    self.assertLen({*form.hops}, len(form.hops))
    for tree, *both in zip(forest.trees, form.up, form.down, strict=True):
      for hops, runs in zip((tree.up, tree.down), both, strict=True):
        pairs = zip(runs[::2], runs[1::2], strict=True)
        found = [hop for a, b in pairs for hop in form.hops[a:b]]
        self.assertEqual(found, hops)

  @parameterized.parameters(
    ([0], r'trees: expected pairs of ends, got 1 ends'),
    ([0, 9], r'trees: expected each of 4 hops at most once, got 0 to 9'),
    ([0, 3, 0, 3], r'trees: expected each .* got 0 to 3 after 3 hops'),
    ([2, 1], r'trees: expected ends of a run, got 2, 1'),
    ([-2, 1], r'trees: expected ends of a run, got -2, 1'),
    ([False, True], r'trees: expected ends of a run, got False, True'),
    ([0.0, 1.0], r'trees: expected ends of a run, got 0.0, 1.0'),
    (7, r'trees: expected rows with runs of hops'),
    ([0, 1], r'forest: Tree 0: '),
  )
  def test_other_runs_are_refused(self, runs, message):
    data = compact.to_json(*_make_ring(4))
    data['trees'][0]['up'] = runs
    with self.assertRaisesRegex(ValueError, message):
      compact.from_json(data)

  @parameterized.parameters(
    ('hops', 3, r'hops: expected a list, got 3'),
    ('hops', [3, 4, 5, 6], r'trees\[0\].up'),
    ('trees', 3, r'trees: expected rows'),
    ('trees', [{}], r'trees: expected rows'),
    ('other', 3, r'other: expected none'),
  )
  def test_other_fields_are_refused(self, field, value, message):
    data = compact.to_json(*_make_ring(4))
    data[field] = value
    with self.assertRaisesRegex(ValueError, message):
      compact.from_json(data)


if __name__ == '__main__':
  absltest.main()
