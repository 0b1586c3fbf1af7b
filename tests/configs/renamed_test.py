"""Tests for fields of before: refused with the name that they have now."""

import pathlib
import tempfile

from absl.testing import absltest, parameterized

from configs import sections
from tests.support import small

_OLD = """
from configs import default

def get_config():
  config = default.get_config()
  config.sync.bsp.pipelined = True
  return config
"""
_NOW = 'config.sync.bsp.pipelined is called config.route.server.pipelined now.'


class RenamedTest(parameterized.TestCase):
  def test_a_config_that_has_an_old_field_is_told_its_name(self):
    config = small.config()
    with config.unlocked():
      config.sync.bsp.pipelined = True
    message = 'config.sync.bsp.pipelined: it is called config.route.server'
    with self.assertRaisesRegex(ValueError, message):
      small.build(config)

  @parameterized.parameters('recent', 'threshold')
  def test_so_are_those_of_r2sps_tuning(self, field):
    config = small.config()
    with config.unlocked():
      config.batching.r2sp[field] = 1
    message = (
      f'r2sp.{field}: it is called config.batching.r2sp_released.{field}'
    )
    with self.assertRaisesRegex(ValueError, message):
      small.build(config)

  def test_the_smallest_bucket_has_one_name(self):
    config = small.config()
    with config.unlocked():
      config.route.range_bytes = 1.0
    message = 'route.range_bytes: it is called config.route.bucket_bytes'
    with self.assertRaisesRegex(ValueError, message):
      small.build(config)

  @parameterized.parameters(True, False)
  def test_who_runs_main_is_told_it_too(self, in_file):
    flags = [
      '--config=configs/vgg16_bsp.py',
      '--config.sync.bsp.pipelined=True',
    ]
    if in_file:
      path = pathlib.Path(tempfile.mkdtemp(), 'old.py')
      path.write_text(_OLD)
      flags = [f'--config={path}']
    done = small.python('main.py', *flags)
    self.assertEqual(done.returncode, 1)
    self.assertIn('Refused: ', done.stderr)
    self.assertIn(_NOW, done.stderr)

  def test_other_unknown_fields_are_refused_without_advice(self):
    with (
      self.assertRaisesRegex(SystemExit, "'x'$"),
      sections.known_fields(['--config.x=1']),
    ):
      raise AttributeError("'x'")


if __name__ == '__main__':
  absltest.main()
