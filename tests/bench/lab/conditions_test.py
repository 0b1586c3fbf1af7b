"""Tests for bench.lab.conditions: predictions, fields and roles."""

import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from bench import empty, hosts
from bench.hosts import Case
from bench.lab import conditions, process
from bench.lab.conditions import RUN, SUM, TORCH, Condition, Lab
from configs import default, sections

_LAB = Lab('lab', Case([100, 200, 100], [100] * 3, {}), 2, 100)
_S, _B = 1_000_000, 100e6 / 8
_EQUAL = {
  'cluster.speed.name': 'constant',
  'cluster.speed.fixed_s': 0.05,
  'model.none.size_bytes': _S,
}


class HostsTest(absltest.TestCase):
  def test_other_rates_and_servers_leave_delays(self):
    lab = Lab('sites4', hosts.scaled_cases(100)['sites4'], 1, 50)
    (group,) = lab.hosts.links['groups']
    self.assertEqual(group['hosts'], ['host3', 'host4'])
    self.assertEqual((group['up'], group['delay_ms']), ('100mbit', 25.0))


class VirtualTest(parameterized.TestCase):
  @parameterized.parameters(
    # All bytes cross the link of one server, or half of them those of two.
    ((3, 1, True), 'server', 2 * 3 * _S / _B),
    ((3, 2, True), 'server', 2 * 3 * _S / _B / 2),
    # Each host sends and receives two thirds of the bytes twice.
    ((3, 3, False), 'server', 2 * 2 / 3 * _S / _B),
    ((3, 0, False), 'ring', 2 * 2 / 3 * _S / _B),
  )
  def test_equal_workers_take_the_time_of_their_bytes(
    self, placed, route, took_s
  ):
    condition = Condition('c', *placed, _EQUAL | {'route.name': route}, 8)
    equal = {'_SHARE_SIGMA': 0.0, '_BURST_BYTES': 0.0}
    with mock.patch.multiple(conditions, **equal):
      predicted = conditions.predict(_LAB, condition, latency_s=0.0)
    self.assertAlmostEqual(predicted.mean_s, 0.05 + took_s / 0.957, delta=0.01)

  def test_bursts_shorten_pushes_and_pulls(self):
    condition = Condition('c', 1, 1, True, _EQUAL, 8)
    took_s = 2 * (_S - 60e3) / _B / 0.957
    for latency_s in (0.0, 0.003):
      predicted = conditions.predict(_LAB, condition, latency_s=latency_s)
      expected = 0.05 + took_s + 2 * latency_s
      self.assertAlmostEqual(predicted.mean_s, expected, delta=1e-6)

  def test_mean_and_median_of_equal_iterations_are_the_same(self):
    fields = _EQUAL | {'route.name': 'ring', 'sync.name': 'bsp'}
    predicted = conditions.predict(_LAB, Condition('c', 3, 0, False, fields, 8))
    self.assertAlmostEqual(predicted.mean_s, predicted.median_s, places=6)

  def test_empty_iterations_take_their_computing_and_latency(self):
    for condition in empty.make_conditions():
      condition = condition._replace(iterations=8)
      with mock.patch.object(conditions, '_SEEDS', 1):
        times = [
          conditions.predict(empty.LAB, condition, latency_s=latency_s).mean_s
          for latency_s in (0.0, 0.001)
        ]
      self.assertBetween(times[0], 0.04, 0.07)  # Jitter is 10 %.
      self.assertAlmostEqual(times[1] - times[0], 0.002, delta=5e-4)

  def test_servers_on_hosts_whose_pairs_have_rates_are_refused(self):
    lab = Lab('groups6', hosts.cases()['groups6'])
    condition = Condition('c', 6, 6, False, _EQUAL, 8)
    with self.assertRaisesRegex(ValueError, 'no rates of pairs.*groups6'):
      conditions.predict(lab, condition)


class RealTest(parameterized.TestCase):
  @parameterized.parameters(
    ('forest', 0), ('ring', 0), ('native', 0), ('server', 3)
  )
  def test_a_real_run_has_no_field_that_its_route_ignores(self, route, servers):
    folder = pathlib.Path(tempfile.mkdtemp())
    fields = _EQUAL | {'route.name': route, 'sync.name': 'bsp'}
    condition = Condition('c', 3, servers, False, fields, 8)
    config = default.get_config()
    config.update_from_flattened_dict(
      conditions.real_fields(_LAB, condition, folder)
    )
    # Raises for a field that the route would ignore.
    name, _ = sections.choose_section(config, 'route')
    self.assertEqual(name, route)


class ProcessesTest(parameterized.TestCase):
  def test_conditions_share_processes_unless_xla_connects_them(self):
    def make(name, system=RUN, hosts_per_worker=1, **fields):
      return Condition(
        *(name, 2, 0, False, fields),
        system=system,
        hosts_per_worker=hosts_per_worker,
      )

    groups = conditions.group_by_processes(
      [
        make('a', **{'route.name': 'ring'}),
        make('b', **{'route.name': 'native'}),
        make('c', TORCH, kind='sum'),
        make('d', SUM, scheme='psum'),
        make('e', SUM, scheme='ring'),
        make('f', TORCH, kind='step'),
        make('g', hosts_per_worker=2, **{'route.name': 'ring'}),
      ]
    )
    names = [''.join(each.name for each in group) for group in groups]
    self.assertEqual(names, ['ae', 'b', 'cf', 'd', 'g'])

  @parameterized.parameters(
    # The lab has two hosts for servers, then those of workers.
    (('x', 2, 1, True), 1, ['server:0', '', 'worker:0', 'worker:1', '']),
    (('x', 2, 2, False), 1, ['', '', 'worker:0', 'worker:1', '']),
    (('x', 1, 0, False), 2, ['', '', 'worker:0', 'worker:0.1', '']),
  )
  def test_hosts_have_the_roles_of_a_run(self, placed, each, roles):
    condition = Condition(*placed, {}, hosts_per_worker=each)
    found = [process.find_role(condition, place, 2) for place in range(5)]
    self.assertEqual(found, roles)


if __name__ == '__main__':
  absltest.main()
