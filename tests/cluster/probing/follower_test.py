"""Tests for following links: traffic, packing anew, and what is recorded."""

import itertools
import json
import pathlib
import queue
import tempfile
import threading
import time
from fractions import Fraction

import pytest
from absl.testing import absltest, parameterized

from cluster.allreduce.executor.executor import Usage
from cluster.allreduce.formation import Formation
from cluster.network import messages
from cluster.network.errors import Closed
from cluster.network.messages import TrafficReport
from cluster.probing.follower import Adaptation
from cluster.probing.traffic import Sent, Telling, Windows
from route import forest
from tests.support import changing_links
from tests.tools import lab_test
from tools.reading import records
from topology.clusters import cluster as clusters
from topology.clusters import measured, shapes

_SIZE = 5_000_000
_FAST, _SLOW = ['0.025'] * 4, ['0.025'] * 3 + ['0.00625']


def _found(rates):
  """Returns what a measuring of hosts with such rates would write."""
  up = tuple(map(Fraction, rates))
  graph = measured.graph(measured.Rates(up, up, {}))
  latency_s = [
    {'src': f'host{i}', 'dst': f'host{j}', 's': 1e-4}
    for i, j in itertools.permutations(range(len(rates)), 2)
  ]
  return clusters.to_json(graph) | {'latency_s': latency_s}


class AdaptationTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.told, self.rows = queue.SimpleQueue(), []
    self.formation = Formation(
      shapes.star(_FAST),
      forest.forest,
      size_bytes=_SIZE,
    )
    for index in range(4):
      self.formation.came(index, f'10.0.0.{index}:1', f'10.0.0.{index}:2')
    self.adaptation = Adaptation(
      self.formation,
      size_bytes=_SIZE,
      tell=self.told.put,
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
    self.assertRegex(self.adaptation.turns, 'links are measured, as sums take')
    self.assertTrue(self.adaptation.turned())
    self._measure(_SLOW)
    self._form()  # With the forest of before, while another one is packed.
    self.assertIs(self.formation.packed, first)
    self._iterate(2, took_s=1.2, rate=2e6)
    self.adaptation.packed(self.told.get(timeout=10), self.now_s)
    self.assertRegex(self.adaptation.turns, 'another forest is faster')
    self.assertFalse(self.adaptation.turned())
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

  def test_what_does_not_gain_is_given_back(self):
    first = self.formation.packed
    self._switch()
    self._iterate(12, took_s=1.15, rate=3e6)
    self.assertEqual(self.rows[-1]['did'], 'back')
    self.assertRegex(self.adaptation.turns, 'forest of before')
    self.adaptation.turned()
    self._form()
    self.assertIs(self.formation.packed, first)

  def test_links_that_are_as_believed_change_nothing(self):
    self._iterate(40, took_s=0.5, rate=8e6)
    self.assertTrue(self.adaptation.turned())
    self._measure(_FAST)
    self._form()
    self.adaptation.packed(self.told.get(timeout=10), self.now_s)
    self.assertEqual(self.adaptation.turns, '')
    self.assertEqual([row['did'] for row in self.rows], ['measure', 'keep'])

  def test_a_death_meanwhile_has_a_forest_packed_for_what_was_measured(self):
    self._iterate(40, took_s=1.2, rate=2e6)
    self.adaptation.turned()
    self._measure(_SLOW)
    self.formation.form([0, 1, 2], 1)
    self.adaptation.formed()
    self.assertLen(self.formation.packed.links.workers, 3)
    names = self.formation.packed.cluster.nodes
    self.assertIn('net0', names)
    self.adaptation.packed(self.told.get(timeout=10), self.now_s)
    self.assertEqual(self.adaptation.turns, '')

  def test_a_link_that_was_lost_and_is_lost_again_is_not_used(self):
    self._lose(0, 1)
    self.assertNotIn((0, 1), self._pairs())
    self._switch()  # All pairs were measured: they can talk again.
    self.assertIn((0, 1), self._pairs())
    self._lose(0, 1)
    self.assertNotIn((0, 1), self._pairs())

  def test_a_measuring_that_fails_changes_nothing(self):
    self._iterate(40, took_s=0.5, rate=8e6)
    self.adaptation.turned()
    self.adaptation.measured(self.now_s, None, 3.0)
    self._form()
    self._iterate(40, took_s=0.5, rate=8e6)
    self.assertEqual([row['did'] for row in self.rows], ['measure'])

  def _switch(self):
    self._iterate(40, took_s=0.3, rate=8e6)
    self._iterate(40, took_s=1.2, rate=2e6)
    self.adaptation.turned()
    self._measure(_SLOW)
    self._form()
    self._iterate(2, took_s=1.2, rate=2e6)
    self.adaptation.packed(self.told.get(timeout=10), self.now_s)
    self.adaptation.turned()
    self._form()

  def _form(self):
    self.formation.form([*range(4)], 0)
    self.adaptation.formed()

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
    self.adaptation.measured(self.now_s, _found(rates), 3.0)

  def _iterate(self, count, *, took_s, rate):
    """Iterations until something is to be done."""
    for _ in range(count):
      if self.adaptation.turns:
        return
      self.now_s += took_s
      for (src, dst), (sent, busy_s) in self._sent.items():
        self._sent[src, dst] = sent + round(rate * took_s), busy_s + took_s
      for src in range(4):
        rows = [[d, *s] for (k, d), s in self._sent.items() if k == src]
        self.adaptation.traffic(src, TrafficReport(rows))
      self.adaptation.iterated(self.now_s, took_s, all_there=True)


class WindowsTest(absltest.TestCase):
  def test_rates_are_bytes_over_the_time_in_which_there_were_some(self):
    windows = Windows()
    windows.told(0, [[1, 1000, 1.0]])
    windows.told(1, [[0, 50, 0.5]])
    self.assertIsNone(windows.iterated(1.0, (0, 1)))  # The first begins.
    windows.told(0, [[1, 5000, 3.0]])
    for at in (1.5, 2.0, 2.5):
      self.assertIsNone(windows.iterated(at, (0, 1)))
    windows.told(1, [[0, 70, 0.51]])  # Too short to show anything.
    self.assertEqual(windows.iterated(3.5, (0, 1)), {(0, 1): 2000.0})

  def test_who_comes_back_begins_at_zero(self):
    windows = Windows()
    windows.told(0, [[1, 1000, 1.0]])
    windows.iterated(1.0, (0,))
    windows.told(0, [[1, 10, 0.1]])
    for at in (2.0, 3.0, 4.0):
      windows.iterated(at, (0,))
    self.assertEqual(windows.iterated(5.0, (0,)), {})

  def test_what_another_forest_did_does_not_count(self):
    windows = Windows()
    windows.told(0, [[1, 1000, 1.0]])
    windows.iterated(1.0, (0,))
    windows.clear()
    for at in (2.0, 3.0, 4.0, 9.0):
      self.assertIsNone(windows.iterated(at, (0,)))


class TellingTest(absltest.TestCase):
  def test_tells_until_it_is_over_or_nobody_listens(self):
    said, gone = queue.SimpleQueue(), threading.Event()

    def say(told):
      said.put(messages.FROM_REPLICA.decode(messages.encode(told)))
      if said.qsize() > 2:
        gone.set()
        raise Closed('gone')

    with Telling(lambda: {3: Usage(10, 20, 0.5)}, say, period_s=0.01):
      self.assertTrue(gone.wait(10))
      time.sleep(0.05)
    self.assertEqual(said.qsize(), 3)
    told = said.get()
    self.assertEqual(told, TrafficReport([(3, 10, 0.5)]))
    self.assertEqual(Sent(1, 2.0)._fields, ('bytes', 'busy_s'))


class RecordsTest(parameterized.TestCase):
  def test_rows_on_links_are_for_no_scheme(self):
    path = pathlib.Path(tempfile.mkdtemp())
    rows = [
      {'event': 'start', 'time': 0.0, 'decision': {}},
      {'event': 'links', 'time': 1.0, 'did': 'switch', 'why': 'faster'},
    ]
    text = ''.join(f'{json.dumps(row)}\n' for row in rows)
    (path / 'events.jsonl').write_text(text)
    self.assertEqual([*records.events(path)], rows[:1])
    self.assertEqual([*records.links(path)], rows[1:])


@pytest.mark.soak
class LabTest(absltest.TestCase):
  """Links that change in the middle of a real run."""

  def setUp(self):
    super().setUp()
    if reason := lab_test._why_not():
      self.skipTest(reason)
    self.out = pathlib.Path(tempfile.mkdtemp())

  def test_a_throttled_link_is_recovered(self):
    times = changing_links.throttled(self.out, 90)
    print(times)
    self.assertLess(times.adapted_s, 1.1 * times.fresh_s)
    self.assertLess(times.adapted_s, 0.9 * times.fixed_s)

  def test_noise_of_a_tenth_changes_nothing(self):
    self.assertNotIn('switch', changing_links.noisy(self.out, 500))


if __name__ == '__main__':
  absltest.main()
