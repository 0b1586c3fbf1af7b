"""Tests for following links: traffic, repacking, and records."""

import itertools
import json
import pathlib
import queue
import tempfile
import threading
import time
from fractions import Fraction

import pytest
from absl.testing import absltest

from cluster.allreduce.executor.executor import Usage
from cluster.allreduce.rendezvous import Rendezvous
from cluster.network import messages
from cluster.network.errors import Closed
from cluster.network.messages import TrafficReport
from cluster.probing.follower import LinkFollower
from cluster.probing.rates import RateWindows, TrafficReporter
from cluster.traffic import Sent
from route import forest
from tests.support import changing_links, requires
from topology.clusters import cluster as clusters
from topology.clusters import measured, shapes

_SIZE = 5_000_000
_FAST, _SLOW = ['0.025'] * 4, ['0.025'] * 3 + ['0.00625']


def _content(rates):
  """Returns the content of a file of links of hosts with such rates."""
  up = tuple(map(Fraction, rates))
  graph = measured.build_cluster(measured.Rates(up, up, {}))
  latency_s = [
    {'src': f'host{i}', 'dst': f'host{j}', 's': 1e-4}
    for i, j in itertools.permutations(range(len(rates)), 2)
  ]
  return clusters.to_json(graph) | {'latency_s': latency_s}


class LinkFollowerTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.events, self.rows = queue.SimpleQueue(), []
    self.formation = Rendezvous(
      shapes.star(_FAST),
      forest.build_forest,
      size_bytes=_SIZE,
    )
    for index in range(4):
      self.formation.add(index, f'10.0.0.{index}:1')
    self.follower = LinkFollower(
      self.formation,
      size_bytes=_SIZE,
      put_event=self.events.put,
      record=self.rows.append,
    )
    self.now_s = 0.0
    self._sent = dict.fromkeys(itertools.permutations(range(4), 2), (0, 0.0))
    self._form()

  def test_a_link_that_drops_has_another_forest_packed_and_used(self):
    first = self.formation.packed
    self._iterate(40, took_s=0.3, rate=8e6)
    self.assertEmpty(self.rows)
    self._iterate(40, took_s=1.2, rate=2e6)
    self.assertRegex(
      self.follower.interruption, 'links are measured, as sums take'
    )
    self.assertTrue(self.follower.end_epoch())
    self._measure(_SLOW)
    self._form()  # With the forest of before, while another one is packed.
    self.assertIs(self.formation.packed, first)
    self._iterate(2, took_s=1.2, rate=2e6)
    self.follower.take_forest(self.events.get(timeout=10), self.now_s)
    self.assertRegex(self.follower.interruption, 'another forest is faster')
    self.assertFalse(self.follower.end_epoch())
    self._form()
    second = self.formation.packed
    self.assertIsNot(second, first)
    self.assertNotEqual(second.links, first.links)
    self._iterate(12, took_s=0.85, rate=3e6)
    dids = [row['did'] for row in self.rows]
    self.assertEqual(dids, ['measure', 'switch', 'stay'])
    measure, switch, _ = self.rows
    rates = {(row['src'], row['dst']): row for row in measure['rates']}
    self.assertAlmostEqual(rates[0, 1]['Bps'], 8e6, delta=1e4)
    self.assertEqual(rates[0, 1]['planned_Bps'], 25_000_000)
    rates = {(row['src'], row['dst']): row for row in switch['rates']}
    self.assertEqual(rates[0, 3]['Bps'], 6_250_000)
    self.assertEqual(rates[0, 3]['planned_Bps'], 25_000_000)
    self.assertGreater(switch['old_s'], 1.1 * switch['new_s'])
    json.dumps(self.rows)

  def test_a_forest_that_saves_nothing_is_replaced_by_the_one_before(self):
    first = self.formation.packed
    self._switch()
    self._iterate(12, took_s=1.15, rate=3e6)
    self.assertEqual(self.rows[-1]['did'], 'back')
    self.assertRegex(self.follower.interruption, 'forest of before')
    self.follower.end_epoch()
    self._form()
    self.assertIs(self.formation.packed, first)

  def test_links_with_the_expected_rates_change_nothing(self):
    self._iterate(40, took_s=0.5, rate=8e6)
    self.assertTrue(self.follower.end_epoch())
    self._measure(_FAST)
    self._form()
    self.follower.take_forest(self.events.get(timeout=10), self.now_s)
    self.assertEqual(self.follower.interruption, '')
    self.assertEqual([row['did'] for row in self.rows], ['measure', 'keep'])

  def test_after_a_death_the_forest_is_packed_for_the_measured_links(self):
    self._iterate(40, took_s=1.2, rate=2e6)
    self.follower.end_epoch()
    self._measure(_SLOW)
    self.formation.form([0, 1, 2], 1)
    self.follower.begin_epoch()
    self.assertLen(self.formation.packed.links.workers, 3)
    names = self.formation.packed.cluster.nodes
    self.assertIn('net0', names)
    self.follower.take_forest(self.events.get(timeout=10), self.now_s)
    self.assertEqual(self.follower.interruption, '')

  def test_a_link_that_is_lost_a_second_time_is_not_used(self):
    self._lose(0, 1)
    self.assertNotIn((0, 1), self._pairs())
    self._switch()  # All pairs were measured: they can connect again.
    self.assertIn((0, 1), self._pairs())
    self._lose(0, 1)
    self.assertNotIn((0, 1), self._pairs())

  def test_a_failed_survey_changes_nothing(self):
    self._iterate(40, took_s=0.5, rate=8e6)
    self.follower.end_epoch()
    self.follower.take_measurement(self.now_s, None, 3.0)
    self._form()
    self._iterate(40, took_s=0.5, rate=8e6)
    self.assertEqual([row['did'] for row in self.rows], ['measure'])

  def _switch(self):
    self._iterate(40, took_s=0.3, rate=8e6)
    self._iterate(40, took_s=1.2, rate=2e6)
    self.follower.end_epoch()
    self._measure(_SLOW)
    self._form()
    self._iterate(2, took_s=1.2, rate=2e6)
    self.follower.take_forest(self.events.get(timeout=10), self.now_s)
    self.follower.end_epoch()
    self._form()

  def _form(self):
    self.formation.form([*range(4)], 0)
    self.follower.begin_epoch()

  def _lose(self, *pair):
    for _ in range(2):  # Once may be a mishap.
      self.formation.suspect(*pair)
      self._form()

  def _pairs(self):
    """Returns between which workers its forest has connections."""
    workers = self.formation.packed.links.workers
    return {
      (workers.index(hop[0]), workers.index(hop[-1]))
      for tree in self.formation.packed.forest.trees
      for hop in (*tree.up, *tree.down)
    }

  def _measure(self, rates):
    self.now_s += 3.0
    self.follower.take_measurement(self.now_s, _content(rates), 3.0)

  def _iterate(self, count, *, took_s, rate):
    """Iterations until something is to be done."""
    for _ in range(count):
      if self.follower.interruption:
        return
      self.now_s += took_s
      for (src, dst), (sent, busy_s) in self._sent.items():
        self._sent[src, dst] = sent + round(rate * took_s), busy_s + took_s
      for src in range(4):
        rows = [[d, *s] for (k, d), s in self._sent.items() if k == src]
        self.follower.take_traffic(src, TrafficReport(rows))
      self.follower.end_iteration(self.now_s, took_s, is_complete=True)


class RateWindowsTest(absltest.TestCase):
  def test_rates_are_bytes_over_the_time_of_sending(self):
    windows = RateWindows()
    windows.take(0, [[1, 1000, 1.0]])
    windows.take(1, [[0, 50, 0.5]])
    self.assertIsNone(windows.end_iteration(1.0, (0, 1)))  # The first begins.
    windows.take(0, [[1, 5000, 3.0]])
    for at in (1.5, 2.0, 2.5):
      self.assertIsNone(windows.end_iteration(at, (0, 1)))
    windows.take(1, [[0, 70, 0.51]])  # Too short to show anything.
    self.assertEqual(windows.end_iteration(3.5, (0, 1)), {(0, 1): 2000.0})

  def test_counts_of_a_worker_that_rejoins_begin_at_zero(self):
    windows = RateWindows()
    windows.take(0, [[1, 1000, 1.0]])
    windows.end_iteration(1.0, (0,))
    windows.take(0, [[1, 10, 0.1]])
    for at in (2.0, 3.0, 4.0):
      windows.end_iteration(at, (0,))
    self.assertEqual(windows.end_iteration(5.0, (0,)), {})

  def test_traffic_of_another_forest_does_not_count(self):
    windows = RateWindows()
    windows.take(0, [[1, 1000, 1.0]])
    windows.end_iteration(1.0, (0,))
    windows.clear()
    for at in (2.0, 3.0, 4.0, 9.0):
      self.assertIsNone(windows.end_iteration(at, (0,)))


class TrafficReporterTest(absltest.TestCase):
  def test_reports_until_its_context_ends_or_the_stream_does(self):
    sent, gone = queue.SimpleQueue(), threading.Event()

    def send(message):
      sent.put(messages.FROM_REPLICA.decode(messages.encode(message)))
      if sent.qsize() > 2:
        gone.set()
        raise Closed('gone')

    with TrafficReporter(lambda: {3: Usage(10, 20, 0.5)}, send, period_s=0.01):
      self.assertTrue(gone.wait(10))
      time.sleep(0.05)
    self.assertEqual(sent.qsize(), 3)
    report = sent.get()
    self.assertEqual(report, TrafficReport([(3, 10, 0.5)]))
    self.assertEqual(Sent(1, 2.0)._fields, ('bytes', 'busy_s'))


@pytest.mark.soak
class LabTest(absltest.TestCase):
  """Links that change in the middle of a real run."""

  def setUp(self):
    super().setUp()
    requires.lab()
    self.out = pathlib.Path(tempfile.mkdtemp())

  def test_the_rate_of_a_throttled_link_is_recovered(self):
    times = changing_links.measure_throttling(self.out, 90)
    print(times)
    self.assertLess(times.adapted_s, 1.1 * times.fresh_s)
    self.assertLess(times.adapted_s, 0.9 * times.fixed_s)

  def test_noise_of_a_tenth_changes_nothing(self):
    self.assertNotIn('switch', changing_links.run_with_noise(self.out, 500))


if __name__ == '__main__':
  absltest.main()
