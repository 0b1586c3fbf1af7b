"""Tests for grace windows, which merge pushes: sync.grace."""

import copy
import json
import math

import hypothesis
from absl.testing import absltest, parameterized

from outputs import serialization
from sync import asp, bsp, dssp, record, scheme, ssp
from tests.support import schedules
from tests.support.driver import Driver

_GRACE_S = 0.5
_MAKE = {
  'asp': asp.make,
  'ssp': lambda **fields: ssp.make(bound=2, **fields),
  'dssp': lambda **fields: dssp.make(low=1, high=4, **fields),
}
_LEADS = {'asp': math.inf, 'ssp': 2, 'dssp': 4}


def _push(number, worker, time):
  return scheme.Push(number, worker, time, 1.0, 1)


class TimelineTest(parameterized.TestCase):
  def test_workers_that_finish_close_together_are_merged(self):
    driver = Driver(asp.make(num_workers=3, grace_s=0.5), 3)
    driver.run(schedules.constant(1, 1.25, 4), pushes=8)

    # The window that opens at 4 has the push of that instant, and ends with
    # the last worker.
    self.assertEqual(
      driver.releases[1:], [(1.5, (0, 1)), (3, (0, 1)), (4.25, (0, 1, 2))]
    )
    self.assertEqual(
      [step.decision.commit for step in driver.steps if step.decision.commit],
      [(0,), (1,), (2,)],
    )
    into = [step.decision.into for step in driver.steps if step.kind == 'push']
    self.assertEqual(into, [0, 0, 1, 1, 2, 2, 2, 3])

  def test_a_bounded_worker_waits_beyond_the_window(self):
    driver = Driver(ssp.make(num_workers=2, bound=0, grace_s=0.5), 2)
    driver.run(schedules.constant(1, 4), pushes=3)
    self.assertEqual(driver.releases[1:], [(4, (0, 1))])
    commits = [s.event['time'] for s in driver.steps if s.decision.commit]
    self.assertEqual(commits, [1.5, 4])

  def test_a_late_wake_does_not_lose_the_push_before_it(self):
    scheme_ = asp.make(num_workers=3, grace_s=0.5)
    scheme_.start(0.0)
    self.assertEqual(scheme_.push(_push(0, 0, 1.0)).wake_at, 1.5)
    decision = scheme_.push(_push(1, 1, 1.75))
    self.assertEqual(decision, scheme.Decision(0, (0,), (0, 1)))
    self.assertEqual(scheme_.wake(1.75), scheme.Decision())

  def test_a_worker_that_leaves_is_not_released(self):
    scheme_ = asp.make(num_workers=3, grace_s=0.5)
    scheme_.start(0.0)
    scheme_.push(_push(0, 0, 1.0))
    self.assertEqual(scheme_.leave(0, 1.1).wake_at, 1.5)
    self.assertEqual(scheme_.join(0, 1.2).release, ())
    self.assertEqual(scheme_.leave(2, 1.3).release, ())
    # Worker 1 is the last that runs.
    self.assertEqual(
      scheme_.leave(1, 1.4), scheme.Decision(commit=(0,), release=(0,))
    )

  @parameterized.parameters(*_MAKE)
  def test_a_held_worker_cannot_push(self, name):
    scheme_ = _MAKE[name](num_workers=2, grace_s=0.5)
    scheme_.start(0.0)
    scheme_.push(_push(0, 0, 1.0))
    with self.assertRaisesRegex(ValueError, 'worker 0 to be running, got wait'):
      scheme_.push(_push(1, 0, 1.1))


class LimitTest(parameterized.TestCase):
  """A window without length is the scheme; one without end is BSP."""

  @parameterized.parameters(*_MAKE)
  def test_without_a_window_every_push_is_an_update(self, name):
    scheme_ = _MAKE[name](num_workers=4, grace_s=0.0)
    driver = Driver(scheme_, 4)
    driver.run(schedules.jittered(0), pushes=60)
    self.assertEqual(set(driver.applied.values()), {1})
    for step in driver.steps:
      self.assertLen(step.decision.commit, step.kind == 'push')

  @parameterized.product(name=list(_MAKE), seed=[0, 1, 2])
  def test_a_long_window_is_bsp(self, name, seed):
    found = Driver(_MAKE[name](num_workers=4, grace_s=1e9), 4)
    expected = Driver(bsp.make(num_workers=4), 4)
    for driver in (found, expected):
      driver.run(schedules.jittered(seed), pushes=40)
    self.assertEqual(found.releases, expected.releases)
    for one, other in zip(found.steps, expected.steps, strict=True):
      self.assertEqual(one.event, other.event)
      self.assertEqual(one.decision[:2], other.decision[:2])


class ScheduleTest(parameterized.TestCase):
  """Tests of random schedules with leaves and rejoins."""

  @parameterized.parameters(*_MAKE)
  @hypothesis.settings(max_examples=100, deadline=None)
  @hypothesis.given(**schedules.drawn())
  def test_windows_merge_all_pushes_and_every_push_is_applied_once(
    self, name, num_workers, seed, faults
  ):
    scheme_ = _MAKE[name](num_workers=num_workers, grace_s=_GRACE_S)
    driver = Driver(scheme_, num_workers)
    window = _Window(self, _LEADS[name])

    driver.run(
      schedules.jittered(seed), pushes=120, faults=faults, check=window.check
    )

    times = list(driver.applied.values())
    self.assertEqual(times.count(0), window.pushes)
    self.assertLessEqual(max(times, default=0), 1)
    rows = [record.encode_row(*step) for step in driver.steps]
    fresh = _MAKE[name](num_workers=num_workers, grace_s=_GRACE_S)
    for recorded, replayed in record.replay(
      fresh, json.loads(json.dumps(rows))
    ):
      self.assertEqual(recorded, replayed)

  @parameterized.parameters(*_MAKE)
  def test_a_checkpoint_at_any_event_continues_the_schedule(self, name):
    scheme_ = _MAKE[name](num_workers=4, grace_s=_GRACE_S)
    driver, saved = Driver(scheme_, 4), []

    def save(driver, step):
      saved.append(serialization.freeze(copy.deepcopy(driver.scheme))())

    faults = [(3.0, 'leave', 1), (5.25, 'join', 1)]
    driver.run(schedules.jittered(3), pushes=40, faults=faults, check=save)
    rows = [record.encode_row(*step) for step in driver.steps]
    for number, tree in enumerate(saved):
      restored = serialization.thaw(tree)
      for recorded, replayed in record.replay(restored, rows[number + 1 :]):
        self.assertEqual(recorded, replayed)


class _Window:
  """Window that is counted beside the scheme, as the oracle of its decisions.

  Attributes:
    pushes: Number of pushes in the open window; 0 without one.
  """

  def __init__(self, test, lead):
    self._test, self._lead = test, lead
    self.pushes, self._ends_at = 0, None

  def check(self, driver, step):
    kind, decision, time = step.kind, step.decision, step.event['time']
    if kind == 'push':
      if not self.pushes:
        self._ends_at = time + _GRACE_S
      self.pushes += 1
    computing = driver.running - set(decision.release)
    is_over = kind == 'wake' and time >= (self._ends_at or 0)
    if self.pushes and (is_over or not computing):
      self._test.assertLen(decision.commit, 1)
      self.pushes, self._ends_at = 0, None
    else:
      self._test.assertEmpty(decision.commit)
      if self.pushes:
        self._test.assertEmpty(decision.release)
        self._test.assertEqual(decision.wake_at, self._ends_at)
    if self._lead == math.inf and not self.pushes:
      self._test.assertEqual(driver.running, driver.living)
    elif self._lead < math.inf and kind in ('push', 'wake') and driver.running:
      clocks = driver.scheme.scheme.clocks
      slowest = min(clocks.finished[worker] for worker in driver.living)
      leads = [clocks.finished[worker] - slowest for worker in driver.running]
      self._test.assertLessEqual(max(leads), self._lead)


if __name__ == '__main__':
  absltest.main()
