"""Tests for cluster.network.socket_loop."""

import queue
import threading

from absl.testing import absltest

from cluster.network.socket_loop import SocketLoop
from tests.support.streams import WAIT_S, wait_until


class SocketLoopTest(absltest.TestCase):
  def test_calls_behind_the_end_return_although_one_before_them_fails(self):
    release, results = threading.Event(), queue.SimpleQueue()

    def fail():
      raise KeyError('It fails.')

    loop = SocketLoop(
      'test',
      after_events=lambda: None,
      tick=lambda: None,
      on_error=lambda error: None,
      on_exit=lambda error: None,
    )
    loop.post(lambda: release.wait(WAIT_S))
    calls = (
      loop.close,
      lambda: loop.post(fail),
      lambda: results.put(loop.run(lambda: 'result')),
    )
    wait_until(lambda: not loop._posted)
    for count, call in enumerate(calls, 1):
      threading.Thread(target=call, daemon=True).start()
      wait_until(lambda count=count: len(loop._posted) == count)
    with self.assertLogs(level='ERROR'):
      release.set()
      self.assertEqual(results.get(timeout=WAIT_S / 3), 'result')


if __name__ == '__main__':
  absltest.main()
