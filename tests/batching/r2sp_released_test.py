"""Tests for R2SP's tuning as released."""

from absl.testing import absltest, parameterized

from batching import r2sp_released
from batching.batching import Measurement
from configs import default
from tests.support import turns


def _tuning(num_workers, **changed):
  arguments = {'worker_batch': 512, 'window': 10, 'recent': 5}
  arguments |= {'threshold': 0.1, 'most': ()}
  return r2sp_released.make(num_workers=num_workers, **arguments | changed)


def _iterate(policy, worker, speed, waited_s, transfer_s=0.0):
  """Runs an iteration of a worker; returns its next batch."""
  examples = policy.assign([worker])[worker]
  policy.observe(
    Measurement(worker, 0.0, examples / speed, transfer_s, waited_s, examples)
  )
  return policy.assign([worker])[worker]


class R2spReleasedTest(parameterized.TestCase):
  @parameterized.parameters(list(range(8)), list(reversed(range(8))))
  def test_table_2_of_the_paper(self, *order):
    # Two g2.2xlarge, two p2.xlarge, four g3.4xlarge.
    speeds = [429] * 2 + [628] * 2 + [917] * 4
    waits = [0.0] * 2 + [0.62] * 2 + [0.82] * 4
    policy = _tuning(8)
    for _ in range(10):
      self.assertEqual(set(policy.assign(range(8)).values()), {512})
      for worker in order:
        _iterate(policy, worker, speeds[worker], waits[worker])
    sizes = list(policy.assign(range(8)).values())
    self.assertEqual(sizes, [512] * 2 + [901] * 2 + [1264] * 4)
    self.assertEqual(sum(sizes), 7882)
    self.assertIsNone(policy.max_batch)

  def test_each_window_averages_its_last_waits(self):
    policy = _tuning(2, worker_batch=10, window=4, recent=2)
    sizes = []
    for waited_s in (9.0, 9.0, 1.0, 2.0, 0.0, 0.0, 0.0, 3.0):
      _iterate(policy, 0, 1.0, 0.0)
      sizes.append(_iterate(policy, 1, 10.0, waited_s))
    self.assertEqual(sizes, [10] * 3 + [25] * 4 + [40])

  @parameterized.parameters((0.099, 10), (0.101, 20), (0.301, 40))
  def test_waits_below_the_threshold_change_nothing(self, share, expected):
    # An iteration takes 1 s to compute and 9 s to transfer.
    policy = _tuning(2, worker_batch=10, window=1, recent=1)
    _iterate(policy, 0, 1.0, 0.0)
    self.assertEqual(_iterate(policy, 1, 10.0, 10 * share, 9.0), expected)

  def test_the_slowest_worker_is_never_changed(self):
    policy = _tuning(3, worker_batch=10, window=1, recent=1)
    for _ in range(20):
      for worker, speed in enumerate((5.0, 4.0, 6.0)):
        _iterate(policy, worker, speed, 1.0)
    sizes = policy.assign([0, 1, 2])
    self.assertEqual(sizes[1], 10)
    self.assertGreaterEqual(min(sizes[0], sizes[2]), 50)
    policy.leave(1)
    for worker, speed in ((0, 5.0), (2, 6.0)):
      _iterate(policy, worker, speed, 9.0)
    self.assertEqual(policy.assign([0, 2]), {0: sizes[0], 2: sizes[2] + 54})

  def test_batches_stop_at_their_bounds(self):
    policy = _tuning(2, worker_batch=10, window=1, recent=1, most=(30, 25))
    for _ in range(5):
      _iterate(policy, 0, 1.0, 0.0)
      _iterate(policy, 1, 5.0, 2.0)
    self.assertEqual(policy.assign([0, 1]), {0: 10, 1: 25})
    self.assertEqual(policy.max_batch, 30)

  def test_a_worker_that_rejoins_starts_with_the_initial_batch(self):
    policy = _tuning(2, worker_batch=10, window=2, recent=1)
    for _ in range(4):
      _iterate(policy, 0, 1.0, 0.0)
      _iterate(policy, 1, 5.0, 2.0)
    self.assertEqual(policy.assign([1]), {1: 30})
    policy.leave(1)
    policy.join(1)
    self.assertEqual(_iterate(policy, 1, 5.0, 2.0), 10)
    self.assertEqual(_iterate(policy, 1, 5.0, 2.0), 20)

  def test_batches_of_equal_workers_diverge(self):
    own = default.get_config().batching.r2sp_released.to_dict()
    policy = r2sp_released.make(num_workers=8, worker_batch=32, **own)
    times = turns.Times(per_example_s=[0.06 / 32] * 8, transfer_s=[0.01] * 8)

    sizes = turns.simulate(policy, times, sigma=0.1, iterations=300, seed=0)

    self.assertGreater(sizes[-1].min(), 5 * 32)
    self.assertGreater(sizes[-1].min(), 2 * sizes[199].mean())


if __name__ == '__main__':
  absltest.main()
