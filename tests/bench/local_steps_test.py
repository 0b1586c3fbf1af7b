"""Tests for bench.local_steps."""

from absl.testing import absltest

from bench import local_steps


class BoundTest(absltest.TestCase):
  def test_a_sum_of_four_hosts_sends_three_halves_of_the_bytes(self):
    # 1.5 * 5 MB at 6.25 MB/s, after 8 steps of .02 s.
    bound_s = local_steps.bound_s(
      local_steps=8, step_s=0.02, size_bytes=5_000_000, workers=4, mbit=50
    )
    self.assertAlmostEqual(bound_s, 0.16 + 1.2)

  def test_one_worker_sends_nothing(self):
    bound_s = local_steps.bound_s(
      local_steps=1, step_s=0.5, size_bytes=10**9, workers=1, mbit=1
    )
    self.assertEqual(bound_s, 0.5)

  def test_steps_and_sums_of_fragments_go_on_at_the_same_time(self):
    fields = {'local_steps': 8, 'size_bytes': 5_000_000, 'workers': 4}
    for step_s, expected_s in ((0.02, 1.2), (0.2, 1.6)):
      bound_s = local_steps.bound_s(
        **fields, step_s=step_s, mbit=50, overlaps=True
      )
      self.assertAlmostEqual(bound_s, expected_s)

  def test_an_unknown_route_is_refused(self):
    with self.assertRaises(SystemExit):
      local_steps.main(['--routes=tree'])


if __name__ == '__main__':
  absltest.main()
