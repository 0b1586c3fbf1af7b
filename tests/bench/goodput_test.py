"""Tests for bench.goodput."""

import argparse

from absl.testing import absltest, parameterized

from bench import goodput
from sync import bsp
from sync.scheme import Push

_FLAGS = argparse.Namespace(
  workers=2, seconds=4.0, restart_s=3.0, notice_s=1.0, step_s=0.1, minimum=1
)


def _push(worker, time):
  return Push(worker=worker, id=0, time=time, examples=8, compute_s=1.0)


class FiguresTest(absltest.TestCase):
  def test_goodput_is_the_mean_rate_over_the_usual_one(self):
    self.assertEqual(goodput.goodput_of([30.0, 50.0], 80.0), 0.5)

  def test_capacity_is_the_share_of_life(self):
    self.assertEqual(goodput.capacity(24.0, 8.0), 0.75)

  def test_an_outcome_counts_applied_and_unused_examples(self):
    summary = {
      'examples': 200,
      'virtual_s': 50.0,
      'lost': [{'examples': 3}, {'examples': 2}],
      'dropped': [{'examples': 5}],
    }
    self.assertEqual(goodput.outcome(summary), (4.0, 0.05))


class PictureTest(absltest.TestCase):
  def test_points_of_real_processes_are_crosses_beside_their_scheme(self):
    goodputs = {1: {'bsp': [0.8, 0.6], 'quorum': [0.9, 0.7]}}
    real = [
      goodput.RealPoint('quorum', 1, 20.0, 0.5),
      goodput.RealPoint('quorum', 16, 20.0, 0.25),
    ]
    (axes,) = goodput.draw(goodputs, [60.0, 15.0], real).axes
    crosses = [line for line in axes.lines if line.get_marker() == 'x']
    points = [line.get_xydata().tolist() for line in crosses]
    self.assertEqual(points, [[], [[20.0, 0.5]]])


class ScriptTest(absltest.TestCase):
  def test_workers_return_a_fixed_time_after_each_death(self):
    script = goodput.make_script(0, 2.0, _FLAGS)
    self.assertEqual(list(script), sorted(script))
    for worker in range(_FLAGS.workers):
      own = [(time, kind) for time, kind, each in script if each == worker]
      for (died, leave), (back, join) in zip(own[::2], own[1::2], strict=True):
        self.assertEqual((leave, join), ('leave', 'join'))
        self.assertAlmostEqual(back - died, _FLAGS.restart_s)

  def test_lives_are_in_proportion_to_their_mean(self):
    short, long = (goodput.make_script(7, mean, _FLAGS) for mean in (1.0, 5.0))
    first = [
      next(t for t, _, w in script if w == 0) for script in (short, long)
    ]
    self.assertAlmostEqual(first[1], 5 * first[0])


class NoticeTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.late = goodput.LateNotice(bsp.make(num_workers=2), 1.0)
    self.assertEqual(self.late.start(0.0).release, (0, 1))

  def test_a_scheme_waits_for_a_dead_worker_until_it_hears_of_the_death(self):
    self.late.push(_push(0, 1.0))
    self.assertEqual(self.late.leave(1, 2.0).wake_at, 3.0)
    decision = self.late.wake(3.0)
    self.assertLen(decision.commit, 1)
    self.assertEqual(decision.release, (0,))

  def test_a_dead_worker_is_not_released_before_the_notice(self):
    self.late.push(_push(0, 1.0))
    self.late.push(_push(1, 1.5))
    self.late.leave(1, 1.6)
    self.assertEqual(self.late.push(_push(0, 2.0)).release, ())
    self.assertEqual(self.late.wake(2.6).release, (0,))


class RunTest(parameterized.TestCase):
  @parameterized.parameters('bsp', 'quorum')
  def test_deaths_cost_examples_and_time(self, name):
    script = ((1.1, 'leave', 1), (2.6, 'join', 1))
    usual = goodput.simulate(name, 1, (), _FLAGS)
    got = goodput.simulate(name, 1, script, _FLAGS)
    self.assertLess(got.rate, usual.rate)
    self.assertEqual(usual.lost, 0.0)
    self.assertGreater(got.lost, 0.0)


if __name__ == '__main__':
  absltest.main()
