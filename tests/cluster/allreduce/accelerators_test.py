"""Tests for allreduce runs with fake accelerators."""

import pytest
from absl.testing import absltest, parameterized

from tests.support import accelerators, processes
from tests.support.recomputing import recompute

_SENTENCE = 'bucket by bucket after the backward pass, while later'


class OverlapTest(processes.TestCase, parameterized.TestCase):
  def test_rounded_sums_equal_those_of_cpus_bit_for_bit(self):
    self._check('bfloat16')

  @parameterized.product(
    dtype=['float32', 'bfloat16', 'float16'], devices=[1, 2]
  )
  @pytest.mark.soak
  def test_sums_in_all_dtypes_equal_those_of_cpus(self, dtype, devices):
    self._check(dtype, devices)

  def _check(self, dtype, devices=1):
    with processes.launch(
      workers=2,
      servers=0,
      environ=accelerators.environment(devices=devices),
      route__name='ring',
      route__bucket_bytes=200.0,
      wire__dense__dtype=dtype,
      cluster__devices_per_worker=devices,
      epochs=1.0,
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
      summary = launch.summary
    self.assertEqual(summary['ended'], 'finished')
    self.assertEqual(summary['overlap'], 'copies')
    self.assertEqual(summary['late_compilations'], 0)
    self.assertLen(launch.times(_SENTENCE), 2)  # Once in each process.
    if devices == 1:  # Recomputed by the CPU of this process.
      self.assertEqual(recompute.difference(launch.folder), 0)


if __name__ == '__main__':
  absltest.main()
