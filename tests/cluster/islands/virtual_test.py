"""Tests for virtual runs whose workers are islands."""

from absl.testing import absltest

from tests.support import small


class VirtualTest(absltest.TestCase):
  def test_the_slowest_process_of_an_island_sets_its_time(self):
    def seconds(hosts, *slowdown):
      config = small.timing(
        cluster__workers=2,
        cluster__hosts_per_worker=hosts,
        cluster__speed__slowdown=slowdown,
        cluster__speed__fixed_s=0.0,
      )
      return small.build(config)()['virtual_s']

    alone = seconds(1, 1.0)
    self.assertAlmostEqual(seconds(2, 1.0), alone / 2)
    self.assertAlmostEqual(seconds(2, 1.0, 3.0), 3 * alone / 2)
    self.assertAlmostEqual(seconds(2, 1.0, 1.0, 4.0, 1.0), 4 * alone / 2)


if __name__ == '__main__':
  absltest.main()
