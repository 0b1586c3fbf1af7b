"""Tests for cluster.network.credentials and cluster.network.interfaces."""

import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.network import credentials
from cluster.network.interfaces import interface_address, interface_name
from configs import default
from system import net
from tests.support import requires

_SECRET = 'a secret of sixteen or more'
_CERTIFICATE = '-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n'
_KEY = '-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n'
_ETH0 = '192.0.2.1'


class CredentialsTest(parameterized.TestCase):
  def _security(self, address='127.0.0.1', tls_name='', **contents):
    folder = pathlib.Path(tempfile.mkdtemp())
    cluster = default.get_config().cluster
    cluster.tls_name = tls_name
    for name, content in contents.items():
      path = folder / name
      if content is not None:
        path.write_bytes(content.encode('latin-1'))
        path.chmod(0o600)
      cluster[f'{name}_file'] = str(path)
    return credentials.security(cluster, address)

  def test_files_are_read(self):
    security = self._security(
      token=f' {_SECRET}\n',
      certificate=_CERTIFICATE,
      key=_KEY,
      tls_name='coordinator.example',
      address=_ETH0,
    )
    self.assertEqual(
      tuple(security),
      (_SECRET, _CERTIFICATE.encode(), _KEY.encode(), 'coordinator.example'),
    )

  def test_loopback_needs_no_token(self):
    self.assertEqual(tuple(self._security()), ('', b'', b'', ''))
    self.assertTrue(self._security(certificate=_CERTIFICATE).certificate)

  @parameterized.product(
    name=('token', 'certificate', 'key'), content=('', ' \n\t\n', None)
  )
  def test_an_empty_or_missing_file_is_an_error(self, name, content):
    message = f'^config.cluster.{name}_file: expected a file'
    with self.assertRaisesRegex(ValueError, message):
      self._security(**{name: content})

  @parameterized.parameters(
    ({'token': 'short'}, 'token_file: expected a secret of 16 .* got .*5 in'),
    ({'token': '\0' * 9}, 'token_file: expected a secret of 16'),
    ({'certificate': _SECRET}, 'certificate_file: expected PEM'),
    ({'certificate': _CERTIFICATE, 'key': _SECRET}, 'key_file: expected PEM'),
    ({'key': _KEY}, 'certificate_file: expected the certificate of key_file'),
    (
      {'tls_name': 'coordinator'},
      'tls_name: expected .* without certificate_file',
    ),
    ({'address': _ETH0}, f'token_file: .*others can reach {_ETH0} .*openssl'),
    ({'address': '10.0.0.1', 'certificate': _CERTIFICATE}, 'token_file: '),
  )
  def test_other_contents_are_refused_by_the_name_of_the_field(
    self, given, message
  ):
    with self.assertRaisesRegex(ValueError, f'^config.cluster.{message}'):
      self._security(**given)

  @parameterized.parameters(0o644, 0o640, 0o602)
  def test_a_file_that_others_may_read_is_warned_of(self, mode):
    cluster = default.get_config().cluster
    path = pathlib.Path(tempfile.mkdtemp(), 'token')
    path.write_text(_SECRET)
    path.chmod(mode)
    cluster.token_file = str(path)
    with self.assertLogs(level='WARNING') as logs:
      self.assertEqual(credentials.security(cluster, _ETH0).token, _SECRET)
    self.assertIn(
      f'token_file: others than you may read or change {path}', logs.output[0]
    )
    self.assertNotIn(_SECRET, logs.output[0])

  def test_the_token_of_the_run_is_the_default(self):
    path = pathlib.Path(tempfile.mkdtemp(), 'token')
    path.write_text(_SECRET)
    path.chmod(0o600)
    cluster = default.get_config().cluster
    with self.assertNoLogs(level='WARNING'):
      found = credentials.security(cluster, _ETH0, str(path))
      self.assertEqual(found.token, _SECRET)
    cluster.token_file = str(path)
    found = credentials.security(cluster, _ETH0, '/no/file')
    self.assertEqual(found.token, _SECRET)

  def _token(self):
    path = pathlib.Path(tempfile.mkdtemp(), 'token')
    path.write_text(_SECRET)
    path.chmod(0o600)
    return path

  def test_a_named_file_of_another_user_is_warned_of(self):
    requires.host(os.geteuid() == 0, 'Only root can give files away.')
    path = self._token()
    os.chown(path, 12345, -1)
    cluster = default.get_config().cluster
    cluster.token_file = str(path)
    with self.assertLogs(level='WARNING') as logs:
      self.assertEqual(credentials.security(cluster, _ETH0).token, _SECRET)
    self.assertIn('others than you may read or change', logs.output[0])

  def test_a_token_of_another_user_in_the_folder_of_the_run_is_refused(self):
    requires.host(os.geteuid() == 0, 'Only root can give files away.')
    path = self._token()
    os.chown(path, 12345, -1)
    cluster = default.get_config().cluster
    with self.assertRaisesRegex(
      ValueError, f'^workdir: expected {path} .* this user .*got .*12345'
    ):
      credentials.security(cluster, _ETH0, str(path))

  def test_a_token_where_all_new_files_have_another_owner_is_used(self):
    path = self._token()
    cluster = default.get_config().cluster
    with mock.patch.object(os, 'geteuid', lambda: os.getuid() + 1):
      found = credentials.security(cluster, _ETH0, str(path))
    self.assertEqual(found.token, _SECRET)

  def test_a_link_in_the_folder_of_the_run_is_refused_and_a_named_one_used(
    self,
  ):
    path = self._token()
    link = path.with_name('link')
    link.symlink_to(path)
    cluster = default.get_config().cluster
    with self.assertRaisesRegex(ValueError, 'token_file: expected a file'):
      credentials.security(cluster, _ETH0, str(link))
    cluster.token_file = str(link)
    self.assertEqual(credentials.security(cluster, _ETH0).token, _SECRET)


class InterfaceAddressTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    found = {
      'lo': ['127.0.0.1', '::1'],
      'eth0': ['10.0.0.4', 'fd00::4'],
      'ib0': ['10.1.0.4'],
      'eth6': ['fd06::4'],
      'eth7': ['fd07::4', 'fd07::5'],
      'down': [],
    }
    self.enter_context(
      mock.patch.object(net, 'interface_addresses', lambda: found)
    )

  @parameterized.parameters(
    ('lo', 'lo', '127.0.0.1'),
    ('eth0', 'eth0', '10.0.0.4'),
    ('10.0.0.0/16', 'eth0', '10.0.0.4'),
    ('10.1.0.0/255.255.0.0', 'ib0', '10.1.0.4'),
    ('10.1.0.4/32', 'ib0', '10.1.0.4'),
    ('127.0.0.0/8', 'lo', '127.0.0.1'),
    ('10.1.0.4', 'ib0', '10.1.0.4'),
    ('eth6', 'eth6', 'fd06::4'),
    ('::1', 'lo', '::1'),
    ('fd00::4', 'eth0', 'fd00::4'),
    ('fd00:0::4', 'eth0', 'fd00::4'),
    ('fd06::/16', 'eth6', 'fd06::4'),
  )
  def test_an_address_is_found_by_interface_or_network(
    self, name, interface, address
  ):
    self.assertEqual(interface_address(name), address)
    self.assertEqual(interface_name(name), interface)

  @parameterized.parameters(
    ('eth1', r"one of .'eth0', 'eth6', 'eth7', 'ib0', 'lo'., or a network"),
    ('10.0.0.0/8', r"a smaller network .*\['10.0.0.4', '10.1.0.4'\]"),
    ('172.16.0.0/12', r"a network with one address of .*'eth0': \['10.0.0.4'"),
    ('10.0.0.1/16', 'a network such as 10.0.0.0/8 or .*host bits set'),
    ('fd00::/8', r"a smaller network .*\['fd00::4', 'fd06::4', 'fd07::4'"),
    ('fd08::4', 'a network with one address of'),
    ('eth7', r"one of the addresses \['fd07::4', 'fd07::5'\] instead"),
    ('down', 'one with an address that is not link-local'),
    ('fe80::/64', 'a network that is not link-local'),
    ('fe80::1%eth0', 'a network that is not link-local'),
    ('/', 'a network such as 10.0.0.0/8'),
  )
  def test_other_names_are_refused_with_a_list_of_addresses(self, name, why):
    with self.assertRaisesRegex(ValueError, f'interface: expected {why}'):
      interface_address(name)


if __name__ == '__main__':
  absltest.main()
