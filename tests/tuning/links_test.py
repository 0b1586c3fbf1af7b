"""Tests for tools.links: links of known clusters are found again."""

import random

import numpy as np
from absl.testing import absltest, parameterized

from tests.support import clusters
from tuning import calibration
from tuning.calibrating import links, timeline


class LinksTest(parameterized.TestCase):
  def assert_rates(self, measured, tolerance):
    for each, rates, servers in (
      (measured.links.up, clusters.UP, clusters.SERVERS['down']),
      (measured.links.down, clusters.DOWN, clusters.SERVERS['up']),
    ):
      self.assertTrue(each.worker_bound.all() and each.servers_bound)
      np.testing.assert_allclose(each.worker_Bps, rates, rtol=tolerance)
      np.testing.assert_allclose(each.servers_Bps, servers, rtol=tolerance)

  @parameterized.product(scheme=['asp', 'r2sp'], servers=[1, 2])
  def test_links_that_bind_are_found(self, scheme, servers):
    measured = clusters.calibration(scheme, servers)

    self.assert_rates(measured, 0.01)
    self.assertEqual(measured.size_bytes, 5_000_004)
    for each in (measured.links.up, measured.links.down):
      np.testing.assert_allclose(each.latency_s, 2e-3, rtol=0.1)
      self.assertLess(each.errors, 1e-3)
      self.assertBetween(
        each.used.sum(), 0.95 * clusters.ITERATIONS, clusters.ITERATIONS
      )

  @parameterized.parameters(1, 2)
  def test_noise_of_2_percent_moves_rates_by_less_than_5(self, servers):
    measured = calibration.measure(
      clusters.with_noise(clusters.run('asp', servers), 0.02)
    )

    self.assert_rates(measured, 0.05)
    self.assertBetween(measured.links.up.errors, 0.005, 0.03)

  def test_stalls_change_no_rates_but_the_mean_time(self):
    generator = random.Random(0)

    def change(row):
      if row['name'] in ('pull', 'push') and generator.random() < 0.03:
        row['dur'] *= 4

    folder = clusters.with_timeline(clusters.run('asp'), change)
    measured = calibration.measure(folder)

    self.assert_rates(measured, 0.05)
    pushes = timeline.transfers(timeline.read(folder), 'push')
    before = timeline.transfers(timeline.read(clusters.run('asp')), 'push')
    stalled_s = pushes.seconds.mean() - before.seconds.mean()
    self.assertGreater(stalled_s, 5e-3)
    self.assertAlmostEqual(measured.links.up.excess_s, stalled_s, delta=1e-3)
    (latency_s,) = measured.config.cluster.network.worker_latency_s
    excess_s = (measured.links.up.excess_s + measured.links.down.excess_s) / 2
    self.assertAlmostEqual(latency_s, 2e-3 + excess_s, delta=1e-3)

  def test_latency_and_rate_are_separated(self):
    folder = clusters.run('asp', cluster__network__server_latency_s=(0.03,))

    measured = calibration.measure(clusters.with_noise(folder, 0.02))

    for each in (measured.links.up, measured.links.down):
      np.testing.assert_allclose(each.latency_s, 0.032, rtol=0.2)

  def test_an_unbound_link_has_at_least_its_used_rate(self):
    # All pull at once, and no worker is slower than a quarter of the server.
    measured = clusters.calibration('bsp')

    self.assertFalse(measured.links.down.worker_bound.any())
    np.testing.assert_allclose(measured.links.down.servers_Bps, 70e6, rtol=0.02)
    quarter = [70e6 / 4] * 4
    np.testing.assert_allclose(
      measured.links.down.worker_Bps, quarter, rtol=0.02
    )
    table = calibration.describe(measured)
    self.assertRegex(table, r'worker 0 +20 +>= 17\.\d')
    self.assertIn('WARNING: >= marks links that never held', table)
    self.assertNotIn('>=', calibration.describe(clusters.calibration('asp')))

  @parameterized.parameters(1, 2)
  def test_model_with_true_links_gives_the_durations_of_a_run(self, servers):
    recorded = timeline.read(clusters.run('asp', servers))
    for phase, rates, total in (
      ('pull', clusters.DOWN, clusters.SERVERS['up']),
      ('push', clusters.UP, clusters.SERVERS['down']),
    ):
      transfers = timeline.transfers(recorded, phase)

      seconds = links.replay(
        transfers,
        worker_Bps=np.array(rates),
        servers_Bps=total,
        latency_s=2e-3,
        size_bytes=5_000_004,
      )

      # The last ones met transfers that the end of the run cut off.
      kept = slice(0, -8)
      np.testing.assert_allclose(
        seconds[kept], transfers.seconds[kept], rtol=1e-5
      )


if __name__ == '__main__':
  absltest.main()
