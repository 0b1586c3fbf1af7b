"""Tests for papers.measures.rivals and ladder: records of bench.lab's rows."""

import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

from bench.lab import running
from papers.measures import ladder, rivals


class RivalsTest(absltest.TestCase):
  def _measure(self, times, seed=0):
    orders = []

    def measure(out, lab, wanted, *, python=''):
      names = [each.name for each in wanted]
      orders.append((lab.name, names[0]))
      return {name: {'median_s': times.get(name, 1.0)} for name in names}

    folder = pathlib.Path(tempfile.mkdtemp())
    with (
      mock.patch.object(running, 'measure', measure),
      mock.patch.dict(os.environ, {'SYNCOPATE_PEERS': 'torch'}),
    ):
      found = rivals.measure(seed=seed, scale='quick', folder=folder)
    return orders, {(each['links'], each['system']): each for each in found}

  def test_the_step_of_ddp_is_that_of_its_faster_buckets(self):
    times = {'step, ddp': 3.0, 'step, ddp, default': 2.0, 'powersgd': 4.0}
    _, found = self._measure(times)
    self.assertEqual(found['slow4', 'step, ddp']['took_s'], 2.0)
    self.assertEqual(found['slow4', 'powersgd']['took_s'], 4.0)
    systems = {system for links, system in found if links == 'equal4'}
    self.assertEqual(
      systems,
      {
        *('sum, forest', 'sum, ring', 'sum, psum', 'sum, gloo'),
        *('step, forest', 'step, ddp'),
      },
    )

  def test_odd_seeds_measure_pytorch_first(self):
    for seed, first in ((0, 'sum, forest'), (1, 'sum, gloo')):
      orders, _ = self._measure({}, seed)
      self.assertEqual(orders[0], ('equal4', first))


class LadderTest(absltest.TestCase):
  def test_seeds_turn_the_order_of_the_rungs(self):
    orders = []

    def measure(out, lab, wanted):
      orders.append([each.name for each in wanted])
      figures = {'median_s': 0.5, 'compute_s': 0.2}
      return {each.name: figures for each in wanted}

    with mock.patch.object(running, 'measure', measure):
      for seed in (0, 1):
        found = ladder.measure(
          seed=seed, scale='quick', folder=pathlib.Path(tempfile.mkdtemp())
        )
    self.assertEqual(orders[1], [*orders[0][1:], orders[0][0]])
    self.assertAlmostEqual(found[0]['exposed_s'], 0.3)
    self.assertEqual([each['rung'] for each in found], orders[1])

  def test_a_failed_rung_fails_the_measurement(self):
    def failed(out, lab, wanted):
      return {each.name: {'error': 'broken'} for each in wanted}

    with (
      mock.patch.object(running, 'measure', failed),
      self.assertRaisesRegex(RuntimeError, 'tensors: broken'),
    ):
      ladder.measure(
        seed=0, scale='quick', folder=pathlib.Path(tempfile.mkdtemp())
      )


if __name__ == '__main__':
  absltest.main()
