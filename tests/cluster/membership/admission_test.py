"""Tests for processes that join, leave and hang, over raw streams."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.membership.admission import Reception
from cluster.network import messages
from cluster.network.streams import Security, connect
from cluster.parameter_server.admission import ServerJoined
from cluster.process.deadlines import Deadlines, Jobs
from cluster.process.exits import LOST, Unmendable
from system import processes
from tests.support import coordinators

_TIMEOUT_S = coordinators.TIMEOUT_S
_STARTING_S = 3.0  # Enough on a busy machine, too.


class ConfigTest(parameterized.TestCase):
  """Hosts with different configs learn what differs."""

  def test_the_fields_that_differ_are_named_with_both_values(self):
    fields = {'config.seed': '0', 'config.epochs': '2.0', 'config.a': '1'}
    refused = self._refuse(fields, fields | {'config.seed': '7'})
    self.assertIn('config.seed: 7 instead of 0', refused)
    for same in ('config.epochs', 'config.a'):
      self.assertNotIn(same, refused)

  def test_a_field_that_one_host_lacks_is_named(self):
    refused = self._refuse({'config.a': '1'}, {'config.b': '2'})
    self.assertIn('config.a: no such field instead of 1', refused)
    self.assertIn('config.b: 2 instead of no such field', refused)

  def test_long_values_and_many_fields_are_cut(self):
    fields = {f'config.f{k}': 'x' * 10**4 for k in range(100)}
    refused = self._refuse(fields, dict.fromkeys(fields, 'y\n' * 10**3))
    self.assertIn('config.f0: y', refused)
    self.assertIn('92 other fields', refused)
    self.assertLess(len(refused), 1000)
    self.assertTrue(refused.isprintable())

  def test_without_fields_the_message_says_that_the_configs_differ(self):
    self.assertIn('config: expected the same', self._refuse({}, {}))

  def _refuse(self, own, other):
    """Returns the reason for which a worker with another config is refused."""
    reception = Reception(
      num_workers=1,
      settings=coordinators.make_settings(fields=own),
      jobs=Jobs(Deadlines(timeout_s=5.0, start_s=5.0, windows=False)),
    )
    address = reception.listen()
    hello = messages.WorkerHello(0, '0' * 32, 'theirs', fields=other)
    with self.assertLogs('absl', 'WARNING') as logs:
      stream = connect(address, hello, Security(), 5.0)
      answer = stream.receive(messages.WORKER_ADMISSION).header
      self.assertIsInstance(answer, messages.Rejected)
      stream.close()
      reception.close(finished=True)
    # The log of the coordinator has the same reason.
    self.assertIn(answer.reason[:200], ' '.join(logs.output))
    return answer.reason


class EndOfStreamTest(parameterized.TestCase):
  """Reactions of the coordinator to streams that end at any moment."""

  def test_a_worker_rejoins_before_its_loss_was_noticed(self):
    coordinator = self._coordinator()
    old = coordinator.member(0)
    coordinator.begin()
    old.pull()
    new = coordinator.member(0)
    coordinator.until(lambda: coordinator.accounting.lost)
    coordinator.during(new.pull)
    new.push()
    coordinator.until(lambda: coordinator.accounting.iterations == 1)
    self.assertEqual(old.next().kind, 'left')
    self.assertEqual(coordinator.cluster.summary()['admissions'], [2])
    self.assertLen(coordinator.accounting.lost, 1)

  def test_orders_of_simultaneous_events_are_one_message(self):
    coordinator = self._coordinator(num_workers=3)
    workers = [coordinator.member(index) for index in range(3)]
    coordinator.begin()
    for worker in workers:
      worker.pull()
      worker.push()
    _wait(lambda: coordinator.reception.events.qsize() == 3)
    before = coordinator.store.sequence
    coordinator.cluster.step()
    self.assertEqual(coordinator.accounting.iterations, 3)
    self.assertEqual(coordinator.store.sequence, before + 1)
    for worker in workers:
      worker.pull()  # And each is released.

  def test_events_after_the_end_are_not_handled(self):
    coordinator = self._coordinator()
    coordinator.member(0)
    coordinator.begin()
    coordinator.step_for(0.1)
    for _ in range(3):
      coordinator.reception.events.put(ServerJoined())
    coordinator.accounting.examples = 10**9  # The target is reached.
    coordinator.cluster.step()
    self.assertEqual(coordinator.reception.events.qsize(), 2)

  def test_deadlines_are_checked_per_heartbeat_not_per_event(self):
    coordinator = self._coordinator()
    coordinator.member(0)
    coordinator.begin()
    overdue = coordinator.cluster._deadlines.overdue
    with mock.patch.object(
      coordinator.cluster._deadlines, 'overdue', side_effect=overdue
    ) as asked:
      start, events = time.monotonic(), 0
      while time.monotonic() < start + _TIMEOUT_S / 2:
        coordinator.reception.events.put(ServerJoined())
        coordinator.cluster.step()
        events += 1
      beats = (time.monotonic() - start) / (_TIMEOUT_S / 5)
    # One look a beat, however many events there are.
    self.assertBetween(asked.call_count, 1, beats + 1)
    self.assertGreaterEqual(events, asked.call_count)

  def test_a_push_that_only_some_servers_have_is_discarded(self):
    coordinator = self._coordinator(num_servers=2)
    worker = coordinator.member(0)
    coordinator.begin()
    worker.pull()
    worker.push(servers=[0])
    worker.close()
    coordinator.until(lambda: coordinator.accounting.lost)
    self.assertEqual(coordinator.accounting.iterations, 0)
    again = coordinator.member(0)
    coordinator.during(again.pull)
    again.push()
    coordinator.until(lambda: coordinator.accounting.iterations == 1)
    coordinator.until(
      lambda: not any(server._payloads for server in coordinator.servers)
    )

  def test_a_server_that_fails_ends_the_run(self):
    coordinator = self._coordinator()
    coordinator.member(0)
    coordinator.begin()
    with self.assertLogs('absl', 'ERROR'):
      coordinator.servers[0].order(99, [])
      with self.assertRaisesRegex(Unmendable, 'Server 0: .* orders 1, got 99'):
        coordinator.step_for(2.0)

  def test_a_wait_for_a_silent_server_raises(self):
    coordinator = self._coordinator(num_servers=2, silent=[1])
    coordinator.member(0)
    coordinator.begin()
    with ThreadPoolExecutor(1) as pool:
      read = pool.submit(coordinator.store.read(coordinator.store.hold()))
      with self.assertRaisesRegex(
        Unmendable, 'Server 1 is lost: It was silent'
      ):
        read.result(timeout=coordinators.START_S)
    with self.assertRaisesRegex(Unmendable, 'Server 1'):
      coordinator.store.read(1)
    with self.assertRaisesRegex(Unmendable, 'Server 1'):
      coordinator.step_for(2.0)

  def test_a_worker_without_progress_is_evicted(self):
    for doing, limit_s, words in (
      ('transfer', 2 * _TIMEOUT_S, 'moved no byte'),
      ('compute', 2 * _TIMEOUT_S + 4 * 0.1, 'computed'),
    ):
      with self.subTest(doing=doing):
        coordinator = self._coordinator()
        worker = coordinator.member(0)
        coordinator.begin()
        worker.pull()
        worker.push(compute_s=0.1)
        coordinator.until(
          lambda coordinator=coordinator: coordinator.accounting.iterations == 1
        )
        start = time.monotonic()

        def lost(coordinator=coordinator, worker=worker, doing=doing):
          worker.beat([doing, 1, 3])
          return coordinator.accounting.lost

        coordinator.until(lost)
        self.assertGreaterEqual(time.monotonic() - start, limit_s)
        self.assertIn(words, coordinator.accounting.lost[0].reason)

  def test_a_worker_with_slow_progress_is_not_evicted(self):
    coordinator = self._coordinator()
    worker = coordinator.member(0)
    coordinator.begin()
    start = time.monotonic()
    while time.monotonic() < start + 3.5 * _TIMEOUT_S:
      worker.beat(['transfer', 0, int(time.monotonic() - start)])
      coordinator.step_for(0.1)
    worker.pull()
    worker.push()
    coordinator.until(lambda: coordinator.accounting.iterations == 1)
    self.assertEmpty(coordinator.accounting.lost)

  @parameterized.parameters(0, 1)
  def test_a_server_that_executes_no_orders_ends_the_run(self, index):
    coordinator = self._coordinator(num_servers=2)
    worker = coordinator.member(0)
    coordinator.begin()
    worker.pull()
    worker.push()
    coordinator.until(lambda: coordinator.accounting.iterations == 1)
    worker.pull()
    hangs = threading.Event()
    self.addCleanup(hangs.set)
    server = next(s for s in coordinator.servers if s.index == index)
    server.learner.commit = lambda update: hangs.wait()
    worker.push()
    reason = f"Server {index} .* order 'Commit' for 2"

    def goes_on():
      worker.beat(['transfer', 1, 0])

    with self.assertRaisesRegex(Unmendable, reason):
      coordinator.until(goes_on)

  def test_a_coordinator_that_hangs_exits(self):
    ended = self.enterContext(mock.patch.object(processes, 'exit_now'))
    coordinator = self._coordinator(exits=True, start_s=_STARTING_S)
    coordinator.member(0)
    coordinator.begin()
    coordinator.step_for(0.1)
    with self.assertLogs('absl', 'ERROR') as logged:
      _wait(lambda: ended.called)
    ended.assert_called_with(LOST)
    self.assertIn('The coordinator has been at events for', logged.output[0])

  def test_a_coordinator_whose_checkpoint_hangs_exits(self):
    ended = self.enterContext(mock.patch.object(processes, 'exit_now'))
    coordinator = self._coordinator(exits=True, start_s=_STARTING_S)
    coordinator.member(0)
    coordinator.begin()
    coordinator.jobs.begin('a checkpoint')
    with self.assertLogs('absl', 'ERROR') as logged:
      _wait(lambda: ended.called)
    ended.assert_called_with(LOST)
    self.assertIn(
      'The coordinator has been at a checkpoint for', logged.output[0]
    )

  def assertBetween(self, value, low, high):
    self.assertGreaterEqual(value, low)
    self.assertLessEqual(value, high)

  def test_the_end_does_not_wait_for_a_hanging_worker(self):
    coordinator = self._coordinator()
    coordinator.member(0)
    coordinator.begin()
    start = time.monotonic()
    coordinator.cluster.close()
    # Limits of the worker, the listener and its handlers.
    self.assertLess(time.monotonic() - start, coordinators.START_S)

  def _coordinator(self, **fields):
    coordinator = coordinators.Coordinator(**fields)
    self.addCleanup(coordinator.close)
    return coordinator


def _wait(happened):
  end = time.monotonic() + coordinators.START_S
  while not happened():
    if time.monotonic() > end:
      raise AssertionError('The event did not happen in time.')
    time.sleep(0.01)


if __name__ == '__main__':
  absltest.main()
