"""Tests for papers.tuning."""

from absl.testing import absltest

from papers import tuning


def _row(scheme, rate, loss, status='finished'):
  return {
    'run': f'{scheme}-{rate}',
    'status': status,
    'sync.name': scheme,
    tuning.RATE: rate,
    tuning.LOSS: loss,
  }


class TuningTest(absltest.TestCase):
  def test_the_rate_with_the_smallest_mean_loss_is_chosen_per_scheme(self):
    rows = [
      *(_row('bsp', '0.01', '0.5'), _row('bsp', '0.01', '0.7')),
      *(_row('bsp', '0.02', '0.1'), _row('bsp', '0.02', '1.3')),
      *(_row('asp', '0.01', '0.5'), _row('asp', '0.02', '0.4')),
    ]
    chosen = tuning.choose_rates(rows)
    self.assertEqual(chosen['bsp',][0], 0.01)
    self.assertAlmostEqual(chosen['bsp',][1][0.02], 0.7)
    self.assertEqual(chosen['asp',][0], 0.02)

  def test_a_diverged_run_rules_out_its_rate(self):
    rows = [
      *(_row('bsp', '0.01', '2'), _row('bsp', '0.02', '0.1')),
      _row('bsp', '0.02', '', 'diverged'),
    ]
    self.assertEqual(tuning.choose_rates(rows)['bsp',][0], 0.01)

  def test_a_failed_run_is_refused_by_name(self):
    with self.assertRaisesRegex(ValueError, "got 'failed' of bsp-0.01"):
      tuning.choose_rates([_row('bsp', '0.01', '', 'failed')])


if __name__ == '__main__':
  absltest.main()
