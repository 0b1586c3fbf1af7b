"""Tests for measuring the links of a run, on sockets and simulated networks."""

import itertools
import json
import pathlib
import queue
import tempfile
import threading
import time
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.network import messages
from cluster.network.errors import InvalidMessage
from cluster.network.handshake import Security
from cluster.network.port import Port
from cluster.probing import file_format, transfers, trials
from cluster.probing.cache import LinkCache
from cluster.probing.events import LinksMeasured
from cluster.probing.link_manager import LinkManager
from cluster.probing.measurer import Measurer
from cluster.probing.surveyor import Surveyor
from cluster.process.exits import Unmendable
from system import net
from tests.support import shared_links
from topology.clusters import cluster, measured

_HOSTS = [
  {'hostname': f'h{n}', 'address': f'10.0.0.{n}', 'card': f'{n:012x}'}
  for n in range(3)
]


class _Workers:
  """Measurers with inboxes of their own, and who has them measure."""

  def __init__(self, count, workdir, timeout_s=20.0):
    self.events = queue.SimpleQueue()
    self.silent = set()
    self.measurers = [
      Measurer(index, Port('127.0.0.1', 0, Security()), timeout_s)
      for index in range(count)
    ]
    self._inboxes = [queue.SimpleQueue() for _ in range(count)]
    for index in range(count):
      threading.Thread(target=self._work, args=[index], daemon=True).start()
    self.surveyor = Surveyor(
      cache=LinkCache(workdir),
      send=lambda index, order: self._inboxes[index].put(order),
      put_event=self.events.put,
      timeout_s=timeout_s,
    )

  def close(self):
    for inbox in self._inboxes:
      inbox.put(None)

  def measure(self, **fields):
    """Returns the event that tells of the end."""
    self.surveyor.begin([*range(len(self.measurers))], **fields)
    return self.events.get(timeout=30)

  def _work(self, index):
    while order := self._inboxes[index].get():
      # As they would come over a stream.
      order = messages.TO_REPLICA.decode(messages.encode(order))
      answer = messages.encode(self.measurers[index](order))
      if index not in self.silent:
        answer = messages.FROM_REPLICA.decode(answer)
        self.surveyor.take_answer(index, answer)
    self.measurers[index].close()


class SurveyTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.workdir = pathlib.Path(tempfile.mkdtemp(), 'run')
    self.workdir.mkdir()
    # Rates do not matter here.
    self.enterContext(mock.patch.object(trials, 'QUICK_S', 0.03))

  def _workers(self, count, **fields):
    workers = _Workers(count, self.workdir, **fields)
    self.addCleanup(workers.close)
    return workers

  def test_three_workers_measure_each_other_and_the_result_is_cached(self):
    workers = self._workers(3)
    event = workers.measure()
    self.assertGreater(event.took_s, 0)
    found = workers.surveyor.finish(event)
    graph = cluster.from_json(found)
    self.assertEqual(graph.workers, ('host0', 'host1', 'host2'))
    kinds = [test['kind'] for test in found['measurements']['tests']]
    plan = ['pairs'] * 6 + ['up'] * 3 + ['down'] * 3
    self.assertEqual(kinds[: len(plan)], plan)
    self.assertLessEqual({*kinds[len(plan) :]}, {'again'})
    written = json.loads((self.workdir / 'cluster.json').read_text())
    self.assertEqual(cluster.from_json(written), graph)
    self.assertCountEqual(file_format.host_latency_s(found), graph.workers)
    self.assertRegex(file_format.summary(found), r'^3 hosts, up .* us$')

    again = workers.measure()
    self.assertEqual(again.took_s, 0.0)
    self.assertEqual(workers.surveyor.finish(again)['links'], found['links'])
    anew = workers.measure(skips_cache=True)
    self.assertGreater(anew.took_s, 0)

  def test_an_answer_is_checked_by_the_orders_of_its_number(self):
    refused, events = [], queue.SimpleQueue()

    def send(index, order):
      if not isinstance(order.probe, messages.OpenEndpoint):
        return
      # It answers before the next one has its order, and once more too late.
      rates = [(1 - index, 1.0)]
      for number in (order.number, order.number - 1):
        try:
          surveyor.check_answer(index, messages.ProbeAnswer(number, rates, ''))
        except InvalidMessage as error:
          self.assertIn('answer: expected a host', str(error))
          refused.append((index, order.number - number))
      if index:
        surveyor.lose(index, 'gone')

    surveyor = Surveyor(
      cache=LinkCache(self.workdir),
      send=send,
      put_event=events.put,
      timeout_s=20.0,
    )
    surveyor.begin([0, 1])
    self.assertEqual(events.get(timeout=20).problem, 'worker 1 is lost: gone')
    self.assertEqual(refused, [(0, 0), (1, 0)])

  def test_the_loss_of_a_worker_ends_a_survey_at_once(self):
    workers = self._workers(2, timeout_s=20.0)
    workers.silent.add(1)
    workers.surveyor.begin([0, 1])
    start = time.monotonic()
    workers.surveyor.lose(1, 'gone')
    event = workers.events.get(timeout=10)
    self.assertLess(time.monotonic() - start, 10.0)
    self.assertTrue(event.is_lost)
    self.assertIsNone(workers.surveyor.finish(event))
    self.assertFalse(workers.surveyor.busy)
    workers.silent.clear()
    self.assertIsNotNone(workers.measure().content)

  def test_a_pair_that_cannot_connect_is_named_and_finally_ends_the_run(self):
    workers = self._workers(2, timeout_s=1.0)
    connect = transfers.Endpoint.connect

    def broken(endpoint, number, **ends):
      if 1 in ends['receivers']:  # Nobody listens at port 1.
        endpoint._peers[1] = endpoint._peers[1]._replace(port=1)
      connect(endpoint, number, **ends)

    with mock.patch.object(transfers.Endpoint, 'connect', broken):
      first = workers.measure()
      self.assertIsNone(workers.surveyor.finish(first))
      second = workers.measure()
      with self.assertRaisesRegex(Unmendable, 'worker 0 with worker 1 at .*'):
        workers.surveyor.finish(second)

  def test_a_silent_worker_is_named(self):
    workers = self._workers(2, timeout_s=1.0)
    workers.silent.add(1)
    event = workers.measure()
    self.assertIn('no answer of workers [1]', event.problem)
    end = time.monotonic() + 10.0
    while any(each._endpoint for each in workers.measurers):  # Nobody listens.
      self.assertLess(time.monotonic(), end)
      time.sleep(0.01)


class LinkCacheTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.workdir = pathlib.Path(tempfile.mkdtemp(), 'run')
    self.cache = LinkCache(self.workdir)
    latency_s = dict.fromkeys(itertools.permutations(range(3), 2), 1e-4)
    test = trials.Test('pairs', tuple(_equal(3)))
    found = trials.Findings(_HOSTS, [(test, _equal(3))], latency_s, [])
    fields = {'seconds': 1.0, 'streams': 1, 'tolerance': 0.1, 'command': ''}
    written = file_format.content(found, **fields)
    self.content = written | {'measured_at': time.time()}

  def test_a_result_is_used_only_for_the_same_hosts_in_the_same_order(self):
    self.cache.save(_HOSTS, self.content)
    found = LinkCache(self.workdir.with_name('another run')).load(_HOSTS)
    self.assertEqual(found['links'], self.content['links'])
    self.assertIsNone(self.cache.load(_HOSTS[::-1]))
    self.assertIsNone(self.cache.load(_HOSTS[:2]))
    for field in ('hostname', 'address', 'card'):
      other = [*_HOSTS[:2], _HOSTS[2] | {field: 'another'}]
      self.assertIsNone(self.cache.load(other))

  def test_a_result_is_not_used_for_other_hosts_with_the_same_file_name(self):
    self.cache.save(_HOSTS, self.content)
    (file,) = (self.workdir.parent / '.links').iterdir()
    others = [host | {'card': 'ff'} for host in _HOSTS]
    file.replace(self.cache._path(others))
    self.assertIsNone(self.cache.load(others))

  @parameterized.parameters(-3600.0, 25 * 3600.0)
  def test_a_result_that_is_old_or_from_the_future_is_not_used(self, age_s):
    old = self.content | {'measured_at': time.time() - age_s}
    self.cache.save(_HOSTS, old)
    self.assertIsNone(self.cache.load(_HOSTS))

  @parameterized.parameters('', '{}', '[]', '{"measured_at": "now"}')
  def test_a_damaged_file_is_not_used(self, text):
    self.cache.save(_HOSTS, self.content)
    self.cache._path(_HOSTS).write_text(text)
    self.assertIsNone(self.cache.load(_HOSTS))

  @parameterized.parameters('hosts', 'pairs', 'groups', 'latency_s', 'links')
  def test_a_file_of_another_version_is_not_used(self, field):
    del self.content[field]
    self.cache.save(_HOSTS, self.content)
    self.assertIsNone(self.cache.load(_HOSTS))

  def test_a_cache_that_cannot_be_written_is_no_error(self):
    LinkCache(pathlib.Path('/proc/nothing/run')).save(_HOSTS, self.content)


class LinkManagerTest(parameterized.TestCase):
  @parameterized.parameters(
    (('127.0.0.1:7', '127.0.0.2:8'),), (('10.0.0.7:7', '10.0.0.7:8'),)
  )
  def test_links_within_a_host_are_equal_and_not_measured(self, addresses):
    formation, surveyor = self._create(addresses)
    link_manager = LinkManager(formation, surveyor, None, workers=2)
    self.assertFalse(link_manager.begin_survey([0, 1]))
    surveyor.begin.assert_not_called()
    ((graph, host_s), _) = formation.set_links.call_args
    self.assertEqual(len({link.GBps for link in graph.links}), 1)
    self.assertLen(graph.workers, 2)
    self.assertEqual(host_s, {})

  def test_links_within_a_host_are_not_followed(self):
    formation, surveyor = self._create(('127.0.0.1:7', '127.0.0.1:8'))
    formation.has_links, formation.members = True, (0, 1)
    reason = 'links are measured, as 2 links are idle'
    follower = mock.Mock(interruption=reason, end_epoch=lambda: True)
    link_manager = LinkManager(formation, surveyor, follower, workers=2)
    self.assertEqual(link_manager.interruption, reason)
    self.assertFalse(link_manager.begin_survey([0, 1]))
    self.assertEqual(
      link_manager.interruption, ''
    )  # The run would stop in vain.

  def test_links_between_hosts_are_measured_unless_they_are_known(self):
    formation, surveyor = self._create(('10.0.0.1:7', '10.0.0.2:7'))
    link_manager = LinkManager(formation, surveyor, None, workers=2)
    self.assertTrue(link_manager.begin_survey([0, 1]))
    surveyor.begin.assert_called_once()
    formation.has_links = True
    self.assertFalse(link_manager.begin_survey([0, 1]))

  @parameterized.parameters(
    (LinksMeasured(problem='a cut'), False),
    (LinksMeasured(problem='worker 2 is lost', is_lost=True), True),
  )
  def test_links_are_measured_once_all_workers_are_there(self, event, again):
    addresses = [f'10.0.0.{n}:7' for n in range(3)]
    formation, surveyor = self._create(addresses)
    formation.set_links.side_effect = lambda *_: formation.configure_mock(
      has_links=True
    )
    surveyor.finish.return_value = None
    link_manager = LinkManager(formation, surveyor, None, workers=3)
    self.assertFalse(link_manager.begin_survey([0, 1]))
    ((graph, _), _) = formation.set_links.call_args
    self.assertLen(graph.workers, 3)
    self.assertFalse(link_manager.begin_survey([0, 2]))
    surveyor.begin.assert_not_called()
    self.assertTrue(link_manager.begin_survey([0, 1, 2]))
    surveyor.begin.assert_called_once()
    link_manager.take_survey(event, 0.0)
    self.assertEqual(link_manager.begin_survey([0, 1, 2]), again)

  def _create(self, addresses):
    formation = mock.Mock(has_links=False)
    formation.address = addresses.__getitem__
    return formation, mock.Mock(busy=False)


class QuickTest(parameterized.TestCase):
  """The plan for the start of a run, on simulated networks."""

  @parameterized.parameters(2, 3, 4, 5, 8, 9)
  def test_covers_all_pairs_once_in_rounds(self, hosts):
    tests = trials.quick(hosts)
    self.assertLessEqual(len(tests), 4 * hosts)
    every = sorted(itertools.permutations(range(hosts), 2))
    pairs = [test.pairs for test in tests if test.kind == 'pairs']
    self.assertEqual(sorted(pair for each in pairs for pair in each), every)
    for each in pairs:
      self.assertLen({host for pair in each for host in pair}, 2 * len(each))

  def test_slow_pairs_that_share_nothing_are_found_without_more_tests(self):
    slow = {(i, j): 2 for i in range(6) for j in range(6) if (i < 3) != (j < 3)}
    network = shared_links.Network([25] * 6, pairs=slow, noise=0.05)
    found, groups = self._explore(network, 6)
    self.assertEqual(groups, [])
    self.assertEqual([t.kind for t, _ in found].count('all'), 1)
    self.assertNotIn('group', [t.kind for t, _ in found])
    shown = [rates for _, rates in found]
    rates = measured.fit(shown, hosts=6, tolerance=0.1)
    self.assertCountEqual(rates.pairs_GBps, slow)

  @parameterized.parameters(3, 6)
  def test_shared_links_are_found(self, rate):
    racks = [((0, 1, 2), rate, rate)]
    network = shared_links.Network([25] * 6, groups=racks, noise=0.05)
    _, groups = self._explore(network, 6)
    self.assertIn(groups, ([(0, 1, 2)], [(3, 4, 5)]))

  def _explore(self, network, hosts):
    return trials.explore(
      lambda test: network.measure(test.pairs),
      hosts,
      tolerance=0.1,
      tests=trials.quick(hosts),
    )


class CardTest(absltest.TestCase):
  def test_interfaces_with_and_without_a_card_are_distinguished(self):
    self.assertEqual(net.hardware_address('127.0.0.1'), '000000000000')
    self.assertEqual(net.hardware_address('203.0.113.7'), '')


def _equal(hosts):
  return dict.fromkeys(itertools.permutations(range(hosts), 2), 25e6)


if __name__ == '__main__':
  absltest.main()
