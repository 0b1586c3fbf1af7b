"""Tests for cluster.network.tcp_idle."""

import pathlib
import tempfile

from absl.testing import absltest, parameterized

from cluster.network import tcp_idle


class AdviceTest(parameterized.TestCase):
  @parameterized.parameters(('1\n', 1), ('0\n', 0), (None, 0))
  def test_slow_start_after_idle_times_is_logged_once(self, text, lines):
    file = pathlib.Path(tempfile.mkdtemp(), 'setting')
    if text is not None:
      file.write_text(text)
    with self.assertLogs('absl', 'INFO') as logs:
      tcp_idle.logging.info('So that there is a line.')
      tcp_idle.log_advice(file)
    self.assertLen(logs.output, 1 + lines)
    if lines:
      self.assertIn('net.ipv4.tcp_slow_start_after_idle', logs.output[1])


if __name__ == '__main__':
  absltest.main()
