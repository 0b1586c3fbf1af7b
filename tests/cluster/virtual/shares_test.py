"""Tests for cluster.virtual.shares."""

import math
import pickle

import numpy as np
from absl.testing import absltest, parameterized

from cluster.virtual.shares import Shares
from tests.support import small

_MB = 1e6


class WeightTest(parameterized.TestCase):
  @parameterized.parameters(
    # At 100 kB sigma itself, and a quarter of it at four times the bytes.
    (0.6, 1e5, 0.6),
    (0.6, 4e5, 0.15),
    (0.2, 5e4, 0.4),
    (0.2, 1e3, 0.4),
  )
  def test_logarithm_is_normal(self, sigma, size_bytes, deviation):
    shares = Shares(sigma=sigma, seed=3)

    logs = [math.log(shares.draw(0, 1, size_bytes)) for _ in range(4000)]

    # Five standard errors.
    error = 5 * deviation / math.sqrt(4000)
    self.assertAlmostEqual(np.mean(logs), 0.0, delta=error)
    self.assertAlmostEqual(np.std(logs), deviation, delta=error)

  def test_weights_do_not_depend_on_transfers_between_other_hosts(self):
    alone, among = Shares(sigma=0.5, seed=1), Shares(sigma=0.5, seed=1)

    expected = [alone.draw(0, 1, _MB) for _ in range(3)]
    weights = []
    for _ in range(3):
      among.draw(1, 0, _MB)
      weights.append(among.draw(0, 1, _MB))
      among.draw(0, 2, _MB)

    self.assertEqual(weights, expected)
    self.assertLen({*weights, among.draw(2, 0, _MB)}, 4)

  def test_equal_shares_have_weight_1(self):
    self.assertEqual(Shares(sigma=0.0, seed=1).draw(0, 1, _MB), 1.0)

  def test_restored_shares_continue_as_the_saved_ones(self):
    shares = Shares(sigma=0.5, seed=1)
    shares.draw(0, 1, _MB)
    again = pickle.loads(pickle.dumps(shares))

    self.assertEqual(again.draw(0, 1, _MB), shares.draw(0, 1, _MB))

  @parameterized.parameters(-0.1, math.inf, math.nan)
  def test_rejects_sigma(self, sigma):
    with self.assertRaisesRegex(ValueError, f'share_sigma: .*{sigma}'):
      Shares(sigma=sigma, seed=1)


def _summary(**fields):
  fields = {
    'sync__name': 'asp',
    'cluster__speed__name': 'constant',
    'cluster__speed__slowdown': (1.0,),
    'cluster__speed__fixed_s': 1.0,
    'cluster__speed__per_example_s': 0.0,
    'cluster__network__server_up_Bps': (_MB,),
    'cluster__network__server_down_Bps': (_MB,),
    'cluster__network__server_latency_s': (0.0,),
    'cluster__network__worker_latency_s': (0.0,),
  } | fields
  run = small.build(small.timing(size_bytes=1_000_000, **fields))
  return run()


class RunTest(parameterized.TestCase):
  def test_single_worker_takes_as_long_as_with_equal_shares(self):
    one = {'cluster__workers': 1}

    equal = _summary(**one)['virtual_s']

    unequal = _summary(**one, cluster__network__share_sigma=1.0)['virtual_s']
    self.assertAlmostEqual(unequal, equal, places=9)

  def test_equal_workers_lose_step_and_so_use_links_while_others_compute(self):
    fields = {'cluster__workers': 3}

    together = _summary(**fields)

    # All pull 3 MB at 1 MB/s, compute for 1 s and push 3 MB.
    rounds = together['iterations'] / 3
    self.assertAlmostEqual(together['virtual_s'], 7.0 * rounds, places=6)
    apart = _summary(**fields, cluster__network__share_sigma=6.0)
    self.assertLess(apart['virtual_s'], 0.9 * together['virtual_s'])
    # Both links carry 1 MB of each iteration.
    self.assertGreater(apart['virtual_s'], together['iterations'] * 1.0)

  def test_burst_shortens_pushes_and_pulls(self):
    one = {'cluster__workers': 1}

    plain = _summary(**one)

    # All links earn more than a burst while the worker computes.
    burst = _summary(**one, cluster__network__burst_bytes=1e5)
    saved_s = 2 * 0.1 * plain['iterations']
    self.assertAlmostEqual(
      burst['virtual_s'], plain['virtual_s'] - saved_s, places=6
    )

  @parameterized.parameters('share_sigma', 'burst_bytes')
  def test_routes_without_servers_refuse_the_fields(self, name):
    fields = {f'cluster__network__{name}': 0.5, 'route__name': 'ring'}

    with self.assertRaisesRegex(ValueError, f'{name}: .*no servers'):
      small.build(small.timing(size_bytes=1_000_000, **fields))


if __name__ == '__main__':
  absltest.main()
