"""Tests of what workers on real hosts remember: nothing counts twice or never.

Servers sum what arrives, and gradients are known, so that what was sent, what
is kept and what was pushed can be compared.
"""

import pathlib
import signal
import tempfile

import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest

from cluster.network.messages import ResidualSaved, SaveResidual
from cluster.parameter_server import residuals
from cluster.parameter_server.residuals import Remembered, Since
from learning.nothing import NoGradient, NoLearner
from outputs import stores
from tests.support import coordinators, processes
from tools import recompute
from wire import sparse
from wire.codec import Payload
from wire.flat import Flat

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


class _Gradient(NoGradient):
  def __call__(self, params, ranges, *, worker, iteration, scale=1.0):
    return Payload(jnp.asarray(_gradient(worker, iteration)), ()), None

  def warm_up(self, params, examples, *, changing):
    return [Payload(jnp.zeros(_SIZE), ())]


class _Sum(NoLearner):
  """Its parameters are the sum of all pushes."""

  def add(self, update, payload, examples, *, pushes=1, scale=1.0):
    super().add(update, payload, examples)
    self.params = self.params + np.asarray(payload.gradient)


class _Run:
  """A coordinator, two servers and workers, in this process."""

  def __init__(self, directory, workers, *, state=None, kept=lambda: None):
    self.directory = directory
    self.coordinator = coordinators.Coordinator(
      num_workers=workers,
      num_servers=2,
      wire=_wire(),
      learner=_Sum,
      directory=directory,
      kept=kept,
    )
    self.counted = np.zeros(_SIZE)
    push = self.coordinator.cluster.coordinator.push

    def count(index, *args, **kwargs):
      iteration = self.coordinator.cluster.coordinator.workers[index].iteration
      self.counted += _gradient(index, iteration)
      push(index, *args, **kwargs)

    self.coordinator.cluster.coordinator.push = count
    self.ended = [self.coordinator.work(k, _Gradient()) for k in range(workers)]
    self.coordinator.begin(state)

  def until(self, iterations):
    accounting = self.coordinator.accounting
    self.coordinator.until(lambda: accounting.iterations >= iterations)

  def cut(self, worker):
    """Cuts a worker's stream, and waits until it is back."""
    member = self.coordinator.reception.members[worker]
    life = member.incarnation
    member.stream.cancel()
    self.coordinator.until(lambda: member.incarnation > life)

  def save(self, step):
    """Returns the coordinator's state, whether parts are there, and their sum."""
    state = self.coordinator.cluster.state()
    parts = self.coordinator.orders.save(step)
    there = [part.result(timeout=coordinators.START_S) for part in parts]
    found = residuals.in_checkpoint(self.directory, step)
    folders = [residuals.of_worker(self.directory, k) for k in found]
    kept = [stores.read(folder / str(step))['left:'] for folder in folders]
    return state, there[2:], np.sum(kept, axis=0, dtype=np.float64)

  def arrived(self):
    """Returns the sum of what servers have been sent, of all orders so far."""
    servers = sorted(self.coordinator.servers, key=lambda server: server.index)
    sums = [np.asarray(server.learner.params) for server in servers]
    return np.concatenate(sums)

  def rows(self, told):
    calls = (
      self.coordinator.cluster.coordinator.recorder._files.event.call_args_list
    )
    rows = [call.args[0] for call in calls]
    return [row['worker'] for row in rows if row['event'] == told]


class RunTest(absltest.TestCase):
  def test_nothing_is_lost_with_a_stream_or_another_number_of_workers(self):
    directory = pathlib.Path(tempfile.mkdtemp())
    run = _Run(directory, 3)
    self.addCleanup(run.coordinator.close)
    run.until(12)
    for worker in (0, 2):
      run.cut(worker)
      run.until(run.coordinator.accounting.iterations + 12)
    state, there, kept = run.save(7)
    self.assertEqual(there, [True] * 3)
    np.testing.assert_array_equal(run.arrived() + kept, run.counted)
    self.assertGreater(np.abs(kept).sum(), 0)
    for told in ('forgot', 'recalled'):
      self.assertEqual(run.rows(told), [0, 2])

    found = residuals.in_checkpoint(directory, 7)
    self.assertEqual(found, [0, 1, 2])
    again = _Run(directory, 2, state=state, kept=lambda: (7, found))
    self.addCleanup(again.coordinator.close)
    again.until(run.coordinator.accounting.iterations + 12)
    _, there, left = again.save(8)
    self.assertEqual(there, [True] * 2)
    np.testing.assert_array_equal(again.arrived() + left, again.counted + kept)
    self.assertEqual(sorted(again.rows('recalled')), [0, 1])
    self.assertEmpty(again.rows('forgot'))
    # Who begins anew says nothing of it.
    self.assertEqual(run.rows('recalled'), [0, 2])


class RememberedTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    zeros = np.zeros(_SIZE, np.float32)
    self.flat = Flat(zeros, (), servers=1, wire=_wire())
    self.directory = pathlib.Path(tempfile.mkdtemp())
    self.own = Remembered(self.flat, 1, self.directory)
    self.own.begin()

  def _state(self, value):
    kept = {'left': np.full(_SIZE, value, np.float32)}
    return [state._replace(kept=kept) for state in self.flat.init(0)]

  def _left(self, since):
    (state,) = self.own.recall(since)
    return float(np.unique(state.kept['left']).item())

  def test_it_is_that_of_the_last_iteration_that_counted(self):
    self.assertEqual(self._left(Since()), 0)
    self.own.note(0, self._state(1))
    self.own.begin()  # The push was lost.
    self.assertEqual(self._left(Since()), 0)
    self.assertFalse(self.own.recalled)
    self.own.note(1, self._state(2))
    self.own.begin()  # It has counted.
    self.assertEqual(self._left(Since(1)), 2)
    self.assertTrue(self.own.recalled)
    self.own.note(2, self._state(3))
    self.assertEqual(self._left(Since(2)), 3)
    self.assertFalse(self.own.recalled)  # But in the first one of a life.
    self.own.note(3, self._state(4))
    self.assertEqual(self._left(Since(2)), 3)

  def test_another_process_has_forgotten_and_says_so(self):
    self.assertEqual(self._left(Since(5)), 0)
    self.assertFalse(self.own.recalled)
    said = []
    self.own.answer(SaveResidual(3, (7, None, [])), said.append)
    self.assertEqual(said, [ResidualSaved(3, False)])
    self.assertEmpty(residuals.in_checkpoint(self.directory, 3))

  def test_a_checkpoint_is_of_the_iteration_that_is_meant(self):
    self._left(Since())
    self.own.note(0, self._state(1))
    self._left(Since(0))
    self.own.note(1, self._state(2))
    for step, after in ((3, 0), (4, 1)):
      self.own.answer(SaveResidual(step, (after, None, [])), print)
      folder = residuals.of_worker(self.directory, 1) / str(step)
      np.testing.assert_array_equal(
        stores.read(folder)['left:'], np.full(_SIZE, after + 1)
      )

  def test_a_full_disk_is_told(self):
    said = []
    (self.directory / 'worker1').write_text('in the way')
    self.own.answer(SaveResidual(3, (None, None, [])), said.append)
    self.assertRegex(said[0].error, 'Error: ')

  def test_each_part_is_somebodys(self):
    whole = residuals.shared(7, [0, 2, 3, 4], 2)
    self.assertEqual(whole, [Since(None, 7, [0, 2, 4]), Since(None, 7, [3])])
    self.assertFalse(residuals.shared(7, [0], 2)[1].any)

  def test_parts_that_are_gone_are_not_remembered(self):
    self.assertEqual(self._left(Since(None, 9, [0, 1])), 0)
    self.assertFalse(self.own.recalled)


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
    with processes.launched(workers=3, servers=2, **fields) as launch:
      launch.reach(5 * 192)
      launch.process.send_signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    self.assertEqual(recompute.difference(launch.folder), 0.0)
    with processes.launched(
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
