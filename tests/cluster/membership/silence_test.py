"""Tests for the measurement of silence."""

from absl.testing import absltest, parameterized

from cluster.membership.silence import Silence


class SilenceTest(parameterized.TestCase):
  def test_silence_is_the_time_since_the_last_message(self):
    silence, heard = Silence(1.0), {'a': 0.0, 'b': 0.0}
    for now in range(1, 20):
      if now < 10:
        heard['a'] = now - 0.25
      found = silence.measure(float(now), heard)
      self.assertAlmostEqual(found['a'], now - heard['a'])
      self.assertAlmostEqual(found['b'], now)

  @parameterized.parameters(1.5, 5.0, 1e4)
  def test_a_late_measurement_counts_two_intervals(self, pause_s):
    silence = Silence(1.0)
    silence.measure(1.0, {'a': 0.5})
    found = silence.measure(1.0 + pause_s, {'a': 0.5})
    self.assertAlmostEqual(found['a'], 0.5 + min(pause_s, 2.0))
    found = silence.measure(2.0 + pause_s, {'a': 0.5})
    self.assertAlmostEqual(found['a'], 1.5 + min(pause_s, 2.0))

  def test_a_process_without_a_message_is_lost_if_each_measurement_is_late(
    self,
  ):
    silence, found = Silence(1.0), {}
    for count in range(12):
      found = silence.measure(10.0 * count, {'a': 0.0})
    self.assertAlmostEqual(found['a'], 22.0)

  def test_a_message_ends_the_silence(self):
    silence = Silence(1.0)
    silence.measure(1.0, {'a': 0.0})
    self.assertAlmostEqual(silence.measure(9.0, {'a': 8.75})['a'], 0.25)

  def test_processes_come_and_go(self):
    silence = Silence(1.0)
    silence.measure(1.0, {'a': 0.0})
    self.assertEqual(silence.measure(2.0, {'b': 2.0}), {'b': 0.0})
    self.assertEqual(silence.measure(3.0, {}), {})


if __name__ == '__main__':
  absltest.main()
