"""Tests for the comparison of hosts by the rates of their connections.

Rates are equal shares of the slower of two links, with jitter.
"""

import numpy as np
from absl.testing import absltest, parameterized

from analysis import sentences
from diagnosis import server_links, traffic
from diagnosis.server_links import Rates

_MBIT = 1e6 / 8


def _rates(workers, servers, up, down, *, sigma=0.0, seed=0):
  """Rates of all connections, given hosts and the links of hosts, Mbit/s."""
  generator = np.random.default_rng(seed)
  rates = {}
  for worker, src in enumerate(workers):
    for server, dst in enumerate(servers):
      out = sum(a == src and b != src for a in workers for b in servers)
      into = sum(b == dst and a != dst for a in workers for b in servers)
      share = min(up[src] / max(out, 1), down[dst] / max(into, 1))
      if src == dst:
        share = 1e5
      rates[worker, server] = share * _MBIT * np.exp(generator.normal(0, sigma))
  return rates


def _links(count, slow=None, rate=50):
  return {f'h{k}': rate if k == slow else 500 for k in range(count)}


def _compare(count, slow=None, rate=50, *, each=1, **more):
  """Compares hosts with `each` workers, and a server in each worker."""
  hosts = [f'h{k}' for k in range(count) for _ in range(each)]
  links = _links(count, slow, rate)
  rates = _rates(hosts, hosts, links, links, **more)
  return server_links.compare(rates, hosts, hosts)


def _blamed(found):
  return [host for host, rates in found.items() if rates.slowness > 1]


class CompareTest(parameterized.TestCase):
  @parameterized.parameters((3, 1), (4, 1), (8, 1), (16, 1), (3, 4), (8, 4))
  def test_a_host_with_a_slow_link_is_found(self, count, each):
    found = _compare(count, slow=1, each=each, sigma=0.1)

    self.assertEqual(_blamed(found), ['h1'])
    self.assertBetween(found['h1'].slowness, 8, 12.5)
    if each == 1:
      share = 500 * _MBIT / (count - 1)
      self.assertAlmostEqual(found['h1'].usual_Bps, share, delta=0.15 * share)

  def test_half_of_the_rate_is_found(self):
    blamed = [
      _blamed(_compare(4, slow=2, rate=250, sigma=0.1, seed=seed))
      for seed in range(100)
    ]
    self.assertGreaterEqual(blamed.count(['h2']), 90)

  @parameterized.parameters(3, 4, 8, 16)
  def test_equal_hosts_are_not_blamed(self, count):
    blamed = [
      host
      for seed in range(100)
      for host in _blamed(_compare(count, sigma=0.1, seed=seed))
    ]
    self.assertLen(blamed, 0)

  @parameterized.parameters('up', 'down')
  def test_one_direction_is_enough(self, direction):
    hosts = [f'h{k}' for k in range(4)]
    links = {'up': _links(4), 'down': _links(4), direction: _links(4, slow=3)}
    found = server_links.compare(_rates(hosts, hosts, **links), hosts, hosts)
    self.assertEqual(_blamed(found), ['h3'])

  def test_links_between_sites_blame_no_host(self):
    hosts = [f'h{k}' for k in range(4)]
    rates = {
      (k, n): (100 if k // 2 == n // 2 else 5 + k) * _MBIT
      for k in range(4)
      for n in range(4)
    }
    self.assertEmpty(_blamed(server_links.compare(rates, hosts, hosts)))

  def test_servers_on_hosts_of_their_own(self):
    workers = [f'h{k}' for k in range(6)]
    servers = ['s0', 's1', 's2']
    links = {**_links(6), 's0': 500, 's1': 50, 's2': 500}
    rates = _rates(workers, servers, links, links, sigma=0.05)

    found = server_links.compare(rates, workers, servers)

    self.assertEqual([*found], servers)
    self.assertEqual(_blamed(found), ['s1'])

  def test_too_few_hosts_are_not_compared(self):
    self.assertEmpty(_compare(1))
    self.assertEmpty(_compare(1, each=4))
    self.assertEmpty(_compare(2, slow=1))
    self.assertEmpty(server_links.compare({(0, 1): 1.0}, ['a', 'b'], []))
    self.assertEmpty(server_links.compare({}, ['a'] * 3, ['b', 'c']))

  def test_medians_over_windows(self):
    windows = [
      {'a': Rates(1.0, 10.0)},
      {'a': Rates(2.0, 30.0), 'b': Rates(5.0, 6.0)},
      {'a': Rates(9.0, 20.0)},
    ]
    self.assertEqual(
      server_links.medians(windows),
      {'a': Rates(2.0, 20.0), 'b': Rates(5.0, 6.0)},
    )


class JudgeTest(absltest.TestCase):
  def _judge(self, slowness, windows=30, exposed=0.8):
    found = [
      traffic.Traffic(
        start=2.0 * k,
        iterations=2,
        exposed=exposed,
        slowness={'a': 1.0, 'b': slowness(k), 'c': 1.0},
      )
      for k in range(windows)
    ]
    rates = {host: Rates(2e6, 20e6) for host in 'abc'}
    return sentences.on_server_links(found, rates, ['a', 'b', 'b', ''])

  def test_the_cost_is_that_of_exposed_communication(self):
    (found,) = self._judge(lambda k: 10.0)

    # 1 - .8 * (1 - 1 / 10).
    self.assertAlmostEqual(found.share.value, 0.28, places=3)
    self.assertEqual(
      found.text,
      'link of host b (worker 1, 2): a connection over it carries 16 Mbit/s, '
      'one between other hosts 160 Mbit/s, since the start; without it the run '
      'would take 28 % (28 to 28 %) of its time',
    )

  def test_since_when_it_is_slow(self):
    (found,) = self._judge(lambda k: 10.0 if k >= 15 else 1.0)
    self.assertIn('since 30 s', found.text)
    (found,) = self._judge(lambda k: 10.0 if k < 15 else 1.0)
    self.assertIn('from the start to', found.text)

  def test_nobody_is_blamed_without_a_cost(self):
    self.assertEmpty(self._judge(lambda k: 1.0))
    self.assertEmpty(self._judge(lambda k: 10.0, exposed=0.001))

  def test_few_windows_are_insufficient_evidence(self):
    self.assertEmpty(self._judge(lambda k: 10.0, windows=0))
    for count, words in ((1, '1 window of'), (9, '9 windows of')):
      (found,) = self._judge(lambda k: 10.0, windows=count)
      self.assertEqual(found.kind, 'insufficient')
      expected = f'insufficient evidence of links: {words} traffic'
      self.assertEqual(found.text, expected)
    (found,) = self._judge(lambda k: 10.0, windows=10)
    self.assertEqual(found.kind, 'link')


if __name__ == '__main__':
  absltest.main()
