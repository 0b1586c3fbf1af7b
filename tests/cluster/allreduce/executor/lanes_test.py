"""Tests for cluster.allreduce.executor.lanes, over real connections."""

import threading
from unittest import mock

import ml_dtypes
import numpy as np
from absl.testing import absltest, parameterized

from cluster.allreduce.executor import exchange, peers
from cluster.allreduce.executor.errors import (
  Abandoned,
  ExecutorFailed,
  PeerLost,
)
from cluster.network.port import Port
from cluster.network.socket_loop import SocketLoop
from tests.support import certificates, executors, groups
from topology.forests import dealing

_BUCKETS = [(0, 1000), (1000, 1001), (1001, 3000)]
_SIZE = 3000


class _Case(executors.TestCase):
  def check_sums(self, nodes, iteration, rng=None, buckets=None):
    """Checks that integers are summed exactly."""
    rng = rng or np.random.default_rng(iteration)
    buckets = buckets or _BUCKETS
    draw = rng.integers(-99, 99, (len(nodes), _SIZE))
    buffers = draw.astype(np.float32)
    orders = [rng.permutation(len(buckets)) for _ in nodes]
    results = self.allreduce(nodes, iteration, buffers, buckets, orders)
    self.assertEqual(results, [None] * len(nodes))
    np.testing.assert_array_equal(
      buffers, np.tile(draw.sum(0), (len(nodes), 1))
    )

  def reform(self, nodes, membership, **changes):
    """Forms the next membership of executors."""
    epoch = membership.membership_epoch + 1
    membership = membership._replace(membership_epoch=epoch, **changes)
    self.form(nodes, membership)
    return membership


class LanesTest(_Case):
  @parameterized.parameters(2, 3)
  def test_every_forest_gives_exact_sums_of_integers(self, lanes):
    for name, *forest in groups.forests(lanes):
      with self.subTest(name):
        nodes, _ = self.connect_executors(
          len(forest[1]), forest, lanes, chunk_bytes=256
        )
        for iteration in range(2):
          self.check_sums(nodes, iteration)
        for node in nodes:
          node.close()

  def test_chunks_are_spread_over_all_lanes(self):
    nodes, _ = self.connect_executors(2, lanes=3, chunk_bytes=256)
    self.check_sums(nodes, 0)
    sent = [lane.usage()[1].sent_bytes for lane in executors.lanes(nodes[0])]
    self.assertLen(sent, 3)
    self.assertLess(max(sent), 1.2 * min(sent))
    self.assertEqual(nodes[0].traffic()[1].sent_bytes, sum(sent))

  def test_a_message_of_one_chunk_needs_one_lane(self):
    nodes, _ = self.connect_executors(3, lanes=3)
    buffers = np.ones((3, 2), np.float32)
    for iteration in range(3):
      buffers[:] = 1
      done = self.allreduce(nodes, iteration, buffers, [(0, 1), (1, 1), (1, 2)])
      self.assertEqual(done, [None] * 3)
      np.testing.assert_array_equal(buffers, np.full((3, 2), 3.0))

  @parameterized.parameters(np.float16, ml_dtypes.bfloat16)
  def test_half_precision(self, dtype):
    nodes, _ = self.connect_executors(3, lanes=2, chunk_bytes=256)
    draw = np.random.default_rng(0).integers(-9, 9, (3, _SIZE))
    buffers = draw.astype(np.float32)

    def run(node, buffer):
      dtypes = [np.dtype(dtype), np.dtype(np.float32), np.dtype(dtype)]
      reduction = node.begin(0, buffer, _BUCKETS, dtypes)
      for index in (2, 0, 1):
        reduction.ready(index)
      reduction.wait(executors.WAIT_S)
      self.assertTrue(reduction.finite)

    pairs = zip(nodes, buffers, strict=True)
    calls = [lambda pair=pair: run(*pair) for pair in pairs]
    self.assertEqual(executors.parallel(calls), [None] * 3)
    np.testing.assert_array_equal(buffers, np.tile(draw.sum(0), (3, 1)))

  def test_tls(self):
    security = certificates.make_security('secret')
    nodes, _ = self.connect_executors(
      3, lanes=2, security=security, chunk_bytes=256
    )
    self.check_sums(nodes, 0)

  def test_memory_of_all_lanes_is_bounded(self):
    nodes, _ = self.connect_executors(3, lanes=3, chunk_bytes=1024)
    buffers = np.ones((3, 100_000), np.float32)
    early = [
      node.begin(0, buffer, [(0, 100_000)])
      for node, buffer in zip(nodes[:2], buffers, strict=False)
    ]
    for each in early:
      each.ready(0)
    received = [lane.received for lane in executors.lanes(nodes[2])]
    executors.wait_until(lambda: all(each.lent_bytes for each in received))
    late = nodes[2].begin(0, buffers[2], [(0, 100_000)])
    late.ready(0)
    for each in (*early, late):
      each.wait(executors.WAIT_S)
    bound = nodes[2].bound_bytes
    self.assertLessEqual(sum(each.limit_bytes for each in received), bound)
    self.assertLessEqual(bound, dealing.AHEAD_BYTES)
    np.testing.assert_array_equal(buffers, np.full_like(buffers, 3.0))

  def test_the_number_of_lanes_may_change_with_the_membership(self):
    nodes, membership = self.connect_executors(3, lanes=3, chunk_bytes=256)
    threads, sent = None, 0
    for lanes in (1, 2, 3, 1, 3):
      membership = self.reform(nodes, membership, lanes=lanes)
      self.check_sums(nodes, 0)
      self.assertLen(executors.lanes(nodes[0]), lanes)
      threads = threads or threading.active_count()
      self.assertLessEqual(threading.active_count(), threads)
      self.assertGreater(nodes[0].traffic()[1].sent_bytes, sent)
      sent = nodes[0].traffic()[1].sent_bytes


class FailuresTest(_Case):
  @parameterized.parameters(0, 1, 2)
  def test_a_lost_connection_of_one_lane_loses_the_worker(self, number):
    nodes, membership = self.connect_executors(3, lanes=3, chunk_bytes=256)
    buffers = np.ones((3, _SIZE), np.float32)
    reductions = [
      node.begin(0, buffer, _BUCKETS)
      for node, buffer in zip(nodes[:2], buffers, strict=False)
    ]
    for each in reductions:
      for index in range(len(_BUCKETS)):
        each.ready(index)
    for connection in executors.lanes(nodes[2])[number].connections():
      connection.shut_down()
    for each in reductions:
      with self.assertRaises(PeerLost) as raised:
        each.wait(executors.WAIT_S)
      self.assertEqual(raised.exception.worker, 2)
      self.assertTrue(each.ended)
    before = buffers.copy()  # No lane writes after the end.
    self.reform(nodes, membership)
    np.testing.assert_array_equal(buffers, before)
    self.check_sums(nodes, 0)

  def test_a_worker_that_leaves_in_all_lanes_is_not_lost(self):
    nodes, membership = self.connect_executors(3, lanes=2, chunk_bytes=256)
    buffers = np.ones((3, _SIZE), np.float32)
    reductions = [
      node.begin(0, buffer, [(0, _SIZE)])
      for node, buffer in zip(nodes, buffers, strict=True)
    ]
    nodes[1].abandon()
    for each in reductions:
      with self.assertRaises(Abandoned):
        each.wait(executors.WAIT_S)
    self.reform(nodes, membership)
    self.check_sums(nodes, 0)

  def test_an_unexpected_error_in_a_lane_ends_the_wait(self):
    nodes, membership = self.connect_executors(2, lanes=2, chunk_bytes=256)
    add = np.add

    def fail_in_second_lane(*args, **kwargs):
      if threading.current_thread().name == 'executor-0-1':
        raise RuntimeError('no such thing')
      return add(*args, **kwargs)

    buffers = np.ones((2, _SIZE), np.float32)
    with (
      self.assertLogs(level='ERROR'),
      mock.patch.object(exchange.np, 'add', fail_in_second_lane),
    ):
      reductions = [
        node.begin(0, buffer, [(0, _SIZE)])
        for node, buffer in zip(nodes, buffers, strict=True)
      ]
      for each in reductions:
        each.ready(0)
      with self.assertRaisesRegex(ExecutorFailed, 'no such thing'):
        reductions[0].wait(executors.WAIT_S)
    nodes[1].abandon()
    self.reform(nodes, membership)
    self.check_sums(nodes, 0)

  def test_an_executor_without_threads_for_its_lanes_reports_it(self):
    nodes, membership = self.connect_executors(2, chunk_bytes=256)
    later = membership._replace(membership_epoch=2, lanes=2)
    error = OSError(11, 'no threads left')
    with (
      mock.patch.object(SocketLoop, '__init__', side_effect=error),
      self.assertRaisesRegex(ExecutorFailed, 'no threads left'),
    ):
      nodes[0].form(later)
    self.form(nodes, later._replace(membership_epoch=3))
    self.check_sums(nodes, 0)

  def test_a_connection_of_a_lane_that_is_not_there_is_refused(self):
    nodes, membership = self.connect_executors(2, lanes=2)
    failed = []
    loop = SocketLoop(
      'other',
      after_events=lambda: None,
      tick=lambda: None,
      on_error=failed.append,
      on_exit=lambda _: None,
    )
    self.addCleanup(loop.close)
    others = peers.Peers(
      loop,
      Port(executors.HOST, 0, executors.OPEN),
      index=1,
      workers=2,
      timeout_s=executors.WAIT_S,
      on_client=lambda connection, hello: True,
    )
    others.open(failed.append)
    self.addCleanup(loop.run, others.close)
    hello = peers.Hello(membership.membership_epoch, 1, 0, 2)
    args = nodes[0].address, executors.HOST, hello, failed.append, failed.append
    loop.post(lambda: others.connect(*args))
    executors.wait_until(lambda: failed)
    self.assertRegex(str(failed[0]), 'it does not expect us')
    self.check_sums(nodes, 0)


if __name__ == '__main__':
  absltest.main()
