"""A whole run whose processes connect over IPv6."""

import socket

from absl.testing import absltest

from tests.support import processes, requires


class RunTest(processes.TestCase):
  def test_three_processes_train_over_ipv6(self):
    requires.host(socket.has_dualstack_ipv6(), 'There is no IPv6.')
    with processes.launch(
      workers=3,
      servers=0,
      flags=('--config.cluster.interface=::1',),
      route__name='forest',
      epochs=1.0,
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self.assertEqual(launch.summary['ended'], 'finished')
    self.assertEqual(launch.summary['admissions'], [1, 1, 1])
    self.assertIn('[::1]:', launch.text)
    self.assertNotIn('127.0.0.1', launch.text)
    self.assertLen({row['pid'] for row in launch.rows('launch.jsonl')}, 3)


if __name__ == '__main__':
  absltest.main()
