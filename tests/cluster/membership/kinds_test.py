"""Tests for the record of the devices of workers."""

from absl.testing import absltest

from tests.support import coordinators


class DevicesTest(absltest.TestCase):
  def test_devices_are_recorded_at_the_start_and_when_a_worker_joins(self):
    coordinator = coordinators.Coordinator(num_workers=3, num_servers=1)
    self.addCleanup(coordinator.close)
    recorded = coordinator.cluster.coordinator.recorder._files.record_workers
    coordinator.work(0, devices=('NVIDIA A100',))
    coordinator.work(1, devices=('NVIDIA A100',))
    third = coordinator.member(2)
    with self.assertLogs('absl', 'INFO') as logs:
      coordinator.begin()
    recorded.assert_called_once_with({0: ['NVIDIA A100'], 1: ['NVIDIA A100']})
    lines = [line for line in logs.output if 'Workers compute on' in line]
    self.assertLen(lines, 1)
    self.assertEndsWith(lines[0], 'on NVIDIA A100 (workers 0, 1).')

    recorded.reset_mock()
    third.close()
    with self.assertLogs('absl', 'INFO') as logs:
      coordinator.until(lambda: coordinator.reception.members[2].stream is None)
      coordinator.work(2, devices=('cpu', 'cpu'))
      coordinator.until(lambda: recorded.called)
    recorded.assert_called_once_with({2: ['cpu', 'cpu']})
    text = ' '.join(logs.output)
    self.assertIn('2 x cpu (worker 2) and NVIDIA A100 (workers 0, 1)', text)
    self.assertIn('different kinds or numbers', text)


if __name__ == '__main__':
  absltest.main()
