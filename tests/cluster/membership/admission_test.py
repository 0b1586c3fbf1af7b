"""Tests for the reception: who comes, goes and hangs, over raw streams."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.process.exits import LOST, Unmendable
from tests.support import leads

_TIMEOUT_S = leads.TIMEOUT_S
_STARTING_S = 3.0  # Enough on a busy machine, too.


class MembersTest(parameterized.TestCase):
  """What the lead does when streams end at any moment; processes of ours."""

  def test_who_comes_back_before_its_end_was_noticed_goes_on(self):
    lead = self._lead()
    old = lead.member(0)
    lead.begin()
    old.pull()
    new = lead.member(0)
    lead.until(lambda: lead.ledger.lost)
    lead.during(new.pull)
    new.push()
    lead.until(lambda: lead.ledger.iterations == 1)
    self.assertEqual(old.control.receive().header['end'], 'left')
    self.assertEqual(lead.cluster.summary()['lives'], [2])
    self.assertLen(lead.ledger.lost, 1)

  def test_what_has_happened_is_ordered_at_once(self):
    lead = self._lead(num_workers=3)
    workers = [lead.member(index) for index in range(3)]
    lead.begin()
    for worker in workers:
      worker.pull()
      worker.push()
    _wait(lambda: lead.reception.events.qsize() == 3)
    before = lead.orders.sequence
    lead.cluster.step()
    self.assertEqual(lead.ledger.iterations, 3)
    self.assertEqual(lead.orders.sequence, before + 1)
    for worker in workers:
      worker.pull()  # And each is released.

  def test_what_comes_after_the_end_is_not_heeded(self):
    lead = self._lead()
    lead.member(0)
    lead.begin()
    lead.step_for(0.1)
    for _ in range(3):
      lead.reception.events.put({'told': 'here'})
    lead.cluster.lead.journal.finished = True
    lead.cluster.step()
    self.assertEqual(lead.reception.events.qsize(), 2)

  def test_deadlines_cost_nothing_at_events(self):
    lead = self._lead()
    lead.member(0)
    lead.begin()
    overdue = lead.cluster._deadlines.overdue
    with mock.patch.object(
      lead.cluster._deadlines, 'overdue', side_effect=overdue
    ) as asked:
      start, events = time.monotonic(), 0
      while time.monotonic() < start + _TIMEOUT_S / 2:
        lead.reception.events.put({'told': 'here'})
        lead.cluster.step()
        events += 1
      beats = (time.monotonic() - start) / (_TIMEOUT_S / 5)
    # One look a beat, however many events there are.
    self.assertBetween(asked.call_count, 1, beats + 1)
    self.assertGreaterEqual(events, asked.call_count)

  def test_a_push_that_some_servers_have_is_given_up_at_all(self):
    lead = self._lead(num_servers=2)
    worker = lead.member(0)
    lead.begin()
    worker.pull()
    worker.push(servers=[0])
    worker.close()
    lead.until(lambda: lead.ledger.lost)
    self.assertEqual(lead.ledger.iterations, 0)
    again = lead.member(0)
    lead.during(again.pull)
    again.push()
    lead.until(lambda: lead.ledger.iterations == 1)
    lead.until(lambda: not any(server._payloads for server in lead.servers))

  def test_a_server_that_fails_ends_the_run(self):
    lead = self._lead()
    lead.member(0)
    lead.begin()
    with self.assertLogs('absl', 'ERROR'):
      lead.servers[0].order(99, [])
      with self.assertRaisesRegex(Unmendable, 'Server 0: .* orders 1, got 99'):
        lead.step_for(2.0)

  def test_who_waits_for_a_server_that_is_silent_is_told(self):
    lead = self._lead(num_servers=2, silent=[1])
    lead.member(0)
    lead.begin()
    with ThreadPoolExecutor(1) as pool:
      read = pool.submit(lead.orders.read(lead.orders.hold()))
      with self.assertRaisesRegex(
        Unmendable, 'Server 1 is lost: It was silent'
      ):
        read.result(timeout=leads.START_S)
    with self.assertRaisesRegex(Unmendable, 'Server 1'):
      lead.orders.read(1)
    with self.assertRaisesRegex(Unmendable, 'Server 1'):
      lead.step_for(2.0)

  def test_who_lives_and_does_not_go_on_is_given_up(self):
    for doing, limit_s, words in (
      ('transfer', 2 * _TIMEOUT_S, 'moved no byte'),
      ('compute', 2 * _TIMEOUT_S + 4 * 0.1, 'computed'),
    ):
      with self.subTest(doing=doing):
        lead = self._lead()
        worker = lead.member(0)
        lead.begin()
        worker.pull()
        worker.push(compute_s=0.1)
        lead.until(lambda lead=lead: lead.ledger.iterations == 1)
        start = time.monotonic()

        def lost(lead=lead, worker=worker, doing=doing):
          worker.beat([doing, 1, 3])
          return lead.ledger.lost

        lead.until(lost)
        self.assertGreaterEqual(time.monotonic() - start, limit_s)
        self.assertIn(words, lead.ledger.lost[0].reason)

  def test_who_goes_on_slowly_is_not_given_up(self):
    lead = self._lead()
    worker = lead.member(0)
    lead.begin()
    start = time.monotonic()
    while time.monotonic() < start + 3.5 * _TIMEOUT_S:
      worker.beat(['transfer', 0, int(time.monotonic() - start)])
      lead.step_for(0.1)
    worker.pull()
    worker.push()
    lead.until(lambda: lead.ledger.iterations == 1)
    self.assertEmpty(lead.ledger.lost)

  @parameterized.parameters(0, 1)
  def test_a_server_that_lives_and_obeys_no_more_ends_the_run(self, index):
    lead = self._lead(num_servers=2)
    worker = lead.member(0)
    lead.begin()
    worker.pull()
    worker.push()
    lead.until(lambda: lead.ledger.iterations == 1)
    worker.pull()
    hangs = threading.Event()
    self.addCleanup(hangs.set)
    server = next(s for s in lead.servers if s.index == index)
    server.learner.commit = lambda update: hangs.wait()
    worker.push()
    reason = f"Server {index} .* order 'commit' for 2"

    def goes_on():
      worker.beat(['transfer', 1, 0])

    with self.assertRaisesRegex(Unmendable, reason):
      lead.until(goes_on)

  def test_a_lead_that_does_not_go_on_ends_its_process(self):
    ended = self.enterContext(mock.patch.object(os, '_exit'))
    lead = self._lead(exits=True, start_s=_STARTING_S)
    lead.member(0)
    lead.begin()
    lead.step_for(0.1)
    with self.assertLogs('absl', 'ERROR') as logged:
      _wait(lambda: ended.called)
    ended.assert_called_with(LOST)
    self.assertIn('The lead has been at events for', logged.output[0])

  def test_so_does_one_whose_checkpoint_hangs(self):
    ended = self.enterContext(mock.patch.object(os, '_exit'))
    lead = self._lead(exits=True, start_s=_STARTING_S)
    lead.member(0)
    lead.begin()
    lead.jobs.begin('a checkpoint')
    with self.assertLogs('absl', 'ERROR') as logged:
      _wait(lambda: ended.called)
    ended.assert_called_with(LOST)
    self.assertIn('The lead has been at a checkpoint for', logged.output[0])

  def assertBetween(self, value, low, high):
    self.assertGreaterEqual(value, low)
    self.assertLessEqual(value, high)

  def test_the_end_does_not_wait_for_who_hangs(self):
    lead = self._lead()
    lead.member(0)
    lead.begin()
    start = time.monotonic()
    lead.cluster.close()
    # The worker, the listener, and what this gives its handlers.
    self.assertLess(time.monotonic() - start, leads.START_S)

  def _lead(self, **fields):
    lead = leads.Lead(**fields)
    self.addCleanup(lead.close)
    return lead


def _wait(happened):
  end = time.monotonic() + leads.START_S
  while not happened():
    if time.monotonic() > end:
      raise AssertionError('It has not happened.')
    time.sleep(0.01)


if __name__ == '__main__':
  absltest.main()
