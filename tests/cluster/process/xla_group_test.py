"""Tests for cluster.process.xla_group: where it listens, and with which TLS."""

import contextlib
import inspect
import pathlib
import socket
import ssl
import tempfile
from unittest import mock

import jax
from absl.testing import absltest, parameterized

import train
from cluster.process import roles, xla_group
from configs import default
from tests.support import accelerators, certificates, commands, requires, small

_HAS_TLS = (
  'mtls_cert_file' in inspect.signature(jax.distributed.initialize).parameters
)
_ROOT = pathlib.Path(__file__).parents[3]
_LIMIT_S = 50.0

# Joins a group of one, prints the addresses that the process listens on, and
# waits for the end of its standard input.
_JOIN = """
import os
import sys
import psutil
from cluster.process import xla_group

address, *files = sys.argv[1:]
xla_group.join(address, listen=address, count=1, index=0, devices=[],
               start_s=40.0, tls=xla_group.Tls(*files) if files else None)
port = int(address.rpartition(':')[2])
for found in psutil.Process().net_connections('inet'):
  if found.status == psutil.CONN_LISTEN and found.laddr.port == port:
    print(found.laddr.ip.removeprefix('::ffff:'))
print('end', flush=True)
sys.stdin.read()
"""


class ListeningTest(absltest.TestCase):
  @contextlib.contextmanager
  def _joined(self, address, *files):
    """Yields the hosts that a process listens on at the port of a group."""
    words = commands.python(_JOIN, address, *map(str, files))
    env = accelerators.cpu()
    with commands.start(words, env=env, answers=True) as process:
      yield [*iter(process.receive, 'end')]

  def test_the_service_listens_on_the_address_of_the_run_alone(self):
    (port,) = roles.free_ports(1)
    with self._joined(f'127.0.0.1:{port}') as hosts:
      self.assertEqual({*hosts}, {'127.0.0.1'})
      with self.assertRaises(ConnectionRefusedError):
        socket.create_connection(('127.0.0.2', port), _LIMIT_S)

  def test_the_service_takes_no_client_without_the_certificate(self):
    requires.host(_HAS_TLS, 'JAX has no TLS before 0.12.')
    files = certificates.write(pathlib.Path(tempfile.mkdtemp()))
    (port,) = roles.free_ports(1)
    known, stranger = (
      ssl.create_default_context(cafile=files[0]) for _ in range(2)
    )
    known.load_cert_chain(*files)
    with self._joined(f'127.0.0.1:{port}', *files) as hosts:
      self.assertEqual({*hosts}, {'127.0.0.1'})
      self.assertNotEmpty(self._first_bytes(known, port))
      self.assertEmpty(self._first_bytes(stranger, port))

  def _first_bytes(self, context, port):
    """Returns what the service sends first, over TLS; b'' if it refuses."""
    context.set_alpn_protocols(['h2'])
    plain = socket.create_connection(('127.0.0.1', port), _LIMIT_S)
    with (
      contextlib.suppress(ssl.SSLError, ConnectionError),
      context.wrap_socket(plain, server_hostname='127.0.0.1') as sock,
    ):
      return sock.recv(100)
    return b''


class TlsTest(parameterized.TestCase):
  def _cluster(self, **fields):
    cluster = default.get_config().cluster
    cluster.update(
      {'certificate_file': '/cert.pem', 'key_file': '/key.pem'} | fields
    )
    return cluster

  def _use_jax(self, has_tls):
    def initialize(coordinator_address, *_, **options):
      self._calls.append((coordinator_address, options))

    def initialize_with_tls(coordinator_address, mtls_cert_file=None):
      del coordinator_address, mtls_cert_file

    self._calls = []
    chosen = initialize_with_tls if has_tls else initialize
    self.enter_context(mock.patch.object(jax.distributed, 'initialize', chosen))

  def test_a_run_without_a_certificate_has_no_tls(self):
    self._use_jax(has_tls=False)
    cluster = self._cluster(certificate_file='', key_file='')
    self.assertIsNone(xla_group.find_tls(cluster))

  def test_a_certificate_is_refused_where_jax_has_no_tls(self):
    self._use_jax(has_tls=False)
    with self.assertRaisesRegex(
      ValueError, "^config.cluster.certificate_file: expected '' .*JAX 0.12"
    ):
      xla_group.find_tls(self._cluster())

  @parameterized.parameters(
    ({'key_file': ''}, 'key_file: expected the key of /cert.pem in each'),
    ({'tls_name': 'name'}, "tls_name: expected '' .*name the address"),
  )
  def test_certificates_that_jax_cannot_use_are_refused(self, fields, message):
    self._use_jax(has_tls=True)
    with self.assertRaisesRegex(ValueError, f'^config.cluster.{message}'):
      xla_group.find_tls(self._cluster(**fields))

  def test_all_processes_get_the_files_and_the_first_one_an_address(self):
    self._use_jax(has_tls=True)
    tls = xla_group.find_tls(self._cluster())
    self._use_jax(has_tls=False)
    for index, listen in ((0, '10.0.0.1:7'), (1, '')):
      xla_group.join(
        'name:7',
        listen=listen,
        count=2,
        index=index,
        devices=[],
        start_s=1.0,
        tls=tls,
      )
    for (address, options), listen in zip(
      self._calls, ('10.0.0.1:7', None), strict=True
    ):
      self.assertEqual(address, 'name:7')
      self.assertEqual(options['coordinator_bind_address'], listen)
      found = {k: v for k, v in options.items() if k.startswith('mtls')}
      self.assertEqual(
        found,
        {
          'mtls_cert_file': '/cert.pem',
          'mtls_key_file': '/key.pem',
          'mtls_ca_file': '/cert.pem',
        },
      )

  @parameterized.parameters(
    {'route__name': 'native'}, {'cluster__hosts_per_worker': 2}
  )
  def test_a_run_with_a_certificate_is_refused_before_anything_starts(
    self, **fields
  ):
    self._use_jax(has_tls=False)
    config = small.config(
      cluster__runtime='distributed',
      cluster__workers=2,
      cluster__speed__slowdown=(1.0,),
      cluster__certificate_file='/cert.pem',
      cluster__key_file='/key.pem',
      **fields,
    )
    folder = pathlib.Path(tempfile.mkdtemp()) / 'run'
    with self.assertRaisesRegex(ValueError, 'certificate_file: .*JAX 0.12'):
      train.build(
        config,
        workdir=str(folder),
        process={'role': 'worker:0', 'coordinator': ''},
      )
    self.assertFalse((folder / 'token').exists())


if __name__ == '__main__':
  absltest.main()
