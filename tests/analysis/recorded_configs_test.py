"""Tests for configs of the times alone of a recorded run."""

import math
import pathlib

from absl.testing import absltest, parameterized

from analysis import recorded_configs
from tests.support import small


class TimedTest(parameterized.TestCase):
  @parameterized.parameters(('float32', 4 * 1001), ('bfloat16', 2 * 1001))
  def test_as_many_bytes_travel_as_did(self, dtype, size_bytes):
    recorded = small.config(
      wire__dense__dtype=dtype,
      cluster__workers=1,
      cluster__speed__slowdown=(1.0,),
    )
    timed = recorded_configs.timing_config(
      recorded,
      cluster=recorded.cluster,
      size_bytes=size_bytes,
      num_train=64,
      epochs=1.0,
    )
    self.assertEqual(timed.model.none.size_bytes, 4 * 1001)
    summary = small.build(timed)()
    self.assertEqual(summary['bytes'], 2 * size_bytes * summary['iterations'])

  @parameterized.parameters('10s', 0.5)
  def test_an_interval_of_evaluations_is_read_as_it_was_set(self, every):
    config = small.config(eval_every=every, checkpoint__every_s=math.inf)
    run = small.build(config)
    run.files.release()
    folder = run.files.workdir
    read = recorded_configs.restore_config(pathlib.Path(folder))
    self.assertEqual(read.eval_every, every)
    self.assertEqual(read.checkpoint.every_s, math.inf)


if __name__ == '__main__':
  absltest.main()
