"""Tests for calibrations of allreduce runs on known clusters."""

import functools
import pathlib
import runpy
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

import analysis
from analysis.traffic import Link
from tests.support import small
from tuning import calibration
from tuning.calibrating import allreduce, timeline

_SIZE = 2_000_000
# Host 3 has a slow link, both ways, and in the other star one of two.
_STARS = {
  'slow': 'star([0.02, 0.02, 0.02, 0.005])',
  'up': 'star([0.02, 0.02, 0.02, 0.01], [0.02, 0.01, 0.02, 0.02])',
}
_FIELDS = {
  'cluster__workers': 4,
  'cluster__speed__name': 'lognormal',
  'cluster__speed__fixed_s': 0.05,
  'cluster__speed__per_example_s': 0.0,
  'cluster__speed__slowdown': (1.0, 1.0, 1.0, 1.3),
  'cluster__network__worker_up_Bps': (125e6,),
  'cluster__network__worker_down_Bps': (125e6,),
  'cluster__network__worker_latency_s': (1e-4,),
  'eval_every': 100.0,
  'epochs': 1.0,
}


@functools.cache
def _run(route, star, **changed):
  """Returns the folder of a run that has ended."""
  fields = {'route__name': route, 'cluster__links': _STARS[star], **_FIELDS}
  run = small.build(
    small.timing(size_bytes=_SIZE, num_train=1280, **fields | changed)
  )
  run()
  return run.files.workdir


def _pace_s(folder):
  return timeline.pace(analysis.read(folder)).iteration_s


class PredictTest(parameterized.TestCase):
  @parameterized.product(
    star=['slow', 'up'],
    measured=['forest', 'double_tree'],
  )
  def test_one_run_predicts_every_route_if_its_links_are_known(
    self, star, measured
  ):
    own = {f'route__{measured}__cluster': 'probe'}
    measured = calibration.measure(_run(measured, star, **own))
    for route in ('forest', 'ring', 'double_tree', 'native'):
      folder = _run(route, star)
      found = calibration.predict(measured, folder)
      np.testing.assert_allclose(
        found['iteration_s'], _pace_s(folder), rtol=0.01, err_msg=route
      )

  @parameterized.parameters('ring', 'double_tree')
  def test_links_without_known_rates_are_fitted(self, route):
    measured = calibration.measure(_run(route, 'slow'))
    network = measured.config.cluster.network
    for rates in (network.worker_up_Bps, network.worker_down_Bps):
      np.testing.assert_allclose(rates[3], 5e6, rtol=0.05)
    found = calibration.predict(measured, _run(route, 'slow'))
    same_s = _pace_s(_run(route, 'slow'))
    np.testing.assert_allclose(found['iteration_s'], same_s, rtol=0.01)

  def test_native_runs_predict_native_runs(self):
    folder = _run('native', 'slow')
    found = calibration.predict(calibration.measure(folder), folder)
    np.testing.assert_allclose(found['iteration_s'], _pace_s(folder), rtol=0.01)

  def test_nearly_hidden_communication_is_predicted(self):
    folder = _run(
      'forest',
      'slow',
      cluster__speed__fixed_s=30.0,
      route__bucket_bytes=40_000.0,
    )
    measured = calibration.measure(folder)
    found = calibration.predict(measured, folder)
    np.testing.assert_allclose(found['iteration_s'], _pace_s(folder), rtol=0.01)
    text = calibration.describe(measured)
    self.assertRegex(text, '39 iterations took 40')

  def test_the_written_config_has_the_measured_cluster(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    measured = calibration.measure(_run('forest', 'slow'))
    calibration.write(measured, folder / 'cluster.py')
    again = small.build(runpy.run_path(f'{folder}/cluster.py')['get_config']())
    again()
    found = calibration.predict(measured, _run('forest', 'slow'))
    self.assertEqual(_pace_s(again.files.workdir), found['iteration_s'])
    self.assertRegex(calibration.describe(measured), r'w3 +s0 +5\b')


class HostsTest(parameterized.TestCase):
  def _ring(self, rates):
    """Links of a ring: each host sends 100 bytes to the next."""
    count = len(rates)
    return {
      (k, (k + 1) % count): Link(100, 100 / rate, 1.0)
      for k, rate in enumerate(rates)
    }

  @parameterized.parameters(
    # Both links of a host are slow.
    ([8, 8, 2, 2], [8, 8, 8, 2], [8, 8, 8, 2]),
    ([8, 8, 8, 8], [8, 8, 8, 8], [8, 8, 8, 8]),
    # One link limits, and its receiver can do more: the sender is slow.
    ([8, 8, 2, 8], [8, 8, 2, 8], [8, 8, 8, 8]),
  )
  def test_rates_of_a_host_are_equal_unless_traffic_differs(
    self, rates, up, down
  ):
    found = allreduce.hosts_of(self._ring(rates), 4)
    np.testing.assert_allclose(found, (up, down))

  def test_simultaneous_receivers_share_a_link(self):
    links = {(0, 1): Link(300, 1.0, 1.0), (0, 2): Link(100, 0.5, 1.0)}
    links |= {(1, 0): Link(400, 1.0, 1.0), (2, 0): Link(0, 0.0, 1.0)}
    up, _ = allreduce.hosts_of(links, 3)
    self.assertEqual(up[0], 400)


class RefusalTest(absltest.TestCase):
  def test_runs_with_servers_are_refused(self):
    measured = calibration.measure(_run('forest', 'slow'))
    config = small.timing(size_bytes=_SIZE, num_train=1280)
    with self.assertRaisesRegex(ValueError, 'config.route.name: expected serv'):
      calibration.predict(measured, config)

  def test_runs_without_rows_on_links_are_refused(self):
    folder = small.copy_with_change(
      _run('ring', 'slow'), 'manifest.json', lambda _: 0
    )
    path = folder / 'events.jsonl'
    rows = path.read_text().splitlines(keepends=True)
    path.write_text(''.join(row for row in rows if '"links"' not in row))
    with self.assertRaisesRegex(ValueError, 'expected rows on links'):
      calibration.measure(folder)


if __name__ == '__main__':
  absltest.main()
