"""Tests for what workers have sent, added up for rows."""

import json
import types

import numpy as np
from absl.testing import absltest

from cluster.allreduce.rendezvous import Rendezvous
from cluster.network.messages import Connected, StateDigest
from cluster.probing.traffic import TrafficLog
from cluster.traffic import Traffic
from outputs.accounting import Accounting
from route import links, ring
from tests.support import executors
from topology.clusters.builders import build_cluster
from topology.forests import dealing, export
from topology.packing.pack import pack

_HEADER = 48  # Bytes of a frame's.


class TrafficLogTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.rows = []
    self.recorder = types.SimpleNamespace(
      accounting=Accounting(),
      record_links=self.rows.append,
      record_traffic=self.rows.append,
    )
    self._make(
      Rendezvous(links.make_equal(3), ring.build_in_order, size_bytes=1000)
    )

  def _make(self, formation):
    self.formation = formation
    for index in range(3):
      formation.add(index, f'10.0.0.{index}:1')
    self.log = TrafficLog(formation, Traffic(self.recorder))

  def _form(self, time, version, members, sent, lives=(0, 0, 0)):
    self.formation.form(members, version)
    for index in members:
      report = Connected(0, version, '', sent[index])
      self.log.take_connected(index, lives[index], report)
    self.log.begin_epoch(time, version, 'a worker joins')

  def _check(self, time, version, sent):
    for index, own in enumerate(sent):
      report = StateDigest(0, version, '', own)
      self.log.take_compared(index, 0, report, time)

  def _rates(self, row):
    json.dumps(row)
    return {
      (rate['src'], rate['dst']): (rate['bytes'], rate['busy_s'], rate['Bps'])
      for rate in row['rates']
      if 'bytes' in rate
    }

  def test_a_row_has_the_traffic_since_the_last_row(self):
    self._form(1.0, 5, [0, 1, 2], [[], [], []])
    self._check(3.0, 15, [[[1, 100, 0.5]], [[2, 80, 0.5]], [[0, 60, 0.0]]])
    self._check(4.0, 20, [[[1, 300, 1.0]], [[2, 80, 0.5]], [[0, 70, 0.1]]])

    formed, first, second = self.rows
    self.assertEqual(
      (formed['did'], formed['why']), ('forest', 'a worker joins')
    )
    self.assertEqual((formed['version'], formed['members']), (5, [0, 1, 2]))
    self.assertFalse(formed['known'])
    self.assertEqual(formed['hash'], export.digest(formed['forest']))
    self.assertEqual(
      self._rates(first),
      {(0, 1): (100, 0.5, 200), (1, 2): (80, 0.5, 160), (2, 0): (60, 0, None)},
    )
    self.assertEqual((first['since'], first['iterations']), (1.0, 10))
    rates = self._rates(second)
    self.assertEqual(rates[0, 1], (200, 0.5, 400))
    self.assertNotIn((1, 2), rates)
    self.assertEqual((second['since'], second['iterations']), (3.0, 5))
    # A ring: everyone sends to the next, and is planned to send all it can.
    for row in self.rows:
      ends = {(rate['src'], rate['dst']) for rate in row['rates']}
      self.assertEqual(ends, {(0, 1), (1, 2), (2, 0)})
      self.assertEqual({rate['planned_Bps'] for rate in row['rates']}, {125e6})

  def test_no_row_is_written_before_all_members_have_reported(self):
    self._form(1.0, 0, [0, 1, 2], [[], [], []])
    self._check(2.0, 4, [[], []])
    self.assertLen(self.rows, 1)

  def test_the_last_row_of_an_epoch_has_the_traffic_of_its_survivors(self):
    self._form(0.0, 0, [0, 1, 2], [[], [], []])
    self._form(2.0, 3, [0, 2], [[[1, 30, 0.1]], None, [[0, 10, 0.1]]])
    self._form(
      5.0,
      7,
      [0, 1, 2],
      [[[1, 30, 0.1], [2, 8, 0.1]], [[0, 99, 1]], [[0, 15, 0.2]]],
    )
    # One is another process: its counts are from 0.
    self._form(
      6.0,
      9,
      [0, 1, 2],
      [[[1, 50, 0.1], [2, 8, 0.1]], [], [[0, 15, 0.2]]],
      (0, 1, 0),
    )
    dids = [row['did'] for row in self.rows]
    self.assertEqual(dids, ['forest'] + 3 * ['traffic', 'forest'])
    first, second, third = self.rows[1::2]
    self.assertEqual(
      {k: v[0] for k, v in self._rates(first).items()}, {(0, 1): 30, (2, 0): 10}
    )
    self.assertEqual(
      {k: v[0] for k, v in self._rates(second).items()}, {(0, 2): 8, (2, 0): 5}
    )
    self.assertEqual(
      {k: v[0] for k, v in self._rates(third).items()}, {(0, 1): 20}
    )
    self.assertEqual(
      [row['iterations'] for row in (first, second, third)], [3, 4, 2]
    )
    self.assertRegex(first['why'], 'the membership epoch ends: a worker joins')
    self.assertEqual(
      [row['membership_epoch'] for row in self.rows[::2]], 4 * [0]
    )

  def test_a_run_summed_by_xla_has_no_traffic(self):
    self._make(Rendezvous(None, None, size_bytes=1000))
    self._form(0.0, 0, [0, 1, 2], [[], [], []])
    self.recorder.accounting.iterations = 12
    self.recorder.accounting.seconds['compute'] = 6.0
    self._check(2.0, 4, [[], [], []])
    formed, row = self.rows
    self.assertIsNone(formed['forest'])
    self.assertRegex(formed['why'], 'XLA sums, and does not report')
    self.assertEqual((row['links'], row['rates']), (0, []))
    self.assertEqual((row['compute_s'], row['wait_s']), (0.5, 0.0))

  def test_measured_links_are_known(self):
    cluster = build_cluster('star([1, 1, 1])')
    self._make(Rendezvous(cluster, ring.build_in_order, size_bytes=1000))
    self._form(0.0, 0, [0, 1, 2], [[], [], []])
    self.assertTrue(self.rows[0]['known'])
    self.assertEqual(self.rows[0]['rates'][0]['planned_Bps'], 1e9)


class BytesTest(executors.TestCase):
  def test_executors_count_each_chunk_on_each_hop(self):
    size, chunk = 50_001, 1024
    cluster = build_cluster('random_mesh(4, 3)')
    forest = pack(cluster)
    made, group = self.connect_executors(
      4, (forest, cluster.workers), chunk_bytes=chunk
    )
    for iteration in range(3):
      pools = [np.ones(size, np.float32) for _ in made]
      done = self.allreduce(
        made, iteration, pools, [(0, 20_000), (20_000, size)]
      )
      self.assertEqual(done, [None] * 4)

    sizes = []
    for start, stop in ((0, 20_000), (20_000, size)):
      sizes += [
        4 * min(chunk // 4, stop - at) for at in range(start, stop, chunk // 4)
      ]
    wanted = {}
    shares = [float(tree.share) for tree in forest.trees]
    for count, tree in zip(sizes, dealing.deal(shares, sizes), strict=True):
      for hop in (*forest.trees[tree].up, *forest.trees[tree].down):
        ends = group.names[hop[0]], group.names[hop[-1]]
        wanted[ends] = wanted.get(ends, 0) + 3 * (count + _HEADER)
    found = {
      (src, dst): usage.sent_bytes
      for src, each in enumerate(made)
      for dst, usage in each.traffic().items()
      if usage.sent_bytes
    }
    self.assertEqual(found, wanted)


if __name__ == '__main__':
  absltest.main()
