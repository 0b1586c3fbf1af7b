"""Tests for tools.diagnose --live on real runs with a worker that is stuck."""

import re
import signal
import sys
import time

import pytest
from absl.testing import absltest, parameterized

from analysis import live
from tests.support import processes, requires

# Workers are evicted after this time; silence is shown after three fifths.
_TIMEOUT_S = 15.0
_SILENT = 'Worker 1 has sent no heartbeat for'


class LiveRunTest(processes.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    ('hang', 'Worker 1 .*computes in iteration 4 without progress for'),
    ('stop', 'Process .*worker:1.* is stopped'),
    ('cut', _SILENT),
  )
  @pytest.mark.soak
  def test_the_worker_for_which_others_wait_is_named(self, kind, expected):
    if kind == 'cut':
      requires.lab()
    lab = (sys.executable, '-m', 'tools.lab', '--hosts=3', '--')
    with processes.launch(
      before=lab if kind == 'cut' else (),
      workers=3,
      servers=0,
      sync__name='bsp',
      route__name='ring',
      epochs=100.0,
      cluster__faults=((1, 4, kind),),
      cluster__timeout_s=_TIMEOUT_S,
      cluster__speed__injected=True,
      cluster__speed__fixed_s=0.05,
      cluster__speed__per_example_s=0.0,
      model=False,
      **({'cluster__interface': 'eth0'} if kind == 'cut' else {}),
    ) as launch:
      text = self._until(launch, expected)
      launch.signal(signal.SIGTERM)
      launch.wait()
    self.assertRegex(text, r'Workers 0, 2 wait for worker 1, since [0-9.]+ s')
    if kind == 'stop':
      self.assertIn(_SILENT, text)
    else:
      self.assertRegex(text, r'Process [0-9]+ \(worker:1\).* is alive')

  def _until(self, launch, expected):
    """Waits until the output of --live matches a pattern; returns it."""
    deadline = time.monotonic() + 60
    text = ''
    while time.monotonic() < deadline:
      if (launch.folder / 'manifest.json').exists():
        text = '\n'.join(live.describe(launch.folder))
        waits = re.search('wait for worker 1', text)
        if waits and re.search(expected, text):
          return text
      self.assertIsNone(launch.code, launch.text)
      time.sleep(0.2)
    raise AssertionError(f'No {expected!r}; the last is:\n{text}')


if __name__ == '__main__':
  absltest.main()
