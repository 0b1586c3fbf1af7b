"""Tests for bench.conditions: predictions, and runs after a failure."""

import json
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from bench import conditions, empty
from bench.conditions import Condition, Lab
from bench.hosts import Case

_LAB = Lab('lab', Case([100, 200, 100], [100] * 3, {}), 2, 100)
_S, _B = 1_000_000, 100e6 / 8
_EQUAL = {
  'cluster.speed.name': 'constant',
  'cluster.speed.fixed_s': 0.05,
  'model.none.size_bytes': _S,
}


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
    condition = Condition('c', *placed, _EQUAL | {'route.name': route})
    equal = {'_SHARE_SIGMA': 0.0, '_BURST_BYTES': 0.0}
    with mock.patch.multiple(conditions, **equal):
      predicted_s = conditions.predict(_LAB, condition, 8, latency_s=0.0)
    self.assertAlmostEqual(predicted_s, 0.05 + took_s / 0.957, delta=0.01)

  def test_bursts_shorten_pushes_and_pulls(self):
    condition = Condition('c', 1, 1, True, _EQUAL)
    took_s = 2 * (_S - 60e3) / _B / 0.957
    for latency_s in (0.0, 0.003):
      predicted_s = conditions.predict(_LAB, condition, 8, latency_s=latency_s)
      expected = 0.05 + took_s + 2 * latency_s
      self.assertAlmostEqual(predicted_s, expected, delta=1e-6)

  def test_empty_iterations_take_their_computing_and_latency(self):
    for condition in empty.make_conditions():
      with mock.patch.object(conditions, '_SEEDS', 1):
        times = [
          conditions.predict(empty.LAB, condition, 8, latency_s=latency_s)
          for latency_s in (0.0, 0.001)
        ]
      self.assertBetween(times[0], 0.04, 0.07)  # Jitter is 10 %.
      self.assertAlmostEqual(times[1] - times[0], 0.002, delta=5e-4)


class RealTest(absltest.TestCase):
  def test_new_processes_train_the_runs_after_a_failed_one(self):
    runs = [(Condition(name, 3, 1, True, _EQUAL), 16) for name in 'abcd']
    sessions = []

    def session(folder, lab, remaining):
      self.assertIs(lab, _LAB)
      sessions.append([condition.name for condition, _ in remaining])
      for condition, _ in remaining:
        if condition.name == 'b':
          return 'b is broken'
        path = folder / condition.name
        path.mkdir(parents=True)
        ended = 'interrupted' if condition.name == 'd' else 'finished'
        (path / 'summary.json').write_text(json.dumps({'ended': ended}))
      return ''

    out = pathlib.Path(tempfile.mkdtemp())
    with (
      mock.patch.object(conditions, '_train_on_lab', session),
      mock.patch.object(conditions, 'iteration_s', lambda *_: 0.3),
    ):
      results = conditions.measure(out, _LAB, runs)
      again = conditions.measure(out, _LAB, runs[:1])
    self.assertEqual(again, {'a': 0.3})
    self.assertEqual(sessions, [['a', 'b', 'c', 'd'], ['c', 'd']])
    failed = {'b': 'b is broken', 'd': 'there is no summary'}
    self.assertEqual(results, {'a': 0.3, 'c': 0.3} | failed)


if __name__ == '__main__':
  absltest.main()
