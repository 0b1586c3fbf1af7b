"""Tests for rows on links under the virtual clock."""

import collections
import json
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

import analysis
import cluster.traffic
from analysis import traffic
from tests.support import small
from topology import pack
from topology.clusters.builders import build_cluster
from topology.forests import dealing

_CHUNK = 3 * 2**14
_FIELDS = {
  'cluster__workers': 4,
  'cluster__speed__slowdown': (1.0,),
  'cluster__speed__fixed_s': 0.5,
  'cluster__speed__per_example_s': 0.0,
  'cluster__network__worker_up_Bps': (125e6,),
  'cluster__network__worker_down_Bps': (125e6,),
  'epochs': 1.0,
  'eval_every': 0.5,
}


def _run(size_bytes, route, **changed):
  fields = {'route__name': route, **_FIELDS, **changed}
  run = small.build(small.timing(size_bytes=size_bytes, **fields))
  return run, run()


def _links(run, did):
  rows = analysis.read(run.files.workdir).link_rows
  return [row for row in rows if row['did'] == did]


def _by_ends(rates, field):
  return {(row['src'], row['dst']): row[field] for row in rates}


def _count_sent(forest, names, sizes):
  """Bytes from worker to worker, hop by hop and chunk by chunk."""
  found = collections.Counter()
  shares = [float(tree.share) for tree in forest.trees]
  for size, tree in zip(sizes, dealing.deal(shares, sizes), strict=True):
    for hop in (*forest.trees[tree].up, *forest.trees[tree].down):
      found[names[hop[0]], names[hop[-1]]] += size
  return found


class RowsTest(parameterized.TestCase):
  @parameterized.parameters(
    ('ring', {'cluster__network__worker_up_Bps': (1e6, 2e6, 3e6, 4e6)}),
    (
      'forest',
      {'cluster__links': 'random_mesh(4, 7)'}
      | {'route__forest__cluster': 'random_mesh(4, 7)'},
    ),
    ('native', {}),
  )
  def test_rows_have_the_bytes_of_each_link(self, route, changed):
    size = 37 * _CHUNK + 400
    run, summary = _run(
      size, route, route__bucket_bytes=float('inf'), **changed
    )

    (formed,) = _links(run, 'forest')
    rows = _links(run, 'traffic')
    self.assertLen(rows, 2)  # Evaluations.
    self.assertEqual(sum(row['iterations'] for row in rows), summary['updates'])
    planned = traffic.parse_epoch(formed, run.files.workdir).plan
    self.assertEqual(planned.size_bytes, size)
    chunk = dealing.chunk_bytes(size, planned.forest)
    self.assertEqual(planned.chunk_bytes, chunk)
    whole, rest = divmod(size, chunk)
    sizes = [chunk] * whole + [rest]
    each = _count_sent(planned.forest, planned.names, sizes)
    for row in rows:
      wanted = {ends: row['iterations'] * n for ends, n in each.items()}
      self.assertEqual(_by_ends(row['rates'], 'bytes'), wanted)
      self.assertEqual(row['links'], len(wanted))
    total = sum(sum(_by_ends(row['rates'], 'bytes').values()) for row in rows)
    self.assertEqual(total, summary['bytes'])

  def test_traffic_is_as_planned_if_links_are_as_assumed(self):
    links = 'star([1, 2, 3, 1], [2, 1, 1, 1])'
    run, _ = _run(10**7, 'forest', cluster__links=links)

    planned = _links(run, 'forest')[0]['rates']
    loads = collections.Counter()
    epoch = traffic.longest_epoch(analysis.read(run.files.workdir))
    for tree in epoch.plan.forest.trees:
      for hop in (*tree.up, *tree.down):
        ends = tuple(epoch.plan.names[hop[k]] for k in (0, -1))
        loads[ends] += tree.weight_Bps
    wanted = {ends: float(load) for ends, load in loads.items()}
    self.assertEqual(_by_ends(planned, 'planned_Bps'), wanted)
    for row in _links(run, 'traffic'):
      for rate in row['rates']:
        np.testing.assert_allclose(rate['Bps'], rate['planned_Bps'])
    self.assertTrue(epoch.plan.has_rates)

  def test_links_that_are_slower_than_assumed_have_lower_rates(self):
    run, _ = _run(
      10**7,
      'forest',
      cluster__links='star([1, 1, 1, "0.25"])',
      route__forest__cluster='star([1, 1, 1, 1])',
    )
    links = traffic.longest_epoch(analysis.read(run.files.workdir)).sum_links()
    # All trees are as slow as the one host is.
    for link in links.values():
      self.assertAlmostEqual(link.ratio, 0.25)

  def test_phases_add_up_to_an_iteration(self):
    run, summary = _run(
      10**6, 'ring', cluster__speed__slowdown=(1.0, 1.0, 2.0, 4.0)
    )
    rows = _links(run, 'traffic')
    for phase, seconds in summary['worker_seconds'].items():
      if phase != 'pull':
        parts = (row['iterations'] * 4 * row[f'{phase}_s'] for row in rows)
        self.assertAlmostEqual(sum(parts), seconds)
    self.assertAlmostEqual(rows[0]['compute_s'], 0.5 * (1 + 1 + 2 + 4) / 4)

  def test_the_remaining_workers_have_another_forest(self):
    run, _ = _run(
      10**6, 'ring', cluster__script=((1.2, 'leave', 1), (2.4, 'join', 1))
    )
    found = traffic.read_epochs(analysis.read(run.files.workdir))
    members = [tuple(each.members) for each in found]
    self.assertEqual(members, [(0, 1, 2, 3), (0, 2, 3), (0, 1, 2, 3)])
    versions = [each.version for each in found]
    self.assertEqual(
      [each.iterations for each in found[:2]], np.diff(versions).tolist()
    )
    for each in found:
      workers = {k for ends in each.sum_links() for k in ends}
      self.assertEqual(workers, {*each.members})

  def test_the_timeline_has_counters(self):
    run, _ = _run(10**6, 'ring')
    rows = json.loads((run.files.workdir / 'trace.json').read_text())
    shown = [row for row in rows if row['ph'] == 'C']
    starts = [row['since'] for row in _links(run, 'traffic')]
    self.assertEqual(
      sorted({row['ts'] for row in shown}), [1e6 * s for s in starts]
    )
    for row in shown:
      self.assertRegex(row['name'], r'worker \d to \d, MB/s')
      self.assertGreater(row['args']['measured'], 0)

  def test_a_row_of_many_links_has_the_slowest(self):
    with mock.patch.object(cluster.traffic, '_MOST', 3):
      run, _ = _run(10**6, 'ring')
    rows = list(_links(run, 'traffic'))
    self.assertNotEmpty(rows)
    for row in rows:
      self.assertEqual((row['links'], len(row['rates'])), (4, 3))

  def test_a_run_with_servers_has_no_rows_on_links(self):
    run = small.build(small.timing())
    run()
    self.assertEqual(traffic.read_epochs(analysis.read(run.files.workdir)), [])
    with self.assertRaisesRegex(ValueError, 'expected rows on links, .* none'):
      traffic.longest_epoch(analysis.read(run.files.workdir))


class PlannedTest(absltest.TestCase):
  def test_equal_links_are_planned_as_fast_as_the_fastest(self):
    run, _ = _run(
      10**6, 'ring', cluster__network__worker_up_Bps=(1e6, 4e6, 2e6, 2e6)
    )
    epoch = traffic.longest_epoch(analysis.read(run.files.workdir))
    self.assertFalse(epoch.plan.has_rates)
    links = epoch.sum_links()
    self.assertAlmostEqual(max(link.ratio for link in links.values()), 1.0)
    self.assertLen(links, 4)
    path = run.files.workdir / 'events.jsonl'
    path.write_text(path.read_text().replace('"share":"1/4"', '"share":"1/5"'))
    with self.assertRaisesRegex(ValueError, 'hash: expected that of the fores'):
      traffic.longest_epoch(analysis.read(run.files.workdir))

  def test_forests_are_written_as_they_are(self):
    cluster = build_cluster('random_mesh(4, 7)')
    packed = pack(cluster)
    run, _ = _run(10**8, 'forest', cluster__links='random_mesh(4, 7)')
    found = traffic.longest_epoch(analysis.read(run.files.workdir)).plan
    self.assertEqual(found.cluster, cluster)
    self.assertLessEqual(found.forest.rate_Bps, packed.rate_Bps)


if __name__ == '__main__':
  absltest.main()
