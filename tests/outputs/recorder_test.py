"""Tests of the recorder's state: wall time of runs with several processes."""

from absl.testing import absltest

from outputs.console import Console
from outputs.recorder import Recorder
from tests.support import unwritten


def _recorder():
  return Recorder(
    epoch=8,
    files=unwritten.files(),
    console=Console(target=8, clock='real'),
    accuracies=(),
  )


class WallTimeTest(absltest.TestCase):
  def test_a_successor_counts_the_time_since_the_state(self):
    first, successor = _recorder(), _recorder()
    state = first.state(is_standby=True)
    successor.restore(state, age_s=100.0)
    wall_s = successor.summary(1.0)['wall_s']
    self.assertBetween(wall_s, 100.0, 160.0)

  def test_a_run_from_a_checkpoint_does_not(self):
    first, resumed = _recorder(), _recorder()
    first.restore(first.state(is_standby=True), age_s=100.0)
    resumed.restore(first.state())
    self.assertBetween(resumed.summary(1.0)['wall_s'], 100.0, 160.0)


if __name__ == '__main__':
  absltest.main()
