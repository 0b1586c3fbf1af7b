"""Tests for cluster.network.sockets: addresses of IPv4 and IPv6."""

from absl.testing import absltest, parameterized

from cluster.network import sockets


class AddressTest(parameterized.TestCase):
  @parameterized.parameters(
    ('10.0.0.1', 80, '10.0.0.1:80'),
    ('::1', 80, '[::1]:80'),
    ('fe80::1%eth0', 80, '[fe80::1%eth0]:80'),
    ('host.example', 80, 'host.example:80'),
  )
  def test_addresses_are_joined_and_split(self, host, port, address):
    self.assertEqual(sockets.join(host, port), address)
    self.assertEqual(sockets.split(address), (host, port))

  @parameterized.parameters('', 'host', ':80', 'host:', 'host:x', '::1:80')
  def test_other_texts_are_refused(self, address):
    with self.assertRaisesRegex(ValueError, 'address: expected HOST:PORT'):
      sockets.split(address)

  @parameterized.parameters(
    ('127.0.0.1:1', '127.0.0.1:1'),
    ('localhost:1', '127.0.0.1:1'),
    ('[::1]:1', '[::1]:1'),
    ('[0:0::1]:1', '[::1]:1'),
  )
  def test_hosts_are_resolved_to_numbers(self, address, expected):
    self.assertEqual(sockets.resolve(address)[0], expected)

  @parameterized.parameters(
    ('10.0.0.1', True),
    ('::1', True),
    ('fe80::1%eth0', True),
    ('0.0.0.0', False),
    ('::', False),
    ('localhost', False),
    ('', False),
  )
  def test_specific_hosts_are_addresses_of_one_interface(self, host, expected):
    self.assertEqual(sockets.is_specific(host), expected)


class OriginTest(absltest.TestCase):
  def test_addresses_of_a_network_of_ipv6_have_one_origin(self):
    self.assertEqual(sockets.origin('10.0.0.1'), '10.0.0.1')
    own = {sockets.origin(f'fd00:0:0:7::{n}') for n in (1, 2, 'ffff:1')}
    self.assertLen(own, 1)
    self.assertNotIn(sockets.origin('fd00:0:0:8::1'), own)
    self.assertLen({sockets.origin(f'fe80::{n}%eth0') for n in (1, 2)}, 1)


if __name__ == '__main__':
  absltest.main()
