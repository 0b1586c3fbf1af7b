"""Tests for sweeps.pool."""

import os
from unittest import mock

from absl.testing import absltest, parameterized

from sweeps import pool


def _machine(cores, **environ):
  return (
    mock.patch.object(os, 'sched_getaffinity', lambda _: set(cores)),
    mock.patch.dict(os.environ, environ),
  )


class SlotsTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('one_each', range(4), 4, [(0,), (1,), (2,), (3,)]),
    ('several', range(8, 16), 2, [(8, 9, 10, 11), (12, 13, 14, 15)]),
    ('a_rest', (0, 2, 4, 6, 8), 2, [(0, 2), (4, 6)]),
    ('too_many', (3, 5), 3, [(3,), (5,), (3,)]),
  )
  def test_cores_are_divided_and_each_run_is_told_how_many(
    self, cores, jobs, expected
  ):
    here, environ = _machine(cores, JAX_PLATFORMS='')
    with here, environ:
      slots = pool.slots(jobs, learn=False)
    self.assertEqual([slot.cores for slot in slots], expected)
    told = pool.environ(slots, learn=False)
    self.assertEqual(told['OMP_NUM_THREADS'], str(len(expected[0])))
    self.assertEqual(told['JAX_PLATFORMS'], 'cpu')
    self.assertNotIn('JAX_PLATFORMS', pool.environ(slots, learn=True))

  def test_runs_with_a_model_take_turns_on_gpus(self):
    here, environ = _machine(
      range(8), JAX_PLATFORMS='', CUDA_VISIBLE_DEVICES='4,6'
    )
    with here, environ:
      slots = pool.slots(4, learn=True)
      self.assertEqual(pool.jobs_here(9, 0, learn=True), 2)
      self.assertEqual(pool.jobs_here(9, 0, learn=False), 8)
    gpus = [slot.environ['CUDA_VISIBLE_DEVICES'] for slot in slots]
    self.assertEqual(gpus, ['4', '6', '4', '6'])
    self.assertEqual([len(slot.cores) for slot in slots], [2] * 4)

  @parameterized.parameters((9, 0, 4), (2, 0, 2), (9, 7, 7), (1, 7, 1))
  def test_there_are_no_more_jobs_than_runs_or_cores(self, runs, jobs, number):
    here, environ = _machine(range(4), JAX_PLATFORMS='cpu')
    with here, environ:
      self.assertEqual(pool.jobs_here(runs, jobs, learn=True), number)

  def test_jobs_below_none_are_refused(self):
    with self.assertRaisesRegex(ValueError, '--jobs: expected at least 0'):
      pool.jobs_here(1, -1, learn=False)


if __name__ == '__main__':
  absltest.main()
