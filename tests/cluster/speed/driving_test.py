"""Tests for cluster.driving: what others leave of this host."""

import contextlib
import time

import psutil
from absl.testing import absltest

from cluster.speed import driving
from tests.support import commands

_COMPUTES = 'print("computes", flush=True)\nwhile True: pass'


class DrivingTest(absltest.TestCase):
  def test_shares_are_shares(self):
    with driving.Driving() as host:
      for _ in range(20):
        cpu, memory = host.read()
        self.assertBetween(cpu, 0.0, 1.0)
        self.assertBetween(memory, 0.0, 1.0)
        time.sleep(0.01)

  def test_others_take_from_the_processors_and_this_process_does_not(self):
    with driving.Driving() as host:
      self.assertTrue(any(_is_taken_from(host) for _ in range(4)))

  def test_memory_is_what_the_kernel_reports_as_available(self):
    with driving.Driving() as host:
      # Others take and give as well, so that one reading may miss both.
      self.assertTrue(any(_is_between(host) for _ in range(50)))


def _is_taken_from(host):
  """Returns whether others leave less once more of them compute."""
  # Those whom the test does not know come and go as well.
  alone = _least(host)
  with _computing(psutil.cpu_count()):
    return _least(host) < 0.7 * max(alone, 0.3)


def _is_between(host):
  """Returns whether the memory is what the kernel says around the reading."""
  before = _available()
  _, memory = host.read()
  least, most = sorted((before, _available()))
  return 0 < least <= memory <= most < 1


def _available():
  """Returns the share of the memory that is available, from the kernel."""
  with open('/proc/meminfo') as lines:
    kib = {line.split(':')[0]: int(line.split()[1]) for line in lines}
  return kib['MemAvailable'] / kib['MemTotal']


def _least(host):
  """Returns the least share of the processors while this process computes."""
  until, least = time.monotonic() + 0.5, 1.0
  time.sleep(0.1)
  while time.monotonic() < until:
    least = min(least, host.read()[0])
  return least


@contextlib.contextmanager
def _computing(count):
  """Has other processes compute."""
  with contextlib.ExitStack() as stack:
    words = commands.python(_COMPUTES)
    others = [stack.enter_context(commands.start(words)) for _ in range(count)]
    for other in others:
      other.until('computes')
    yield


if __name__ == '__main__':
  absltest.main()
