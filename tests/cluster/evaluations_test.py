"""Tests of evaluations that end after later events of the run."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from absl import logging
from absl.testing import absltest, parameterized

from cluster.evaluations import Evaluations
from cluster.milestones import Intervals, Milestones, SaveSchedule
from outputs.console import Console
from outputs.recorder import Recorder
from sync.scheme import Push
from tests.support import unwritten

_LIMIT_S = 10.0


class _Store:
  """A parameter store whose parameters are their version."""

  learning_rate = 0.1
  scalings = ()

  def __init__(self, held=None):
    self.version = self.examples = 0
    self.held = dict(held or {})
    self.most = 0

  def hold(self):
    number = max(self.held, default=0) + 1
    self.held[number] = self.version
    self.most = max(self.most, len(self.held))
    return number

  def free(self, held):
    del self.held[held]

  def read(self, held):
    version = self.held[held]
    return lambda: (version, ())


def _log(level, text, seconds, *values):
  """Logs at once, also if another test has logged the same before."""
  del seconds
  logging.log(level, text, *values)


class _Slow:
  """An evaluation that waits for a turn; its accuracy is version / 100."""

  def __init__(self):
    self.turns = threading.Semaphore(0)
    self.seen = []
    self.running = self.most = 0

  def is_finite(self, params):
    return params != 13

  def __call__(self, params, stats):
    del stats
    self.running += 1
    self.most = max(self.most, self.running)
    if not self.turns.acquire(timeout=_LIMIT_S):
      raise TimeoutError
    self.running -= 1
    self.seen.append(params)
    return {'accuracy': params / 100, 'top5_accuracy': params / 50}


class _Run:
  """A run in which an evaluation is due after each push, or after several."""

  def __init__(self, *, held=None, target=10**6, pushes=1, every_s=None):
    self.store, self.slow = _Store(held), _Slow()
    self.files = unwritten.files()
    self.pool = ThreadPoolExecutor(4)  # More than are to be used.
    self.recorder = Recorder(
      epoch=8,
      files=self.files,
      console=Console(target=target, clock='real'),
      accuracies=(0.02, 0.04),
    )
    self.milestones = Milestones(
      intervals=Intervals(target, 8 * pushes, 10**6)
      if every_s is None
      else Intervals(target, every_s, 10**6, is_timed=True),
      recorder=self.recorder,
      store=self.store,
      evaluate=self.slow,
      run_in_thread=self.pool.submit,
    )

  def push(self, times=1):
    for _ in range(times):
      version = self.store.version
      push = Push(version, 0, float(version), 1.0, 8)
      self.recorder.accounting.add_push(
        version, push, iteration=version, pulled=0, computed=8
      )
      self.recorder.record_update(version, float(version))
      self.store.version += 1
      self.milestones.review(float(self.store.version), barrier=False)

  def finish(self, count):
    """Lets so many evaluations end, and records them."""
    for _ in range(count):
      before, deadline = len(self.rows()), time.monotonic() + _LIMIT_S
      self.slow.turns.release()
      while len(self.rows()) == before:
        if time.monotonic() > deadline:
          raise TimeoutError
        self.milestones.record_evaluations()

  def state(self):
    return self.recorder.state(), self.milestones.state()

  def take_over(self, run):
    """Continues from another run, whose held versions are lost."""
    self.store.version = run.store.version
    self.recorder.restore(run.recorder.state())
    self.milestones.take_over(run.milestones.successor_state())

  def restore(self, state):
    self.recorder.restore(state[0])
    self.milestones.restore(state[1])

  def rows(self):
    rows = [call.args[0] for call in self.files.rows.metric.call_args_list]
    return [(row['updates'], row['accuracy']) for row in rows]


class EvaluationsTest(parameterized.TestCase):
  def _run(self, **fields):
    run = _Run(**fields)
    self.addCleanup(run.pool.shutdown)
    self.addCleanup(run.slow.turns.release, 100)
    return run

  def test_pushes_and_checkpoints_continue_during_an_evaluation(self):
    run = self._run()
    with (
      mock.patch.object(logging, 'log_every_n_seconds', _log),
      self.assertLogs('absl', 'WARNING') as logs,
    ):
      run.push(5)
    state, _ = run.state()
    self.assertEqual(state['accounting'].updates, 5)
    self.assertEqual(run.rows(), [])
    self.assertIn('that of version 2, at 16 examples, is left', logs.output[0])
    self.assertEqual(list(run.store.held.values()), [1, 5])
    run.finish(2)
    run.push(1)
    run.finish(1)
    # Every row is there, in order, with the accuracy of its own version.
    expected = [(1, 0.01), (2, None), (3, None), (4, None), (5, 0.05)]
    self.assertEqual(run.rows(), [*expected, (6, 0.06)])
    summary = run.recorder.summary(9.0)
    self.assertEqual(summary['time_to'], {'0.02': 5.0, '0.04': 5.0})
    self.assertEqual(summary['final_accuracy'], 0.06)
    self.assertEqual(summary['final_top5_accuracy'], 0.12)
    self.assertEqual(run.store.held, {})
    self.assertEqual((run.slow.most, run.store.most), (1, 2))

  def test_a_restored_run_repeats_its_queued_evaluations(self):
    straight = self._run()
    straight.push(2)
    straight.finish(2)
    straight.push(1)
    straight.finish(1)

    run = self._run()
    run.push(2)
    state = run.state()
    again = self._run(held=run.store.held)
    again.restore(state)
    again.store.version = 2
    again.push(1)  # While the first two are due, the second waits.
    self.assertEqual(again.rows(), [])
    again.finish(2)
    self.assertEqual(again.slow.seen, [1, 3])
    self.assertEqual(again.rows(), [(1, 0.01), (2, None), (3, 0.03)])

    again = self._run(held={1: 1, 2: 2})
    again.restore(self._run_state(2))
    again.store.version = 2
    again.milestones.record_evaluations()
    again.finish(2)
    again.push(1)
    again.finish(1)
    self.assertEqual(again.rows(), straight.rows())
    self.assertEqual(
      again.recorder.summary(9.0)['time_to'],
      straight.recorder.summary(9.0)['time_to'],
    )

  def test_a_successor_repeats_the_evaluation_of_the_current_version(self):
    run = self._run(pushes=3)
    run.push(3)
    after = self._run(pushes=3)
    after.take_over(run)
    after.milestones.repeat_evaluation()
    after.push(3)
    after.finish(2)
    self.assertEqual(after.slow.seen, [3, 6])
    self.assertEqual(after.rows(), [(3, 0.03), (6, 0.06)])

  def test_a_successor_that_lacks_the_version_evaluates_the_next(self):
    run = self._run(pushes=3)
    run.push(3)
    after = self._run(pushes=3)
    after.take_over(run)
    after.push(1)  # The others had applied it when the process was lost.
    after.milestones.repeat_evaluation()
    after.push(1)
    after.finish(1)
    after.push(1)
    after.finish(1)
    self.assertEqual(after.rows(), [(3, None), (5, 0.05), (6, 0.06)])

  def test_a_successor_repeats_no_evaluation_that_has_ended(self):
    run = self._run(pushes=3)
    run.push(3)
    run.finish(1)
    after = self._run(pushes=3)
    after.take_over(run)
    after.milestones.repeat_evaluation()
    after.push(2)
    self.assertEqual((after.slow.running, after.rows()), (0, []))

  def _run_state(self, pushes):
    run = self._run()
    run.push(pushes)
    return run.state()

  def test_an_interval_in_seconds_evaluates_the_first_version_after_it(self):
    run = self._run(every_s=2.5, target=8 * 12)
    run.slow.turns.release(12)
    run.push(6)  # One a second.
    state = run.state()
    again = self._run(every_s=2.5, target=8 * 12, held=run.store.held)
    again.slow.turns.release(12)
    again.restore(state)
    again.store.version = 6
    again.push(6)
    versions = [version for version, _ in run.rows() + again.rows()]
    self.assertEqual(versions, [3, 5, 8, 10, 12])

  @parameterized.parameters(0.1, 0.3, 1 / 3, 0.7)
  def test_no_multiple_of_an_interval_is_evaluated_twice(self, every_s):
    run = self._run(every_s=every_s)
    run.slow.turns.release(100)
    multiples = [k * every_s for k in range(1, 100)]
    for before, at in itertools.pairwise(0.1 * k for k in range(60)):
      evaluations = run.milestones.evaluations
      run.milestones.review(at, barrier=False)
      is_due = any(before < each <= at for each in multiples)
      with self.subTest(at):
        self.assertEqual(run.milestones.evaluations - evaluations, is_due)

  def test_the_end_of_a_run_waits_for_all_evaluations(self):
    run = self._run(target=24)
    run.slow.turns.release(3)
    run.push(3)
    self.assertEqual(run.rows(), [(1, 0.01), (2, 0.02), (3, 0.03)])
    self.assertTrue(run.milestones.finished)

  def test_parameters_that_are_not_finite_end_the_run(self):
    run = self._run()
    run.store.version = 12
    run.recorder.accounting.updates = 12
    with self.assertRaisesRegex(FloatingPointError, 'version 13 is not finite'):
      run.push(1)
      run.finish(1)

  def test_without_another_thread_each_evaluation_runs_at_once(self):
    store, slow = _Store(), _Slow()
    slow.turns.release(5)
    evaluations = Evaluations(store=store, evaluate=slow, run_in_thread=None)
    evaluations.warm_up()
    for version in range(1, 4):
      store.version = version
      evaluations.add({'version': version})
      (got,) = evaluations.take(wait=False)
      figures = {'accuracy': version / 100, 'top5_accuracy': version / 50}
      self.assertEqual(got, ({'version': version}, figures))
      self.assertEqual(evaluations.state(), [])
    self.assertEqual(store.held, {})


class SaveScheduleTest(absltest.TestCase):
  def test_a_successor_saves_when_the_process_before_it_would_have(self):
    before = SaveSchedule(every_s=1000.0, every_examples=100)
    before.restart(30)
    examples, wait_s = before.state()
    self.assertEqual(examples, 130)
    self.assertBetween(wait_s, 990.0, 1000.0)
    after = SaveSchedule(every_s=1000.0, every_examples=100)
    after.take_over(examples, wait_s)
    self.assertEqual([after.is_due(n) for n in (129, 130)], [False, True])
    after.take_over(examples, -1.0)
    self.assertTrue(after.is_due(0))


if __name__ == '__main__':
  absltest.main()
