"""Tests of the coordinator with batches that a test chooses."""

from unittest import mock

from absl.testing import absltest

import data.stream
from cluster.coordinator import Coordinator
from data.stream import size
from sync import bsp


class _Batching:
  """Batches that the test sets."""

  needs_barriers = False

  def __init__(self, batch):
    self.batch = batch

  def assign(self, workers):
    return dict.fromkeys(workers, self.batch)

  def observe(self, measurement):
    """Learns nothing."""

  report = leave = join = observe


class AheadTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.batching = _Batching(8)
    self.coordinator = Coordinator(
      scheme=bsp.make(num_workers=2),
      batching=self.batching,
      store=mock.Mock(version=0),
      stream=data.stream.Stream(num_examples=1000, seed=0, ahead=0),
      recorder=mock.Mock(),
      milestones=mock.Mock(finished=False),
      num_workers=2,
      ahead=True,
    )
    self.coordinator.attach(
      release=lambda worker: None, wake_at=lambda time: None
    )
    self.coordinator.start(0.0)
    self._time = 0.0

  def _tick(self):
    self._time += 1.0
    return self._time

  def _iterate(self, *workers):
    for worker in workers:
      self.coordinator.push(
        worker, self._tick(), compute_s=1.0, factors=(), loss=1.0, computed=8
      )

  def _examples(self, worker):
    """Returns the examples of an iteration; checks their positions."""
    progress = self.coordinator.workers[worker]
    self.assertEqual(size(progress.ranges), progress.examples)
    return progress.examples

  def test_a_batch_is_assigned_one_iteration_ahead(self):
    self.batching.batch = 4
    self._iterate(0, 1)
    self.assertEqual(self._examples(1), 8)
    self._iterate(0, 1)
    self.assertEqual(self._examples(1), 4)

  def test_a_worker_that_rejoins_gets_the_batch_of_now(self):
    self.coordinator.leave(1, self._tick(), 'lost')
    self._iterate(0)
    self.batching.batch = 3
    self.coordinator.join(1, self._tick())
    self._iterate(0)
    self.assertEqual(self._examples(1), 3)


if __name__ == '__main__':
  absltest.main()
