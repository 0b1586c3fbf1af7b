"""Tests for routes that sum among workers: their forests and rejected links."""

import importlib
import json
import pathlib
import tempfile
from fractions import Fraction

from absl.testing import absltest, parameterized

import topology
from route import forest, links, ring, selection
from route.route import Allreduce
from tests.support import small
from topology.clusters import cluster as clusters
from topology.clusters import measured, shapes
from topology.clusters.pruned import remove

_ROUTES = ('ring', 'hierarchical', 'double_tree', 'forest', 'auto')
_MB = 10**6


def _plan(name, *, cluster=None, known=None, workers=6, distributed=False):
  own = {'port': 0, 'combine_bytes': 0.0} if name == 'native' else {}
  if cluster is not None:
    own['cluster'] = cluster
  return (
    importlib.import_module(f'route.{name}')
    .make(**own)
    .plan(
      known,
      num_workers=workers,
      distributed=distributed,
      divisible=True,
      bucket_bytes=1e6,
      overlap=True,
    )
  )


def _groups():
  """Returns two groups of three hosts, with slow pairs between them."""
  slow = {
    (i, j): Fraction('0.0025')
    for i in range(6)
    for j in range(6)
    if i // 3 != j // 3
  }
  rate = (Fraction('0.025'),) * 6
  return measured.build_cluster(measured.Rates(rate, rate, slow))


class ForestTest(parameterized.TestCase):
  @parameterized.product(name=_ROUTES, distributed=[False, True])
  def test_every_forest_is_sound_also_after_workers_have_left(
    self, name, distributed
  ):
    cluster = _groups()
    plan = _plan(name, cluster='probe', known=cluster, distributed=distributed)
    self.assertIsNone(plan.cluster)

    for left in (
      cluster,
      remove(cluster, workers=['host1']),
      remove(cluster, workers=['host3', 'host4', 'host5']),
      remove(cluster, pairs=[('host0', 'host1'), ('host4', 'host0')]),
    ):
      found = plan.forest(left, 5 * _MB)
      topology.check(left, found, relays=True)
    self.assertEqual(found, plan.forest(left, 5 * _MB))

  def test_an_empty_forest_has_the_bound_of_the_links_of_workers(self):
    # Each of 3 workers but the root sends up, and as many hops lead down.
    empty = selection.make_empty(shapes.star([4, 2, 2, 2], [9, 9, 9, 9]))
    self.assertEqual(empty.bound_Bps, Fraction(4 + 2 + 2 + 2, 2 * 3) * 10**9)

  def test_trees_that_are_hardly_faster_than_rings_are_not_used(self):
    gains = []
    for slow in (100, 99, 98, 97, 95, 90, 80, 50):
      cluster = shapes.star([100, 100, 100, slow])
      best, candidates = forest.compare_candidates(cluster, 100 * _MB, 0.0)
      plain, packed = (
        selection.choose_fastest(
          [
            each
            for each in candidates
            if (each.name in ('sharded', 'ring', 'ring both ways')) == is_plain
          ]
        )
        for is_plain in (True, False)
      )
      gains.append(plain.seconds / packed.seconds)
      self.assertIs(best, packed if gains[-1] >= 1.05 else plain)
    self.assertBetween(sorted(gains)[len(gains) // 2], 1.001, 1.05)
    self.assertGreater(max(gains), 1.05)

  @parameterized.parameters(*_ROUTES)
  def test_the_last_worker_needs_no_trees(self, name):
    alone = remove(_groups(), workers=[f'host{i}' for i in range(5)])
    found = _plan(name, cluster='probe').forest(alone, 5 * _MB)
    self.assertEqual(found.trees, ())

  def test_a_hierarchy_of_one_group_is_a_ring_with_a_warning(self):
    plan = _plan('hierarchical', cluster='probe', distributed=True)
    with self.assertLogs(level='WARNING') as logs:
      found = plan.forest(shapes.star([1] * 3), 5 * _MB)
    self.assertIn('%d workers are one group; using a ring', str(logs))
    self.assertEqual(found, ring.build_in_order(shapes.star([1] * 3)))

  @parameterized.parameters(5, 25)
  def test_a_packed_forest_is_the_fastest_on_unequal_links(self, megabytes):
    cluster = _groups()
    size = megabytes * _MB
    fluid_s = float(size / topology.pack(cluster).rate_Bps)

    best, candidates = forest.compare_candidates(cluster, size, 1e-4)

    self.assertLess(fluid_s / best.seconds, 1)
    self.assertGreater(fluid_s / best.seconds, 0.8)
    plain = [t.seconds for t in candidates if t.name in ('sharded', 'ring')]
    self.assertLess(best.seconds * 1.05, min(plain))
    self.assertLessEqual(len(best.forest.trees), 32)

  def test_a_ring_is_chosen_on_equal_links(self):
    best, _ = forest.compare_candidates(
      shapes.star(['0.025'] * 4), 5 * _MB, 1e-4
    )
    self.assertEqual(best.name, 'ring')
    self.assertEqual(best.forest.rate_Bps, Fraction(4 * 25 * _MB, 6))

  def test_small_messages_with_high_latency_use_shallow_trees(self):
    star = shapes.star([1] * 16)
    best, _ = forest.compare_candidates(star, 1000, 0.01)
    self.assertEqual(max(tree.depth for tree in best.forest.trees), 1)

  def test_a_ring_has_the_best_order_on_unequal_links(self):
    star, groups = shapes.star([1] * 6), _groups()
    slow = shapes.star([1, 2, 1, 2, 1, 2])
    for cluster, rings in ((star, ''), (slow, 'probe'), (groups, 'probe')):
      found = _plan('ring', cluster=rings).forest(cluster, 5 * _MB)
      best = ring.build_in_order(cluster).rate_Bps
      self.assertGreaterEqual(found.rate_Bps, best)
    self.assertEqual(
      ring.build_in_order(star).rate_Bps, Fraction(6 * 10**9, 10)
    )

  def test_headers_enlarge_messages_on_real_links(self):
    sizes = []

    def found(cluster, size_bytes, latency_s):
      sizes.append(size_bytes)
      return cluster, latency_s

    route = _plan('forest', cluster='probe', distributed=True)
    real = type(route.forest)(found)
    self.assertEqual(real(1, 94 * _MB, 2), (1, 2))
    self.assertEqual(sizes, [100 * _MB])
    self.assertFalse(hasattr(_plan('forest', cluster='').forest, 'forest'))


class ChosenLinksTest(parameterized.TestCase):
  def test_clusters_come_from_files_builders_or_equal_links(self):
    path = pathlib.Path(tempfile.mkdtemp(), 'cluster.json')
    path.write_text(json.dumps(clusters.to_json(_groups())))
    self.assertEqual(links.read_cluster(str(path), 6), _groups())
    self.assertEqual(links.read_cluster('ring(6, 2)', 6), shapes.ring(6, 2))
    equal = links.read_cluster('', 6)
    self.assertLen({link.GBps for link in equal.links}, 1)
    self.assertLen(equal.workers, 6)
    self.assertIsNone(links.read_cluster('probe', 6))

  @parameterized.parameters(
    ('ring(4, 1)', r'^cluster: expected as many workers .*, 6, got 4'),
    ('rink(6, 1)', r"^cluster: .* got 'rink\(6, 1\)': .* one of"),
    ('none.json', r"^cluster: .* got 'none.json': .*No such file"),
    (__file__, r'^cluster: .*expected JSON'),
  )
  def test_links_of_other_workers_are_rejected(self, spec, message):
    for name in _ROUTES:
      with self.assertRaisesRegex(ValueError, message):
        _plan(name, cluster=spec)

  def test_an_unreachable_worker_is_rejected(self):
    data = clusters.to_json(shapes.line(6, 1))
    data['links'] = data['links'][:-1]
    path = pathlib.Path(tempfile.mkdtemp(), 'cluster.json')
    path.write_text(json.dumps(data))
    with self.assertRaisesRegex(ValueError, '^cluster: .*unreachable'):
      _plan('forest', cluster=str(path))

  def test_a_hierarchy_needs_groups(self):
    with self.assertRaisesRegex(ValueError, '^cluster: .*groups of workers'):
      _plan('hierarchical', cluster='')
    self.assertEqual(_plan('hierarchical', cluster='', workers=1).name[0], 'h')

  def test_links_of_the_virtual_clock_have_the_latency_of_hosts(self):
    found = links.read_virtual(
      small.config(
        cluster__network__worker_up_Bps=(1e6, 2e6, float('inf')),
        cluster__network__worker_latency_s=(0.1, 0.2, 0.4),
      )
    )
    self.assertEqual(found.cluster.capacity_Bps['w1', 's0'], 2 * _MB)
    self.assertGreater(found.cluster.capacity_Bps['w2', 's0'], 10**18)
    self.assertEqual(found.latency_s['w1', 's0'], 0.2)
    mesh = small.config(
      cluster__links='full_mesh(3, 1)',
      cluster__network__worker_latency_s=(0.1, 0.2, 0.4),
    )
    self.assertAlmostEqual(links.read_virtual(mesh).latency_s['w1', 'w2'], 0.6)


class PlanTest(parameterized.TestCase):
  def test_adapt_is_rejected_under_the_virtual_clock(self):
    route = forest.make(cluster='', adapt=True)
    fields = {'divisible': True, 'bucket_bytes': 0.0, 'overlap': True}
    plan = route.plan(None, num_workers=4, distributed=True, **fields)
    self.assertTrue(plan.adapt)
    with self.assertRaisesRegex(ValueError, 'adapt: expected False under the'):
      route.plan(None, num_workers=4, distributed=False, **fields)

  def test_native_has_no_forest(self):
    self.assertEqual(
      _plan('native'), Allreduce('native', None, None, 1e6, False)
    )

  @parameterized.parameters(
    ({'sync__name': 'asp'}, r"config.route.name: expected 'server', as Asp"),
    (
      {'route__bucket_bytes': -1.0},
      r'config.route.bucket_bytes: .* at least 0',
    ),
    ({'route__bucket_bytes': float('nan')}, r'config.route.bucket_bytes: '),
    ({'route__ring__cluster': 'ring(3)'}, r'config.route.ring.cluster: '),
    (
      {'route__server__servers': 2},
      r'config.route.server.servers: 2 is ignored by',
    ),
    (
      {'route__forest__cluster': ''},
      r'config.route.forest.cluster: .* is ignored by',
    ),
    ({'cluster__links': 'ring(4, 1)'}, r'config.cluster.links: .*, 3, got 4'),
    (
      {'route__name': 'native', 'route__overlap': False},
      r"config.route.overlap: .* because config.route.name is 'native'",
    ),
    ({'route__name': 'hierarchical'}, r'config.route.hierarchical.cluster: '),
    (
      {'route__name': 'server', 'route__bucket_bytes': 5.0},
      r"config.route.bucket_bytes: .* because config.route.name is 'server'",
    ),
    (
      {'route__name': 'server', 'route__overlap': False},
      r'config.route.overlap: ',
    ),
    (
      {'route__name': 'server', 'cluster__links': 'ring(3, 1)'},
      r'config.cluster.links: ',
    ),
    (
      {'cluster__network__server_up_Bps': (1e6,)},
      r"network.server_up_Bps: .* is 'ring', which has no servers; remove it",
    ),
    (
      {'route__name': 'native', 'cluster__network__server_latency_s': (0.1,)},
      r"network.server_latency_s: .* because config.route.name is 'native'",
    ),
    (
      {'cluster__network__servers_in_workers': True},
      r'config.cluster.network.servers_in_workers: True is ignored because',
    ),
  )
  def test_conflicting_fields_are_rejected(self, changed, message):
    limited = {
      f'cluster__network__worker_{link}_Bps': (125e6,)
      for link in ('up', 'down')
    }
    with self.assertRaisesRegex(ValueError, message):
      small.build(small.config(**{'route__name': 'ring'} | limited | changed))

  def test_links_and_bandwidths_of_hosts_exclude_each_other(self):
    message = r'worker_\w+_Bps: .* because config.cluster.links gives'
    with self.assertRaisesRegex(ValueError, message):
      small.build(small.config(route__name='ring', cluster__links='ring(3, 1)'))


class PredictedTest(parameterized.TestCase):
  def test_the_predicted_time_is_fluid_time_plus_fill_plus_latency(self):
    star = shapes.star(['0.025'] * 4)
    name, found = selection.build_shards(star)

    timed = selection.predict_time(name, star, found, 25 * _MB, 1e-3)

    # Links are full until the roots have all sums; then the last chunk goes
    # down.  Two hops of two links each.
    expected = 2 * 3 / 4 * 25 / 25 + 3 * 2**14 / 25e6 + 4e-3
    self.assertAlmostEqual(timed.seconds, expected, places=9)


if __name__ == '__main__':
  absltest.main()
