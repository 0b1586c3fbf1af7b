"""Executors in one process, connected over the loopback interface."""

import threading
import time

from absl.testing import parameterized

from cluster.allreduce.executor import executor
from cluster.allreduce.executor.errors import Damaged
from cluster.network.handshake import Security
from cluster.network.port import Port
from tests.support import groups
from topology.baselines import schemes
from topology.clusters import shapes
from topology.packing.pack import pack

HOST = '127.0.0.1'
OPEN = Security()
WAIT_S = 20.0


def star(count):
  """Returns a forest that connects all pairs of workers, and the workers."""
  star = shapes.star([1] * count)
  return schemes.equal_shards(star, pack(star)), star.workers


def lanes(node):
  """Returns an executor's connections in each lane of its membership."""
  return [lane.connections for lane in node._lanes if lane.connections]


def parallel(functions):
  """Calls functions in threads; returns their results or exceptions."""
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


def wait_until(condition):
  """Waits until a condition holds."""
  end = time.monotonic() + WAIT_S
  while not condition():
    if time.monotonic() > end:
      raise AssertionError(f'Not true within {WAIT_S:g} s.')
    time.sleep(0.01)


class TestCase(parameterized.TestCase):
  def open_executor(
    self, index, security=OPEN, timeout_s=WAIT_S, host=HOST, **kwargs
  ):
    port = Port(host, 0, security)
    node = executor.Executor(index, port=port, timeout_s=timeout_s, **kwargs)
    self.addCleanup(node.close)
    return node

  def connect_executors(self, count, forest=None, lanes=1, **kwargs):
    """Returns connected executors, and their membership."""
    nodes = [self.open_executor(index, **kwargs) for index in range(count)]
    forest = forest or star(count)
    addresses = {i: each.address for i, each in enumerate(nodes)}
    membership = groups.make_membership(*forest, addresses)
    membership = membership._replace(lanes=lanes)
    self.form(nodes, membership)
    return nodes, membership

  def form(self, nodes, membership):
    """Makes all executors form a membership at the same time."""
    calls = [lambda each=each: each.form(membership) for each in nodes]
    self.assertEqual(parallel(calls), [None] * len(nodes))

  def wait(self, nodes, reduction):
    """Waits for sums; abandons them on all executors if one is damaged."""
    try:
      reduction.wait(WAIT_S)
    except Damaged:
      for each in nodes:
        each.abandon()
      raise

  def allreduce(self, nodes, iteration, buffers, buckets, orders=None):
    """Runs an iteration; returns the results or exceptions of all waits.

    Args:
      nodes: Executors of all workers.
      iteration: Number of the iteration.
      buffers: Their gradient buffers, which become the sums.
      buckets: Buckets of the buffers.
      orders: Order in which each worker's buckets become ready; None for
        ascending.
    """

    def run(index):
      reduction = nodes[index].begin(iteration, buffers[index], buckets)
      for number in orders[index] if orders else range(len(buckets)):
        reduction.ready(number)
      self.wait(nodes, reduction)

    runs = [lambda index=index: run(index) for index in range(len(nodes))]
    return parallel(runs)
