"""Tests for renamed config fields, which are rejected with their new names."""

import pathlib
import tempfile

from absl.testing import absltest, parameterized

from tests.support import small

_OLD = """
from configs import default

def get_config():
  config = default.get_config()
  config.sync.bsp.pipelined = True
  return config
"""
_MESSAGE = (
  'config.sync.bsp.pipelined was renamed to config.route.server.pipelined.'
)


class RenamedTest(parameterized.TestCase):
  def test_a_config_with_a_renamed_field_is_rejected_with_the_new_name(self):
    config = small.config()
    with config.unlocked():
      config.sync.bsp.pipelined = True
    message = 'config.sync.bsp.pipelined: expected config.route.server'
    with self.assertRaisesRegex(ValueError, message):
      small.build(config)

  @parameterized.parameters('recent', 'threshold')
  def test_renamed_fields_of_r2sp_are_rejected_with_the_new_name(self, field):
    config = small.config()
    with config.unlocked():
      config.batching.r2sp[field] = 1
    message = f'r2sp.{field}: expected config.batching.r2sp_released.{field}'
    with self.assertRaisesRegex(ValueError, message):
      small.build(config)

  def test_range_bytes_is_rejected_with_the_name_bucket_bytes(self):
    config = small.config()
    with config.unlocked():
      config.route.range_bytes = 1.0
    message = 'route.range_bytes: expected config.route.bucket_bytes, the new'
    with self.assertRaisesRegex(ValueError, message):
      small.build(config)

  @parameterized.parameters(True, False)
  def test_main_reports_the_new_name_of_a_field(self, in_file):
    flags = [
      '--config=configs/vgg16_bsp.py',
      '--config.sync.bsp.pipelined=True',
    ]
    if in_file:
      path = pathlib.Path(tempfile.mkdtemp(), 'old.py')
      path.write_text(_OLD)
      flags = [f'--config={path}']
    process = small.python('main.py', *flags)
    self.assertEqual(process.returncode, 1)
    self.assertIn('Refused: ', process.stderr)
    self.assertIn(_MESSAGE, process.stderr)


if __name__ == '__main__':
  absltest.main()
