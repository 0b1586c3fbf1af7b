"""Tests for the fields of timing-only runs."""

import math

from absl.testing import absltest, parameterized

from configs import default, timing
from tests.support import small


class TimingTest(parameterized.TestCase):
  @parameterized.parameters(1, 4)
  def test_an_iteration_takes_its_computing_and_its_transfers(
    self, local_steps
  ):
    run = small.build(
      timing.config(
        timing.fields(
          workers=2,
          iterations=10,
          size_bytes=1_000_000,
          batch=4,
          local_steps=local_steps,
          compute_s=0.25,
        ),
        timing.links(math.inf, 1e7),
        {
          'cluster.network.worker_latency_s': (0.0,),
          'cluster.network.server_latency_s': (0.0,),
        },
        timing.FEW_OUTPUTS,
      )
    )
    summary = run()
    # Two pushes share the server's link, as do two pulls.
    self.assertAlmostEqual(summary['virtual_s'], 10 * (0.25 + 0.2 + 0.2))
    self.assertEqual(summary['iterations'], 20)
    self.assertEqual(summary['examples'], 2 * 10 * 4 * local_steps)

  def test_batch_and_speeds_are_the_defaults_unless_given(self):
    usual = default.get_config()
    config = timing.config(
      timing.fields(workers=2, iterations=3, size_bytes=8),
      timing.links(1e9),
      {'route.name': 'ring'},
    )
    self.assertEqual(config.batching, usual.batching)
    self.assertEqual(config.cluster.speed, usual.cluster.speed)
    self.assertEqual(
      config.cluster.network.server_up_Bps, usual.cluster.network.server_up_Bps
    )

  def test_later_parts_win(self):
    config = timing.config({'seed': 1, 'epochs': 2.0}, {'seed': 2})
    self.assertEqual((config.seed, config.epochs), (2, 2.0))


if __name__ == '__main__':
  absltest.main()
