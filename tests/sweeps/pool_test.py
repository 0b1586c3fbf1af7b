"""Tests for sweeps.pool."""

import os
from unittest import mock

from absl.testing import absltest, parameterized

from sweeps import pool
from tests.support import gpus


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
  def test_cores_are_divided_among_the_runs(self, cores, jobs, expected):
    here, environ = _machine(cores, JAX_PLATFORMS='')
    with here, environ:
      slots = pool.divide_machine(jobs, uses_model=False)
      self.assertEqual([slot.cores for slot in slots], expected)
      variables = pool.shared_environment(slots, uses_model=False)
      self.assertEqual(variables['OMP_NUM_THREADS'], str(len(expected[0])))
      self.assertEqual(variables['JAX_PLATFORMS'], 'cpu')
      variables = pool.shared_environment(slots, uses_model=True)
      self.assertNotIn('JAX_PLATFORMS', variables)

  @parameterized.parameters(
    (gpus.list_output(8), '4,6', 4, ['4', '6', '4', '6'], '0.3750'),
    (gpus.list_output(8), '4,-1,6', 2, ['4', '4'], '0.3750'),
    (gpus.list_output(1), None, 8, ['0'] * 8, '0.0937'),
    (gpus.list_output(8), None, 8, [*'01234567'], None),
    # A run alone on a GPU gets no more than the others.
    (gpus.list_output(2), None, 3, ['0', '1', '0'], '0.3750'),
    (gpus.list_output(1, 2), None, 2, [gpus.mig(0, 0), gpus.mig(0, 1)], None),
    ('', None, 2, [None, None], None),
  )
  def test_runs_with_a_model_share_gpus(
    self, output, given, jobs, masks, fraction
  ):
    mask = {} if given is None else {'CUDA_VISIBLE_DEVICES': given}
    here, _ = _machine(range(8))
    with here, gpus.Host(output).here(**mask):
      slots = pool.divide_machine(jobs, uses_model=True)
      default = pool.count_jobs(99, 0, uses_model=True)
      self.assertEqual(default, len(set(masks)) if masks[0] else 8)
      self.assertEqual(pool.count_jobs(9, 0, uses_model=False), 8)
      for slot in pool.divide_machine(jobs, uses_model=False):
        self.assertEmpty(slot.environ)
    found = [slot.environ.get('CUDA_VISIBLE_DEVICES') for slot in slots]
    self.assertEqual(found, masks)
    for slot in slots:
      own = slot.environ.get('XLA_CLIENT_MEM_FRACTION')
      self.assertEqual(own, fraction)
      self.assertLen(slot.cores, 8 // jobs)

  def test_the_division_is_described(self):
    for output, jobs, expected in (
      ('', 2, '2 at a time, 4 cores each'),
      (gpus.list_output(2), 2, '2 at a time, 4 cores each, on 2 GPUs'),
      (
        gpus.list_output(1),
        8,
        '8 at a time, 1 core each, on 1 GPU, 8 on each with 9% of its memory '
        'each',
      ),
    ):
      here, _ = _machine(range(8))
      with here, gpus.Host(output).here():
        self.assertEqual(
          pool.describe_slots(pool.divide_machine(jobs, uses_model=True)),
          expected,
        )

  @parameterized.parameters((9, 0, 4), (2, 0, 2), (9, 7, 7), (1, 7, 1))
  def test_there_are_no_more_jobs_than_runs_or_cores(self, runs, jobs, number):
    here, environ = _machine(range(4), JAX_PLATFORMS='cpu')
    with here, environ:
      self.assertEqual(pool.count_jobs(runs, jobs, uses_model=True), number)

  def test_negative_jobs_are_refused(self):
    with self.assertRaisesRegex(ValueError, '--jobs: expected at least 0'):
      pool.count_jobs(1, -1, uses_model=False)


if __name__ == '__main__':
  absltest.main()
