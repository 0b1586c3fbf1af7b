"""Tests for evaluations that take longer than what goes on meanwhile."""

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from absl.testing import absltest

from outputs.console import Console
from outputs.evaluations import Evaluations
from outputs.files import RunFiles
from outputs.recorder import Milestones, Recorder
from sync.scheme import Push

_LIMIT_S = 10.0


class _Holder:
  """Versions are their own parameters; counts those that it holds."""

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

  def drop(self, held):
    del self.held[held]

  def read(self, held):
    version = self.held[held]
    return lambda: (version, ())


class _Slow:
  """An evaluation that begins when it is told to; accuracy is version / 100."""

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
  """A recorder in which each push is an update and comes to an evaluation."""

  def __init__(self, *, held=None, target=10**6):
    self.store, self.slow = _Holder(held), _Slow()
    self.files = mock.create_autospec(RunFiles, instance=True)
    self.pool = ThreadPoolExecutor(4)  # More than are to be used.
    self.recorder = Recorder(
      milestones=Milestones(target, 8, 8, 10**6, (0.02, 0.04)),
      store=self.store,
      evaluate=self.slow,
      files=self.files,
      console=Console(target=target, clock='real'),
      later=self.pool.submit,
    )

  def push(self, times=1):
    for _ in range(times):
      version = self.store.version
      push = Push(version, 0, float(version), 1.0, 8)
      self.recorder.pushed(
        version, push, iteration=version, pulled=0, loss=None, computed=8
      )
      self.recorder.committed(version, float(version))
      self.store.version += 1
      self.recorder.reached(float(self.store.version), barrier=False)

  def let(self, count):
    """Lets so many evaluations end."""
    for _ in range(count):
      due = self.recorder._evaluations._due[0]
      self.slow.turns.release()
      due.accuracy.result(timeout=_LIMIT_S)
      self.recorder._fetch_accuracies()

  def rows(self):
    rows = [call.args[0] for call in self.files.metric.call_args_list]
    return [(row['updates'], row['accuracy']) for row in rows]


class EvaluationsTest(absltest.TestCase):
  def _run(self, **fields):
    run = _Run(**fields)
    self.addCleanup(run.pool.shutdown)
    self.addCleanup(run.slow.turns.release, 100)
    return run

  def test_pushes_and_checkpoints_go_on_while_one_is_computed(self):
    run = self._run()
    with self.assertLogs('absl', 'WARNING') as logs:
      run.push(5)
    state = run.recorder.state()
    self.assertEqual(state['accounting'].updates, 5)
    self.assertEqual(run.rows(), [])
    self.assertIn('that of version 2, at 16 examples, is left', logs.output[0])
    self.assertEqual(list(run.store.held.values()), [1, 5])
    run.let(2)
    run.push(1)
    run.let(1)
    # Every row is there, in order, with the accuracy of its own version.
    expected = [(1, 0.01), (2, None), (3, None), (4, None), (5, 0.05)]
    self.assertEqual(run.rows(), [*expected, (6, 0.06)])
    summary = run.recorder.summary(9.0)
    self.assertEqual(summary['time_to'], {'0.02': 5.0, '0.04': 5.0})
    self.assertEqual(summary['final_accuracy'], 0.06)
    self.assertEqual(summary['final_top5_accuracy'], 0.12)
    self.assertEqual(run.store.held, {})
    self.assertEqual((run.slow.most, run.store.most), (1, 2))

  def test_what_is_due_is_done_again_after_a_checkpoint(self):
    straight = self._run()
    straight.push(2)
    straight.let(2)
    straight.push(1)
    straight.let(1)

    run = self._run()
    run.push(2)
    state = run.recorder.state()
    again = self._run(held=run.store.held)
    again.recorder.restore(state)
    again.store.version = 2
    again.push(1)  # While the first two are due, the second waits.
    self.assertEqual(again.rows(), [])
    again.let(2)
    self.assertEqual(again.slow.seen, [1, 3])
    self.assertEqual(again.rows(), [(1, 0.01), (2, None), (3, 0.03)])

    again = self._run(held={1: 1, 2: 2})
    again.recorder.restore(self._run_state(2))
    again.store.version = 2
    again.recorder._fetch_accuracies()
    again.let(2)
    again.push(1)
    again.let(1)
    self.assertEqual(again.rows(), straight.rows())
    self.assertEqual(
      again.recorder.summary(9.0)['time_to'],
      straight.recorder.summary(9.0)['time_to'],
    )

  def _run_state(self, pushes):
    run = self._run()
    run.push(pushes)
    return run.recorder.state()

  def test_the_end_waits_for_all_and_leaves_none_out(self):
    run = self._run(target=24)
    run.slow.turns.release(3)
    run.push(3)
    self.assertEqual(run.rows(), [(1, 0.01), (2, 0.02), (3, 0.03)])
    self.assertTrue(run.recorder.finished)

  def test_parameters_that_are_not_finite_end_the_run(self):
    run = self._run()
    run.store.version = 12
    run.recorder.accounting.updates = 12
    with self.assertRaisesRegex(FloatingPointError, 'version 13 is not finite'):
      run.push(1)
      run.let(1)

  def test_without_another_thread_each_is_done_at_once(self):
    store, slow = _Holder(), _Slow()
    slow.turns.release(5)
    evaluations = Evaluations(store=store, evaluate=slow, later=None)
    evaluations.warm_up()
    for version in range(1, 4):
      store.version = version
      evaluations.add({'version': version})
      (got,) = evaluations.fetch(wait=False)
      row = {'version': version, 'top5_accuracy': version / 50}
      self.assertEqual(got, (row, version / 100))
      self.assertEqual(evaluations.state(), [])
    self.assertEqual(store.held, {})


if __name__ == '__main__':
  absltest.main()
