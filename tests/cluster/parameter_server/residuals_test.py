"""Tests for states of workers on real hosts: each counts exactly once.

Servers sum all pushes, and gradients are known, so that the sums of what was
sent, of the residuals and of the gradients can be compared.
"""

import pathlib
import signal
import tempfile

import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest

from cluster.membership import worker_states as residuals
from cluster.membership.worker_states import (
  ResidualHistory,
  ResidualId,
  WorkerState,
)
from cluster.network.messages import (
  ResidualSaved,
  RetainResidual,
  SaveResidual,
)
from learning.shard_codec import ShardCodec
from learning.timing_only import TimingOnlyGradient, TimingOnlyLearner
from outputs import checkpoints
from tests.support import coordinators, processes
from tests.support.recomputing import recompute
from wire import sparse
from wire.codec import Payload

_SIZE = 16  # Numbers, of `coordinators`.


def _wire():
  return sparse.make(
    dtype='float32',
    sparsity=0.7,
    chunk=2,
    correction='none',
    momentum=0.0,
    select_lag=0,
    warmup=(),
    warmup_epochs=1.0,
  )


def _gradient(worker, iteration):
  rng = np.random.default_rng([worker, iteration])
  return rng.integers(-9, 10, _SIZE).astype(np.float32)


def _residual(directory, step, worker):
  """Returns a worker's residual in a checkpoint."""
  part = residuals.worker_part(worker)
  return checkpoints.read(directory, step, [part])[part]['residuals']['unsent:']


def _count_in_checkpoint(directory, step, worker):
  """Returns the state of a worker's inner optimizer in a checkpoint."""
  part = residuals.worker_part(worker)
  return int(checkpoints.read(directory, step, [part])[part]['optimizer'])


class _Gradient(TimingOnlyGradient):
  """Gradients that are known, and a state that counts them."""

  def init(self, params):
    return jnp.zeros((), jnp.int32)

  def push(self, params, iteration, state):
    gradient = jnp.asarray(_gradient(iteration.worker, iteration.number))
    return Payload(gradient, ()), None, state + 1

  def warm_up(self, params, examples, *, changing):
    return [Payload(jnp.zeros(_SIZE), ())]


class _Sum(TimingOnlyLearner):
  """Its parameters are the sum of all pushes."""

  def add(self, update, payload, examples, *, weight=None, pushes=1, scale=1.0):
    super().add(update, payload, examples)
    self.params = self.params + np.asarray(payload.gradient)


class _Run:
  """A coordinator, two servers and workers, in this process."""

  def __init__(
    self, directory, workers, *, state=None, find_residuals=lambda: None
  ):
    self.directory = directory
    self.coordinator = coordinators.Coordinator(
      num_workers=workers,
      num_servers=2,
      wire=_wire(),
      learner=_Sum,
      directory=directory,
      find_residuals=find_residuals,
    )
    self.coordinator.store.has_inner_optimizer = True
    self.counted = np.zeros(_SIZE)
    self.counts = [0] * workers  # Pushes that have counted, by worker.
    push = self.coordinator.cluster.coordinator.push

    def count(index, *args, **kwargs):
      iteration = self.coordinator.cluster.coordinator.workers[index].iteration
      self.counted += _gradient(index, iteration)
      self.counts[index] += 1
      push(index, *args, **kwargs)

    self.coordinator.cluster.coordinator.push = count
    self.ended = [self.coordinator.work(k, _Gradient()) for k in range(workers)]
    self.coordinator.begin(state)

  def until(self, iterations):
    accounting = self.coordinator.accounting
    self.coordinator.until(lambda: accounting.iterations >= iterations)

  def cut(self, worker):
    """Cuts a worker's stream, and waits until it has rejoined."""
    member = self.coordinator.reception.members[worker]
    before = member.incarnation
    member.stream.cancel()
    self.coordinator.until(lambda: member.incarnation > before)

  def save(self, step):
    """Returns the coordinator's state, the workers' answers, and their sum."""
    state = self.coordinator.cluster.state()
    parts = self.coordinator.store.save(step)
    there = [part.result(timeout=coordinators.START_S) for part in parts]
    found = residuals.workers_in_checkpoint(self.directory, step)
    left = [_residual(self.directory, step, worker) for worker in found]
    return state, there[2:], np.sum(left, axis=0, dtype=np.float64)

  def sum_applied(self):
    """Returns the sum of all pushes that servers have added so far."""
    servers = sorted(self.coordinator.servers, key=lambda server: server.index)
    sums = [np.asarray(server.learner.params) for server in servers]
    return np.concatenate(sums)

  def rows(self, event):
    calls = (
      self.coordinator.cluster.coordinator.recorder.rows.event.call_args_list
    )
    rows = [call.args[0] for call in calls]
    return [row['worker'] for row in rows if row['event'] == event]


class RunTest(absltest.TestCase):
  def test_nothing_is_lost_with_a_stream_or_another_number_of_workers(self):
    directory = pathlib.Path(tempfile.mkdtemp())
    run = _Run(directory, 3)
    self.addCleanup(run.coordinator.close)
    run.until(12)
    for worker in (0, 2):
      run.cut(worker)
      run.until(run.coordinator.accounting.iterations + 12)
    state, there, residual = run.save(7)
    self.assertEqual(there, [True] * 3)
    counts = [_count_in_checkpoint(directory, 7, k) for k in range(3)]
    self.assertEqual(counts, run.counts)
    self.assertEmpty(run.coordinator.accounting.lost_states)
    np.testing.assert_array_equal(run.sum_applied() + residual, run.counted)
    self.assertGreater(np.abs(residual).sum(), 0)
    for event in ('forgot', 'recalled'):
      self.assertEqual(run.rows(event), [0, 2])

    found = residuals.workers_in_checkpoint(directory, 7)
    self.assertEqual(found, [0, 1, 2])
    again = _Run(directory, 2, state=state, find_residuals=lambda: (7, found))
    self.addCleanup(again.coordinator.close)
    again.until(run.coordinator.accounting.iterations + 12)
    _, there, left = again.save(8)
    self.assertEqual(there, [True] * 2)
    for worker, count in enumerate(again.counts):
      found = _count_in_checkpoint(directory, 8, worker)
      self.assertEqual(found, counts[worker] + count)
    (lost,) = again.coordinator.accounting.lost_states
    self.assertEqual(lost.worker, 2)
    self.assertIn('fewer workers now', lost.reason)
    np.testing.assert_array_equal(
      again.sum_applied() + left, again.counted + residual
    )
    self.assertEqual(sorted(again.rows('recalled')), [0, 1])
    self.assertEmpty(again.rows('forgot'))
    # Workers without an earlier residual do not report one.
    self.assertEqual(run.rows('recalled'), [0, 2])


class ResidualHistoryTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    zeros = np.zeros(_SIZE, np.float32)
    self.codec = ShardCodec(zeros, (), servers=1, wire=_wire())
    self.directory = pathlib.Path(tempfile.mkdtemp())
    self.own = ResidualHistory(self.codec, 1, self.directory)
    self.own.begin()

  def _state(self, value):
    residual = {'unsent': np.full(_SIZE, value, np.float32)}
    codec = [state._replace(residual=residual) for state in self.codec.init(0)]
    return WorkerState(codec)

  def _unsent(self, since):
    (state,) = self.own.recall(since).codec
    return float(np.unique(state.residual['unsent']).item())

  def test_the_residual_is_of_the_last_counted_iteration(self):
    self.assertEqual(self._unsent(ResidualId()), 0)
    self.own.record(0, self._state(1))
    self.own.begin()  # The push was lost.
    self.assertEqual(self._unsent(ResidualId()), 0)
    self.assertFalse(self.own.has_recalled)
    self.own.record(1, self._state(2))
    self.own.begin()  # It has counted.
    self.assertEqual(self._unsent(ResidualId(1)), 2)
    self.assertTrue(self.own.has_recalled)
    self.own.record(2, self._state(3))
    self.assertEqual(self._unsent(ResidualId(2)), 3)
    # Only in the first iteration of an incarnation.
    self.assertFalse(self.own.has_recalled)
    self.own.record(3, self._state(4))
    self.assertEqual(self._unsent(ResidualId(2)), 3)

  def test_iterations_that_are_repeated_from_a_mirror_have_new_residuals(self):
    for iteration in range(26):
      self.own.record(iteration, self._state(iteration))
    self.own.retain(RetainResidual(2, (25, None, [])))
    for iteration in range(26, 30):
      self.own.record(iteration, self._state(iteration))
    self.own.begin()  # All return to the mirror.
    self.assertEqual(self._unsent(ResidualId(25)), 25)
    for iteration in range(27, 34):  # Number 26 was lost.
      self.own.record(iteration, self._state(100 + iteration))
      self.assertEqual(self._unsent(ResidualId(iteration)), 100 + iteration)

  def test_the_state_of_the_newest_mirror_is_kept_and_those_before_are_not(
    self,
  ):
    for mirror in (1, 2, 3):
      self.own.record(mirror, self._state(mirror))
      self.own.retain(RetainResidual(mirror, (mirror, None, [])))
    self.own.release(2)  # Mirror 2 is complete.
    for iteration in range(4, 9):
      self.own.record(iteration, self._state(iteration))
    answers = []
    for mirror in (1, 2, 3):
      self.own.answer(SaveResidual(mirror, (mirror, None, [])), answers.append)
    self.assertEqual([each.is_known for each in answers], [False, True, True])
    for mirror in (2, 3):
      np.testing.assert_array_equal(
        _residual(self.directory, mirror, 1), np.full(_SIZE, mirror)
      )

  def test_another_process_reports_that_it_lacks_the_residual(self):
    self.assertEqual(self._unsent(ResidualId(5)), 0)
    self.assertFalse(self.own.has_recalled)
    answers = []
    self.own.answer(SaveResidual(3, (7, None, [])), answers.append)
    self.assertEqual(answers, [ResidualSaved(3, False)])
    self.assertEmpty(residuals.workers_in_checkpoint(self.directory, 3))

  def test_a_checkpoint_has_the_residual_of_its_iteration(self):
    self._unsent(ResidualId())
    self.own.record(0, self._state(1))
    self._unsent(ResidualId(0))
    self.own.record(1, self._state(2))
    for step, after in ((3, 0), (4, 1)):
      self.own.answer(SaveResidual(step, (after, None, [])), print)
      np.testing.assert_array_equal(
        _residual(self.directory, step, 1), np.full(_SIZE, after + 1)
      )

  def test_a_full_disk_is_reported(self):
    answers = []
    (self.directory / '3').write_text('in the way')
    self.own.answer(SaveResidual(3, (None, None, [])), answers.append)
    self.assertRegex(answers[0].error, 'Error: ')

  def test_each_part_is_assigned_to_one_worker(self):
    whole = residuals.assign_residuals(7, [0, 2, 3, 4], 2)
    self.assertEqual(
      whole, [ResidualId(None, 7, [0, 2, 4]), ResidualId(None, 7, [3])]
    )
    self.assertFalse(
      residuals.assign_residuals(7, [0], 2)[1].can_differ_from_zero
    )

  def test_a_removed_part_of_a_checkpoint_is_not_read(self):
    self.assertEqual(self._unsent(ResidualId(None, 9, [0, 1])), 0)
    self.assertFalse(self.own.has_recalled)


class ProcessTest(processes.TestCase):
  @pytest.mark.soak
  def test_a_run_that_was_stopped_can_be_computed_again(self):
    fields = {
      'sync__name': 'ssp',
      'epochs': 8.0,
      'checkpoint__every_examples': 200,
      'optimizer__sgd__momentum': 0.9,
      'cluster__speed__injected': True,
      'cluster__speed__fixed_s': 0.01,
      'cluster__speed__per_example_s': 0.0,
      'wire__name': 'sparse',
      'wire__sparse__chunk': 16,
      'wire__sparse__warmup': (0.0, 0.5),
    }
    with processes.launch(workers=3, servers=2, **fields) as launch:
      launch.reach(5 * 192)
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    self.assertEqual(recompute.difference(launch.folder), 0.0)
    with processes.launch(
      workers=3, servers=2, folder=launch.folder, **fields
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self.assertEqual(recompute.difference(launch.folder), 0.0)
    self.assertEqual(launch.summary['late_compilations'], 0)
    rows = launch.rows('events.jsonl')
    recalled = [row['worker'] for row in rows if row['event'] == 'recalled']
    self.assertEqual(sorted(recalled), [0, 1, 2])


if __name__ == '__main__':
  absltest.main()
