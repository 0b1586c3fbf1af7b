"""Tests for cluster.network.handshake: clients with and without the token."""

import contextlib
import queue
import time
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.network import handshake
from cluster.network import streams as transport
from cluster.network.streams import Closed, Corrupt, Refused, Security
from tests.support.relays import Relay
from tests.support.streams import OPEN, PLAIN, WAIT_S, TestCase, echo

_TOKEN = 'a secret that both ends know'
_OURS = Security(token=_TOKEN)


class TokenTest(TestCase):
  def test_a_client_with_the_token_is_admitted(self):
    stream = self.connect(self.listener(security=_OURS), None, _OURS)
    stream.send(1)
    self.assertEqual(stream.receive(PLAIN).header, 1)

  @parameterized.parameters(
    (_OURS, OPEN),
    (OPEN, _OURS),
    (_OURS, Security(token='a secret of others')),
    (_OURS, Security(token=_TOKEN + '2')),
  )
  def test_a_client_with_another_token_is_refused_at_both_ends(
    self, theirs, ours
  ):
    hellos = queue.SimpleQueue()
    listener = self.listener(lambda _, hello: hellos.put(hello), theirs)
    with self.assertLogs(level='WARNING') as logs:
      with self.assertRaisesRegex(Refused, 'not that of the listener'):
        transport.connect(listener.address, 'hello', ours, WAIT_S)
      _until(lambda: logs.output)
    self.assertTrue(hellos.empty())
    self.assertRegex(
      logs.output[0], r'127\.0\.0\.1:\d+: refused: its token is not ours'
    )
    self.assertNotIn('secret', '\n'.join(logs.output))

  def test_neither_end_sends_the_token(self):
    listener = self.listener(security=_OURS)
    with Relay(listener.address) as relay:
      # The listener is not where the client believes it to be.
      with mock.patch.object(transport, 'send_hello', _at(listener.address)):
        stream = transport.connect(relay.address, 'a hello', _OURS, WAIT_S)
      stream.send('a word')
      self.assertEqual(stream.receive(PLAIN).header, 'a word')
      stream.close()
      sent = bytes(relay.received)
    self.assertIn(b'a hello', sent)
    self.assertNotIn(b'secret', sent)

  def test_a_client_reveals_nothing_to_a_listener_without_the_token(self):
    listener = self.listener(security=OPEN)
    with Relay(listener.address) as relay:
      with self.assertRaises(Refused):
        transport.connect(relay.address, 'a hello', _OURS, WAIT_S)
      self.assertNotIn(b'a hello', bytes(relay.received))
      self.assertNotIn(b'proof', bytes(relay.received))

  def test_a_relay_on_another_port_is_refused(self):
    listener = self.listener(security=_OURS)
    with Relay(listener.address) as relay, self.assertRaises(Refused):
      transport.connect(relay.address, None, _OURS, WAIT_S)

  def test_a_recorded_handshake_is_refused(self):
    listener = self.listener(security=_OURS)
    recorded = []

    def overheard(stream, security, address, hello):
      with mock.patch.object(stream, 'send', _copying(stream.send, recorded)):
        handshake.send_hello(stream, security, address, hello)

    def replay(stream, security, address, hello):
      stream.send(recorded[0])
      stream.receive(PLAIN)
      stream.send(recorded[1])
      stream.receive(PLAIN)

    with mock.patch.object(transport, 'send_hello', overheard):
      transport.connect(listener.address, None, _OURS, WAIT_S).close()
    self.assertLen(recorded, 2)
    self._is_refused(listener, replay)

  def test_proofs_of_the_listener_are_refused_from_a_client(self):
    def reflect(stream, security, address, hello):
      stream.send({'nonce': '0' * 64})
      answer = stream.receive(PLAIN).header
      stream.send({'proof': answer['proof'], 'hello': None})
      stream.receive(PLAIN)

    self._is_refused(self.listener(security=_OURS), reflect)

    def mirror(stream, security, address, hello):
      stream.send({'nonce': '0' * 64})
      first = stream.receive(PLAIN).header
      # The listener's own number instead of a proof.
      stream.send({'proof': first['nonce'], 'hello': None})
      stream.receive(PLAIN)

    self._is_refused(self.listener(security=_OURS), mirror)

  def test_a_listener_that_reflects_is_refused(self):
    def reflect(stream, security, address):
      nonce = stream.receive(PLAIN).header['nonce']
      stream.send({'nonce': nonce, 'proof': nonce})
      return stream.receive(PLAIN).header

    with mock.patch.object(transport, 'receive_hello', reflect):
      listener = self.listener(security=OPEN)
      with self.assertRaises(Refused):
        transport.connect(listener.address, None, _OURS, WAIT_S)

  def test_a_listener_with_the_proof_of_another_one_is_refused(self):
    def ask(stream, security, address):
      # The answer of another listener, which knows the token.
      theirs, ours = stream.receive(PLAIN).header['nonce'], '0' * 64
      numbers = theirs, ours, '127.0.0.1:1'
      proof = handshake.proof(_TOKEN, b'listener', *numbers)
      stream.send({'nonce': ours, 'proof': proof})
      return stream.receive(PLAIN).header

    with mock.patch.object(transport, 'receive_hello', ask):
      listener = self.listener(security=OPEN)
      with self.assertRaises(Refused):
        transport.connect(listener.address, None, _OURS, WAIT_S)

  def test_proofs_depend_on_role_nonces_and_address(self):
    one, other = '0' * 64, '1' * 64
    codes = [
      handshake.proof(_TOKEN, role, *numbers, address)
      for role in (b'listener', b'client')
      for numbers in ((one, other), (other, one), (one, one))
      for address in ('10.0.0.1:1', '10.0.0.1:11')
    ]
    self.assertLen(set(codes), len(codes))

  def test_a_secret_is_not_printed(self):
    self.assertEqual(repr(_OURS), 'Security(token)')

  def _is_refused(self, listener, liar):
    with (
      mock.patch.object(transport, 'send_hello', liar),
      self.assertLogs(level='WARNING'),
      self.assertRaisesRegex(Closed, 'its token is not ours'),
    ):
      transport._opened(listener.address, None, OPEN, time.monotonic() + WAIT_S)


class OtherHandshakeTest(TestCase):
  @parameterized.parameters(
    (None,),
    ('hello',),
    ([],),
    ({},),
    ({'nonce': 1},),
    ({'nonce': ''},),
    ({'nonce': 'x' * 64},),
    ({'nonce': '0' * 63},),
    ({'nonce': ['0'] * 64},),
    ({'nonce': '٠' * 64},),
  )
  def test_other_first_messages_are_refused(self, said):
    def liar(stream, *_):
      stream.send(said)
      stream.receive(PLAIN)

    listener = self.listener(echo)
    with (
      mock.patch.object(transport, 'send_hello', liar),
      self.assertLogs(level='WARNING'),
      self.assertRaisesRegex(Closed, 'sent another message'),
    ):
      transport._opened(listener.address, None, OPEN, time.monotonic() + WAIT_S)

  def test_a_client_that_leaves_during_the_handshake_is_not_handled(self):
    hellos = queue.SimpleQueue()
    listener = self.listener(lambda _, hello: hellos.put(hello))

    def leave(stream, *_):
      raise Corrupt('gone')

    for _ in range(3):
      with (
        mock.patch.object(transport, 'send_hello', leave),
        contextlib.suppress(Corrupt),
      ):
        transport.connect(listener.address, None, OPEN, 1.0)
    self.connect(listener, 'hello')
    self.assertEqual(PLAIN.decode(hellos.get(timeout=WAIT_S)), 'hello')
    self.assertTrue(hellos.empty())


def _at(address):
  def send(stream, security, _, hello):
    handshake.send_hello(stream, security, address, hello)

  return send


def _copying(send, recorded):
  def copying(header, *arguments):
    recorded.append(header)
    send(header, *arguments)

  return copying


def _until(happened):
  deadline = time.monotonic() + WAIT_S
  while not happened() and time.monotonic() < deadline:
    time.sleep(0.01)


if __name__ == '__main__':
  absltest.main()
