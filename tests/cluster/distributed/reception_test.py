"""Tests for the reception: who comes, goes and hangs, over raw streams."""

import time
from concurrent.futures import ThreadPoolExecutor

from absl.testing import absltest

from cluster.transport.heart import Unmendable
from tests.support import leads


class MembersTest(absltest.TestCase):
  """What the lead does when streams end at any moment; processes of ours."""

  def test_who_comes_back_before_its_end_was_noticed_goes_on(self):
    lead = self._lead()
    old = lead.member(0)
    lead.begin()
    old.pull()
    new = lead.member(0)
    lead.until(lambda: lead.ledger.lost)
    lead.step_for(0.3)
    new.pull()
    new.push()
    lead.until(lambda: lead.ledger.iterations == 1)
    self.assertEqual(old.control.receive().header['end'], 'left')
    self.assertEqual(lead.cluster.summary()['lives'], [2])
    self.assertLen(lead.ledger.lost, 1)

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
    lead.step_for(0.3)
    again.pull()
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
      read = pool.submit(lead.orders.snapshot())
      with self.assertRaisesRegex(Unmendable, 'Server 1 was silent'):
        read.result(timeout=5.0)
    with self.assertRaisesRegex(Unmendable, 'Server 1'):
      lead.orders.snapshot()
    with self.assertRaisesRegex(Unmendable, 'Server 1'):
      lead.step_for(2.0)

  def test_the_end_does_not_wait_for_who_hangs(self):
    lead = self._lead()
    lead.member(0)
    lead.begin()
    start = time.monotonic()
    lead.cluster.close()
    # The worker, the listener, and what this gives its handlers.
    self.assertLess(time.monotonic() - start, 2 * leads.TIMEOUT_S + 3.0)

  def _lead(self, **fields):
    lead = leads.Lead(**fields)
    self.addCleanup(lead.close)
    return lead


if __name__ == '__main__':
  absltest.main()
