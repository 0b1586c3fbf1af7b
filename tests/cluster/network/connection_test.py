"""Tests for cluster.network.connection."""

import socket
import threading
import time
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.network import handshake
from cluster.network.connection import Connection, open_channel
from tests.support import certificates
from tests.support.streams import HOST, WAIT_S, tcp_pair


class ChannelTest(parameterized.TestCase):
  def channels(self, encrypted):
    """Returns the channels of both ends of a connection."""
    near, far = (Connection(sock, 'peer') for sock in tcp_pair())
    self.addCleanup(near.close)
    self.addCleanup(far.close)
    if encrypted:
      security = certificates.make_security('')
      steps = far.encrypt(
        handshake.listener_context(security), server_side=True
      )
      deadline = time.monotonic() + WAIT_S
      thread = threading.Thread(
        target=handshake.run_steps, args=(far, steps, deadline)
      )
      thread.start()
      context = handshake.client_context(security)
      steps = near.encrypt(context, server_hostname=HOST)
      handshake.run_steps(near, steps, deadline)
      thread.join()
    return open_channel(near), open_channel(far)

  @parameterized.parameters(False, True)
  def test_a_deadline_passes_although_the_peer_sends_without_a_pause(
    self, encrypted
  ):
    near, far = self.channels(encrypted)
    buffer = memoryview(bytearray(4))
    far.send([b'many bytes'])
    self.assertEqual(near.receive([buffer], time.monotonic() + WAIT_S), 4)
    with self.assertRaises(TimeoutError):
      near.receive([buffer], time.monotonic())


class ConnectionTest(parameterized.TestCase):
  def test_a_connection_is_not_closed_while_it_is_shut_down(self):
    near, far = tcp_pair()
    connection, open_at_end = Connection(near, 'peer'), []
    closer = threading.Thread(target=connection.close)

    def shut_down_slowly(sock, how):
      del how
      closer.start()
      closer.join(0.2)
      open_at_end.append(sock.fileno() >= 0)

    with far:
      with mock.patch.object(socket.socket, 'shutdown', shut_down_slowly):
        connection.shut_down()
      closer.join(WAIT_S)
    self.assertEqual(open_at_end, [True])
    self.assertEqual(near.fileno(), -1)


if __name__ == '__main__':
  absltest.main()
