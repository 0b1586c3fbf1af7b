"""Tests for cluster.network.handshake: clients with and without the token.

This module repeats the format of the handshake, so that tests compare it with
its documentation and not with its own code.
"""

import contextlib
import hashlib
import hmac
import queue
import socket
import ssl
import struct
import threading
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.network import handshake, sockets
from cluster.network import streams as transport
from cluster.network.streams import (
  Closed,
  Port,
  Refused,
  Security,
  push_service,
)
from cluster.parameter_server.mirrors import share_part
from system import net
from tests.support import certificates, requires
from tests.support.listeners import Listener
from tests.support.relays import Relay
from tests.support.streams import (
  HOST,
  OPEN,
  PLAIN,
  WAIT_S,
  TestCase,
  echo,
  wait_until,
)

_TOKEN = 'a secret that both ends know'
_OURS = Security(token=_TOKEN)
_MAGIC, _CONTROL = b'syncope4', b'control'.ljust(32)
_ZEROS = bytes(32)
_NONCE = b'n' * 32


def _proof(role, nonces, address, *, token=_TOKEN, service=_CONTROL):
  parts = _MAGIC, role.ljust(8), service, nonces, bytes(32), address.encode()
  return hmac.digest(token.encode(), b''.join(parts), 'sha256')


def _exactly(sock, size):
  data = b''
  while len(data) < size and (part := sock.recv(size - len(data))):
    data += part
  return data


class TokenTest(TestCase):
  def raw(self, listener):
    host, _, port = listener.address.rpartition(':')
    return self.enterContext(
      socket.create_connection((host, int(port)), WAIT_S)
    )

  def is_refused(self, sock, why):
    """Checks that a connection ends, and that the log has the reason."""
    with contextlib.suppress(ConnectionResetError):
      self.assertEqual(sock.recv(1), b'')
    wait_until(lambda: any(why in line for line in self.logs.output))

  def setUp(self):
    super().setUp()
    self.logs = self.enterContext(self.assertLogs(level='INFO'))
    transport.logging.info('So that there is a line.')

  def test_a_client_with_the_token_is_admitted(self):
    stream = self.connect(self.listener(security=_OURS), None, _OURS)
    stream.send(1)
    self.assertEqual(stream.receive(PLAIN).header, 1)

  def test_a_client_that_follows_the_documentation_is_admitted(self):
    seen = queue.SimpleQueue()
    listener = self.listener(lambda _, hello: seen.put(hello), _OURS)
    sock = self.raw(listener)
    sock.sendall(_MAGIC + _CONTROL + _NONCE)
    args = _NONCE + _exactly(sock, 32), listener.address
    sock.sendall(_proof(b'client', *args))
    self.assertEqual(_exactly(sock, 33), _proof(b'listener', *args) + b'\1')

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
    with self.assertRaisesRegex(Refused, 'not that of the listener'):
      transport.connect(listener.address, 'hello', ours, WAIT_S)
    wait_until(lambda: len(self.logs.output) > 1)
    self.assertTrue(hellos.empty())
    self.assertRegex(
      self.logs.output[1], r'127\.0\.0\.1:\d+: refused: its token is not ours'
    )
    self.assertNotIn('secret', '\n'.join(self.logs.output))

  def test_a_stranger_gets_nothing_that_depends_on_the_token(self):
    drawn = mock.patch.object(handshake.secrets, 'token_bytes', bytes)
    answers = set()
    for token in (_TOKEN, 'a secret of others', _TOKEN + '2'):
      listener = self.listener(security=Security(token=token))
      for code in (_ZEROS, _NONCE, _proof(b'client', bytes(64), '1:1')):
        sock = self.raw(listener)
        with drawn:
          sock.sendall(_MAGIC + _CONTROL + _ZEROS)
          answer = _exactly(sock, 32)
        sock.sendall(code)
        answers.add(answer + _exactly(sock, 1000))
    self.assertEqual(answers, {_ZEROS + _ZEROS})

  def test_a_client_sends_no_hello_to_a_listener_without_the_token(self):
    listener = self.listener(security=OPEN)
    with Relay(listener.address) as relay:
      with self.assertRaises(Refused):
        transport.connect(relay.address, 'a hello', _OURS, WAIT_S)
      sent = bytes(relay.received)
    self.assertLen(sent, 72 + 32)
    self.assertEqual(sent[:40], _MAGIC + _CONTROL)

  def test_a_relay_on_another_port_is_refused(self):
    listener = self.listener(security=_OURS)
    with Relay(listener.address) as relay, self.assertRaises(Refused):
      transport.connect(relay.address, None, _OURS, WAIT_S)

  def test_a_name_with_addresses_of_both_kinds_finds_the_listener(self):
    requires.host(socket.has_dualstack_ipv6(), 'There is no IPv6.')
    listener = Listener(Port('::1', 0, _OURS), echo)
    self.addCleanup(listener.close, 0.0)
    _, number = sockets.split(listener.address)
    resolve = socket.getaddrinfo

    def find(host, *rest, **options):
      hosts = ('::1', HOST) if host == 'both' else (host,)
      return [each for h in hosts for each in resolve(h, *rest, **options)]

    with mock.patch.object(net, 'getaddrinfo', find):
      stream = transport.connect(f'both:{number}', None, _OURS, WAIT_S)
    stream.send(1)
    self.assertEqual(stream.receive(PLAIN).header, 1)
    stream.close()

  def test_a_recorded_handshake_is_refused(self):
    listener = self.listener(security=_OURS)
    first = self.raw(listener)
    first.sendall(_MAGIC + _CONTROL + _NONCE)
    code = _proof(b'client', _NONCE + _exactly(first, 32), listener.address)
    first.sendall(code)
    self.assertEqual(_exactly(first, 33)[32:], b'\1')
    again = self.raw(listener)
    again.sendall(_MAGIC + _CONTROL + _NONCE)
    _exactly(again, 32)
    again.sendall(code)
    self.assertEqual(_exactly(again, 32), _ZEROS)
    self.is_refused(again, 'its token is not ours')

  def test_bytes_of_the_listener_are_no_proof_of_a_client(self):
    sock = self.raw(self.listener(security=_OURS))
    sock.sendall(_MAGIC + _CONTROL + _NONCE)
    sock.sendall(_exactly(sock, 32))
    self.assertEqual(_exactly(sock, 32), _ZEROS)
    self.is_refused(sock, 'its token is not ours')

  @parameterized.parameters(
    {'service': b'pushes'.ljust(32)}, {'role': b'listener'}
  )
  def test_a_proof_for_another_service_or_role_is_refused(
    self, role=b'client', **options
  ):
    listener = self.listener(security=_OURS)
    sock = self.raw(listener)
    sock.sendall(_MAGIC + _CONTROL + _NONCE)
    args = _NONCE + _exactly(sock, 32), listener.address
    sock.sendall(_proof(role, *args, **options))
    self.assertEqual(_exactly(sock, 32), _ZEROS)
    self.is_refused(sock, 'its token is not ours')

  @parameterized.parameters('echo', 'another address')
  def test_a_listener_without_the_token_cannot_prove_that_it_has_it(self, how):
    with socket.create_server((HOST, 0)) as server:
      address = '{}:{}'.format(*server.getsockname())

      def answer():
        with contextlib.closing(server.accept()[0]) as sock:
          nonce = _exactly(sock, 72)[40:]
          sock.sendall(nonce)
          code = _exactly(sock, 32)
          if how == 'another address':  # Of another listener with the token.
            code = _proof(b'listener', nonce + nonce, '127.0.0.1:1')
          sock.sendall(code)
          self.assertEqual(sock.recv(1000), b'')

      thread = threading.Thread(target=answer)
      thread.start()
      with self.assertRaises(Refused):
        transport.connect(address, None, _OURS, WAIT_S)
      thread.join()

  @parameterized.parameters(
    (b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + bytes(60), 'no handshake'),
    (b'GET / HTTP/1.1\r\n\r\n' + b'x' * 100, 'no handshake'),
    (b'syncope1', 'it is another version'),
    (b'syncred1' + bytes(32), 'no handshake'),
    (bytes(48), 'no handshake'),
  )
  def test_other_protocols_and_versions_are_refused_at_once(self, data, why):
    sock = self.raw(self.listener(security=_OURS))
    sock.sendall(data)
    self.is_refused(sock, f'refused: {why}')

  def test_a_service_that_is_not_offered_is_refused_by_name(self):
    listener = self.listener(security=_OURS)
    with self.assertRaisesRegex(Closed, 'has no service pushes'):
      transport.connect(listener.address, 0, _OURS, 0.2, service='pushes')
    wait_until(lambda: any('no service pushes' in x for x in self.logs.output))

  @parameterized.parameters(
    (push_service(10_000),), (share_part(10_000),), ('x' * 32,)
  )
  def test_names_of_services_may_have_32_bytes(self, service):
    listener = self.listener(security=_OURS, service=service)
    stream = transport.connect(
      listener.address, None, _OURS, WAIT_S, service=service
    )
    stream.send(1)
    self.assertEqual(stream.receive(PLAIN).header, 1)
    stream.close()

  @parameterized.parameters('', 'x' * 33, 17 * 'é')
  def test_other_names_of_services_are_refused_where_they_are_given(
    self, service
  ):
    expected = '^service: expected a name of 1 to 32 bytes'
    with self.assertRaisesRegex(ValueError, expected):
      Port(HOST, 0, _OURS).offer(service, print)
    with self.assertRaisesRegex(ValueError, expected):
      handshake.open_connection(f'{HOST}:1', _OURS, service, timeout_s=WAIT_S)

  def test_a_client_that_leaves_during_the_handshake_is_not_handled(self):
    hellos = queue.SimpleQueue()
    listener = self.listener(lambda _, hello: hellos.put(hello), _OURS)
    request = _MAGIC + _CONTROL + _NONCE
    for size in (0, 1, 71, 72):
      with self.raw(listener) as sock:
        sock.sendall(request[:size])
        if size == 72:
          _exactly(sock, 32)
          reset = struct.pack('ii', 1, 0)
          sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    self.connect(listener, 'hello', _OURS)
    self.assertEqual(PLAIN.decode(hellos.get(timeout=WAIT_S)), 'hello')
    self.assertTrue(hellos.empty())

  def test_a_client_that_is_dropped_during_tls_connects_again(self):
    security = certificates.make_security(_TOKEN)
    context = handshake.listener_context(security)
    num_dropped = 2

    def drop_some(server):
      for _ in range(num_dropped):
        sock, _ = server.accept()
        with sock:
          sock.recv(1 << 14)
      sock, _ = server.accept()
      with context.wrap_socket(sock, server_side=True) as near:
        near.settimeout(WAIT_S)
        _exactly(near, 72)

    with socket.create_server((HOST, 0)) as server:
      thread = threading.Thread(target=drop_some, args=[server])
      thread.start()
      address = f'{HOST}:{server.getsockname()[1]}'
      with self.assertRaises(Closed):
        handshake.open_connection(address, security, 'x', timeout_s=1.0)
      thread.join(0.1)
      self.assertFalse(thread.is_alive())

  def test_a_relay_with_another_certificate_is_refused(self):
    # A relay that decrypts, whose certificate the client trusts as well.
    ours, theirs = (certificates.make_security(_TOKEN) for _ in range(2))
    listener = self.listener(echo, ours)
    host, _, port = listener.address.rpartition(':')
    both = ours._replace(certificate=ours.certificate + theirs.certificate)
    far_context = handshake.client_context(ours)
    near_context = handshake.listener_context(theirs)
    passed = []

    def relay(server):
      raw, _ = server.accept()
      with (
        near_context.wrap_socket(raw, server_side=True) as near,
        far_context.wrap_socket(
          socket.create_connection((host, int(port))), server_hostname=host
        ) as far,
      ):
        far.sendall(_exactly(near, 72))
        near.sendall(_exactly(far, 32))
        far.sendall(_exactly(near, 32))
        passed.append(_exactly(far, 32))
        near.sendall(passed[0])

    with socket.create_server((HOST, 0)) as server:
      thread = threading.Thread(target=relay, args=[server])
      thread.start()
      sock = socket.create_connection(server.getsockname())
      connection = handshake.Connection(sock, listener.address)
      steps = handshake.initiate(
        connection,
        both,
        handshake.client_context(both),
        HOST,
        handshake.name_service('control'),
      )
      with self.assertRaisesRegex(Refused, 'not that of the listener'):
        handshake.run_steps(connection, steps, float('inf'))
      thread.join()
      connection.close()
    self.assertEqual(passed, [_ZEROS])


class ProofTest(parameterized.TestCase):
  def test_proofs_depend_on_all_that_both_ends_know(self):
    one, other = b'1' * 32, b'2' * 32
    codes = [
      handshake.prove(
        _TOKEN,
        role,
        handshake.Transcript(service, *nonces, certificate, address),
      )
      for role in (b'listener', b'client')
      for service in (b'control'.ljust(32), b'pushes'.ljust(32))
      for nonces in ((one, other), (other, one), (one, one))
      for certificate in (bytes(32), one)
      for address in ('10.0.0.1:1', '10.0.0.1:11', '[::1]:1')
    ]
    self.assertLen(set(codes), len(codes))

  def test_zones_of_addresses_are_not_part_of_a_proof(self):
    codes = {
      handshake.prove(
        _TOKEN,
        b'client',
        handshake.Transcript(_ZEROS, _NONCE, _NONCE, bytes(32), address),
      )
      for address in ('[fe80::1%eth0]:1', '[fe80::1%eth7]:1', '[fe80::1]:1')
    }
    self.assertLen(codes, 1)

  def test_the_digest_is_that_of_the_first_certificate(self):
    one, other = (certificates.make_security('').certificate for _ in range(2))
    der = ssl.PEM_cert_to_DER_cert(one.decode())
    chain = Security(certificate=b'a comment\n' + one + other)
    self.assertEqual(
      handshake.certificate_digest(chain), hashlib.sha256(der).digest()
    )
    self.assertEqual(handshake.certificate_digest(OPEN), bytes(32))

  def test_a_secret_is_not_printed(self):
    self.assertEqual(repr(_OURS), 'Security(token)')


if __name__ == '__main__':
  absltest.main()
