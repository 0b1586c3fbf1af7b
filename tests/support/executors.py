"""Executors in this process, for tests."""

import threading
import time

from absl.testing import parameterized

from cluster.allreduce.executor import executor
from cluster.allreduce.executor.errors import Damaged
from cluster.network.handshake import Security
from tests.support import groups
from topology.baselines import schemes
from topology.clusters import shapes
from topology.packing.pack import pack

HOST = '127.0.0.1'
OPEN = Security()
WAIT_S = 20.0


def star(count):
  """Returns a forest in which all pairs have connections, and the workers."""
  star = shapes.star([1] * count)
  return schemes.equal_shards(star, pack(star)), star.workers


def parallel(functions):
  """Calls all at once; returns what they return or raise."""
  results = [None] * len(functions)

  def call(place, function):
    try:
      results[place] = function()
    except Exception as error:
      results[place] = error

  threads = [
    threading.Thread(target=call, args=each) for each in enumerate(functions)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  return results


def until(happened):
  """Waits for something."""
  end = time.monotonic() + WAIT_S
  while not happened():
    if time.monotonic() > end:
      raise AssertionError('It has not happened.')
    time.sleep(0.01)


class TestCase(parameterized.TestCase):
  def executor(self, index, security=OPEN, timeout_s=WAIT_S, **kwargs):
    made = executor.Executor(
      index, host=HOST, security=security, timeout_s=timeout_s, **kwargs
    )
    self.addCleanup(made.close)
    return made

  def formed(self, count, forest=None, **kwargs):
    """Returns executors that are connected, and their group."""
    made = [self.executor(index, **kwargs) for index in range(count)]
    forest = forest or star(count)
    addresses = {i: each.address for i, each in enumerate(made)}
    group = groups.group(*forest, addresses)
    self.form(made, group)
    return made, group

  def form(self, made, group):
    forms = [lambda each=each: each.form(group) for each in made]
    self.assertEqual(parallel(forms), [None] * len(made))

  def wait(self, made, reduction):
    """Waits for sums; nobody waits for them any more once some are damaged."""
    try:
      reduction.wait(WAIT_S)
    except Damaged:
      for each in made:
        each.abandon()
      raise

  def sums(self, made, iteration, pools, ranges, orders=None):
    """Runs an iteration; returns what each wait has returned or raised."""

    def run(index):
      reduction = made[index].begin(iteration, pools[index], ranges)
      for number in orders[index] if orders else range(len(ranges)):
        reduction.ready(number)
      self.wait(made, reduction)

    runs = [lambda index=index: run(index) for index in range(len(made))]
    return parallel(runs)
