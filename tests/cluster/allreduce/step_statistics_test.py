"""Tests for step statistics, their record, and assignments ahead of time."""

import math
import time
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

import data.stream
from batching import fixed
from cluster.allreduce.assignment import IterationAssigner
from cluster.allreduce.step_statistics import (
  IterationRecorder,
  StatisticsLayout,
  StepStatistics,
)
from cluster.coordinator import Coordinator
from cluster.membership.members import Member
from cluster.milestones import Milestones
from outputs.accounting import Accounting
from outputs.recorder import Recorder
from sync import bsp

_float32 = st.floats(-1e6, 1e6, width=32)
_statistics = st.builds(
  StepStatistics,
  began=_float32,
  computed=_float32,
  compute_s=_float32,
  examples=st.integers(0, 2**20),
  weight=st.floats(0, 1e6, width=32),
  compilations=st.integers(0, 99),
  loss=st.one_of(st.just(math.nan), _float32),
  finite=st.integers(0, 1),
  recalled=st.integers(0, 1),
)


class StatisticsLayoutTest(parameterized.TestCase):
  @settings(deadline=None, max_examples=40)
  @given(st.lists(_statistics, min_size=1, max_size=5), st.randoms())
  def test_the_sum_has_the_statistics_of_all_workers(self, reports, random):
    workers, factors = len(reports) + 1, 2
    layout = StatisticsLayout(workers, factors)
    written = []
    for worker, statistics in enumerate(reports):
      numbers = np.full(layout.size, 7.0, np.float32)
      layout.write(numbers, worker, statistics, (worker, -0.5))
      written.append(numbers)
    random.shuffle(written)
    result = layout.read(sum(written))
    for worker, statistics in enumerate(reports):
      got, driving = result[worker]
      np.testing.assert_array_equal(np.array(got), np.array(statistics))
      self.assertEqual(driving, (worker, -0.5))
    # The last worker has written nothing.
    self.assertEqual(result[workers - 1][0].examples, 0)

  @parameterized.parameters(
    (0.0, True), (3.5, True), (8.0, True), (8.5, False), (-1.0, False)
  )
  def test_a_weight_is_at_most_the_number_of_examples(self, weight, is_valid):
    layout = StatisticsLayout(2, 0)
    numbers = np.empty((2, layout.size), np.float32)
    for worker, each in enumerate((weight, 4.25)):
      statistics = StepStatistics(0.0, 1.0, 1.0, 8, each, 0, 1.0, 1)
      layout.write(numbers[worker], worker, statistics, ())
    summed = numbers.sum(axis=0)
    invalid = layout.find_invalid(summed, {0: 8, 1: 8})
    self.assertEqual(invalid, [] if is_valid else [0])
    self.assertEqual(layout.total_weight(summed, (0, 1)), weight + 4.25)

  def test_a_non_finite_loss_does_not_affect_other_workers(self):
    layout = StatisticsLayout(2, 0)
    numbers = np.zeros((2, layout.size), np.float32)
    for worker, loss in enumerate((math.inf, 2.0)):
      statistics = StepStatistics(
        0.0, 0.0, 0.0, 1, 1.0, 0, loss, math.isfinite(loss)
      )
      layout.write(numbers[worker], worker, statistics, ())
    result = layout.read(numbers.sum(0))
    self.assertEqual(result[0][0].finite, 0)
    self.assertEqual(result[1][0].loss, 2.0)


def _make_coordinator(workers, *, ahead=True, batch=8):
  store = mock.Mock(version=0, scalings=[])
  stream = data.stream.Stream(num_examples=1000, seed=0, ahead=0)
  recorder = mock.create_autospec(Recorder, instance=True)
  recorder.accounting = Accounting()
  milestones = mock.create_autospec(Milestones, instance=True, finished=False)
  coordinator = Coordinator(
    scheme=bsp.make(num_workers=workers),
    batching=fixed.make(num_workers=workers, worker_batch=batch),
    store=store,
    stream=stream,
    recorder=recorder,
    milestones=milestones,
    num_workers=workers,
    ahead=ahead,
  )
  coordinator.attach(release=lambda index: None, wake_at=lambda at: None)

  def commit(update):
    del update
    store.version += 1

  store.commit.side_effect = commit
  return coordinator, stream, recorder


def _push(coordinator, index, time):
  coordinator.push(index, time, compute_s=1.0, factors=(), loss=1.0, computed=8)


class IterationRecorderTest(parameterized.TestCase):
  def _record(self, reports, *, time, joining=(), assigned_at=10.0):
    coordinator, _, recorder = _make_coordinator(3)
    coordinator.start(10.0)
    for index in joining:
      coordinator.leave(index, 10.0, '')
    layout = StatisticsLayout(3, 0)
    numbers = np.zeros(layout.size, np.float32)
    for worker, statistics in reports.items():
      part = np.empty_like(numbers)
      layout.write(part, worker, statistics, ())
      numbers += part
    reporter = IterationRecorder(
      coordinator,
      layout,
      [Member(incarnation=0) for _ in range(3)],
      lambda n, stage: 100 * n,
    )
    reporter.record(
      numbers.tolist(),
      sorted(reports),
      joining,
      assigned_at=assigned_at,
      stage=0,
      time=time,
    )
    return coordinator, recorder

  @parameterized.parameters(9.0, 10.25)
  def test_phases_follow_from_the_statistics(self, assigned_at):
    late = 10.0 - assigned_at  # Times are relative to the assignment.
    reports = {
      0: StepStatistics(0.5 + late, 2.0 + late, 1.5, 8, 8.0, 0, 1.0, 1),
      1: StepStatistics(0.5 + late, 4.0 + late, 3.5, 8, 8.0, 0, 1.0, 1),
      2: StepStatistics(1.0 + late, 3.0 + late, 2.0, 8, 8.0, 0, 1.0, 1),
    }
    _, recorder = self._record(reports, time=16.0, assigned_at=assigned_at)
    spans = {0: [], 1: [], 2: []}
    for call in recorder.record_span.call_args_list:
      worker, phase, start, end, _ = call.args
      if end > start:
        spans[worker].append((phase, start, end))
    # Replicas never pull: they receive earlier sums once they are released.
    first = [('push', max(10.0, assigned_at), 10.5)]
    if assigned_at > 10:
      first.insert(0, ('wait', 10.0, assigned_at))
    rest = [('compute', 10.5, 12.0), ('wait', 12.0, 14.0), ('push', 14.0, 16.0)]
    self.assertEqual(spans[0], first + rest)
    # The others have waited for worker 1.
    rest = [('compute', 10.5, 14.0), ('push', 14.0, 16.0)]
    self.assertEqual(spans[1], first + rest)
    self.assertIn(('compute', 11.0, 13.0), spans[2])
    self.assertEqual(recorder.accounting.bytes, 300)

  def test_unsynchronised_clocks_cause_no_negative_phase(self):
    reports = {0: StepStatistics(-3.0, 99.0, 1.0, 8, 8.0, 0, math.nan, 1)}
    _, recorder = self._record(reports, time=12.0, joining=(1, 2))
    for call in recorder.record_span.call_args_list:
      _, _, start, end, _ = call.args
      self.assertLessEqual(10.0, start)
      self.assertLessEqual(start, end)
      self.assertLessEqual(end, 12.0)

  def test_a_worker_that_joins_is_released_with_the_others(self):
    reports = {
      k: StepStatistics(0.0, 1.0, 1.0, 8, 8.0, 0, 1.0, 1) for k in (0, 1)
    }
    coordinator, _ = self._record(reports, time=12.0, joining=(2,))
    self.assertEqual([w.phase for w in coordinator.workers], ['pull'] * 3)
    self.assertEqual(coordinator.workers[2].version, 1)

  def test_a_non_finite_gradient_ends_the_run(self):
    reports = {
      k: StepStatistics(0.0, 1.0, 1.0, 8, 8.0, 0, 1.0, k != 1) for k in range(3)
    }
    with self.assertRaisesRegex(FloatingPointError, 'worker 1, iteration 0'):
      self._record(reports, time=12.0)


class AheadTest(parameterized.TestCase):
  @settings(deadline=None, max_examples=25)
  @given(
    st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=3), max_size=8),
    st.lists(st.sampled_from(['', '1', '2']), max_size=8),
  )
  def test_assigning_ahead_uses_each_example_once_and_delays_batches_by_one(
    self, plan, gone
  ):
    result = {}
    for ahead in (False, True):
      coordinator, stream, _ = _make_coordinator(3, ahead=ahead)
      given_ = iter(plan)
      coordinator.batching = mock.Mock(barrier=True)
      coordinator.batching.assign.side_effect = lambda _, given_=given_: dict(
        zip(range(3), next(given_, (4, 4, 4)), strict=True)
      )
      coordinator.start(0.0)
      sizes, used, alive = [], [], {0, 1, 2}
      for step in range(8):
        if step < len(gone) and gone[step]:
          index = int(gone[step])
          if index in alive:
            coordinator.leave(index, step, '')
            alive.remove(index)
        sizes.append(
          {k: coordinator.workers[k].examples for k in sorted(alive)}
        )
        for k in sorted(alive):
          used += [p for r in coordinator.workers[k].ranges for p in range(*r)]
        ahead_ranges = {k: coordinator.workers[k].ahead for k in alive}
        for k in sorted(alive):
          _push(coordinator, k, step)
        if ahead:
          for k in alive:
            self.assertEqual(coordinator.workers[k].ranges, ahead_ranges[k])
      self.assertLen({*used}, len(used))
      self.assertEqual(stream.used, len(used))
      held = sum(b - a for a, b in stream.outstanding())
      self.assertEqual(stream.used + held, stream.cursor)
      result[ahead] = sizes
    self.assertEqual(result[True][:1], result[False][:1])
    for before, after in zip(result[False], result[True][1:], strict=False):
      for k in after:
        self.assertEqual(after[k], before[k])


class IterationAssignerTest(parameterized.TestCase):
  def test_this_iteration_and_the_next_are_assigned(self):
    coordinator, _, _ = _make_coordinator(2)
    coordinator.start(0.0)
    messages = []
    assigner = IterationAssigner(
      coordinator, lambda k, message: messages.append((k, message))
    )
    assigner.begin(0)
    self.assertEqual(assigner.newest, -1)
    assigner.assign(3, 0, (0, 1))
    assigner.assign(3, 1, (0, 1))
    for k in range(2):
      _push(coordinator, k, 1.0)
    self.assertEqual(assigner.newest, 1)
    self.assertEqual([each.iteration for _, each in messages], [0, 0, 1, 1])
    self.assertEqual({each.total for _, each in messages}, {16})
    ranges = [each.ranges for _, each in messages]
    self.assertEqual(ranges[2:], [w.ranges for w in coordinator.workers])
    positions = [p for each in ranges for r in each for p in range(*r)]
    self.assertCountEqual(positions, range(32))
    self.assertLessEqual(assigner.pop_assigned(0)[0], time.monotonic())
    with self.assertRaises(KeyError):
      assigner.pop_assigned(0)


if __name__ == '__main__':
  absltest.main()
