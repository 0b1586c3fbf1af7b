"""Tests for cluster.network.heartbeat."""

import contextlib
import threading

from absl.testing import absltest

from cluster.network import messages, streams
from cluster.network.heartbeat import Heartbeat
from tests.support.streams import WAIT_S, TestCase, random_bytes


class HeartbeatTest(TestCase):
  def test_a_coordinator_that_does_not_read_a_long_message_is_lost(self):
    over, lost = threading.Event(), threading.Event()
    self.addCleanup(over.set)
    stream = self.connect(
      self.listener(lambda stream, hello: over.wait(WAIT_S))
    )
    body = random_bytes(2**25)

    def send():
      with contextlib.suppress(streams.Closed):
        stream.send(
          messages.Activity('saves'), streams.chunked([body]), body.size
        )

    sender = threading.Thread(target=send)
    sender.start()
    heartbeat = Heartbeat(
      stream,
      schema=messages.TO_SERVER,
      timeout_s=1.0,
      beat=messages.ServerHeartbeat,
      receive=lambda message: None,
      on_end=lost.set,
    )
    self.assertTrue(lost.wait(WAIT_S / 2))
    self.assertEqual(heartbeat.end.kind, 'lost')
    sender.join()


if __name__ == '__main__':
  absltest.main()
