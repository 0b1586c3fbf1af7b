"""Tests for the measured work of a server."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest

from cluster.network.messages import ServerWork
from cluster.parameter_server import work
from learning import warm_up
from learning.learner import TaskLearner
from learning.timing_only import TimingOnlyLearner
from wire.codec import Payload

_SIZE = 1000


def _learner():
  return TaskLearner(
    params=jnp.ones(_SIZE),
    stats=jnp.ones(10),
    tx=optax.adam(1.0),
    schedule=lambda examples, updates: 0.1,
    reduction='sum',
    num_workers=1,
    worker_batch=8,
  )


def _receive(stage):
  return np.zeros(_SIZE + 10, np.float32)


def _decode(sent, stage):
  return Payload(jnp.array(sent[:_SIZE]), jnp.array(sent[_SIZE:]))


class _SlowLearner(TaskLearner):
  """A learner with known times: .02 s for a sum, .05 s for an update."""

  def add(self, *args, **kwargs):
    time.sleep(0.02)
    super().add(*args, **kwargs)

  def commit(self, update):
    time.sleep(0.05)
    super().commit(update)


class WorkTest(absltest.TestCase):
  def test_known_times_are_measured_and_nothing_changes(self):
    learner = _learner()
    learner.__class__ = _SlowLearner
    warm_up.apply_updates(learner, _decode(_receive(0), 0), adds=True)
    before = jax.tree.map(np.array, learner.state()['_state'])

    found = work.measure(learner, [0], _receive, _decode)

    self.assertBetween(found.sum_s, 0.02, 0.045)
    self.assertBetween(found.update_s, 0.05, 0.075)
    self.assertEqual(found.share_bytes, 4 * (_SIZE + 10))
    self.assertEqual(found.slot_bytes, 2 * 4 * _SIZE + 4)  # And a counter.
    self.assertEqual((learner.version, learner.examples), (0, 0))
    np.testing.assert_array_equal(learner.params, np.ones(_SIZE))
    jax.tree.map(
      np.testing.assert_array_equal, learner.state()['_state'], before
    )

  def test_open_sums_of_a_checkpoint_stay(self):
    learner = _learner()
    learner.add(0, _decode(np.full(_SIZE + 10, 2.0, np.float32), 0), 8)

    self.assertIsNotNone(work.measure(learner, [0, 1], _receive, _decode))

    total, *counts = learner.state()['_sums'][0]
    self.assertEqual(counts, [8, 8, 1])  # Examples, weight and pushes.
    np.testing.assert_array_equal(total.gradient, np.full(_SIZE, 2.0))

  def test_there_is_no_work_without_a_model(self):
    learner = TimingOnlyLearner(jnp.ones(_SIZE), ())
    self.assertIsNone(work.measure(learner, [0], _receive, _decode))

  def test_the_slowest_server_counts_if_all_are_known(self):
    fast, slow = ServerWork(4, 4, 0.1, 0.1), ServerWork(4, 4, 0.1, 0.2)
    self.assertEqual(work.slowest([fast, slow, fast]), slow)
    self.assertIsNone(work.slowest([fast, None]))
    self.assertIsNone(work.slowest([]))


if __name__ == '__main__':
  absltest.main()
