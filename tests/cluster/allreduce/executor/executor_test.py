"""Tests for cluster.allreduce.executor.executor, over real connections."""

import itertools
import operator
import os
import socket
import threading
import time
import unittest
import unittest.mock

import numpy as np
from absl.testing import absltest, parameterized

from cluster.allreduce.executor import executor
from cluster.allreduce.executor.errors import Abandoned, Damaged, PeerLost
from cluster.network import frames
from tests.support import executors, groups
from topology.baselines import schemes
from topology.clusters import shapes
from topology.packing.pack import pack


class ExecutorTest(executors.TestCase):
  @parameterized.parameters((2, 1), (3, 3), (4, 100_000), (5, 30_001), (4, 0))
  def test_buffers_become_sums(self, count, size):
    nodes, _ = self.connect_executors(count)
    rng = np.random.default_rng(size)
    ends = [0, size // 3, size // 3, size]
    buckets = list(itertools.pairwise(ends))
    for iteration in range(3):
      draw = rng.integers(-99, 99, (count, size))
      buffers = draw.astype(np.float32)
      orders = [rng.permutation(len(buckets)) for _ in nodes]
      results = self.allreduce(nodes, iteration, buffers, buckets, orders)
      self.assertEqual(results, [None] * count)
      expected = np.tile(draw.sum(0), (count, 1))
      np.testing.assert_array_equal(buffers, expected)

  def test_all_kinds_of_forests_give_all_workers_the_same_bits(self):
    rng = np.random.default_rng(0)
    for name, forest, workers in groups.forests(1):
      with self.subTest(name):
        nodes, _ = self.connect_executors(
          len(workers), (forest, workers), chunk_bytes=256
        )
        draw = rng.normal(size=(len(nodes), 3000)).astype(np.float32)
        results_bytes = []
        for iteration in range(2):
          buffers = draw.copy()
          buckets = [(0, 1000), (1000, 3000)]
          results = self.allreduce(nodes, iteration, buffers, buckets)
          self.assertEqual(results, [None] * len(nodes))
          results_bytes += [buffer.tobytes() for buffer in buffers]
        self.assertLen(set(results_bytes), 1)
        np.testing.assert_allclose(buffers[0], draw.sum(0), atol=1e-5)

  def test_a_single_member_gets_its_own_sum(self):
    node = self.open_executor(3)
    alone = executor.Membership(
      1, {3: node.address}, pack(shapes.star([1])), {}
    )
    node.form(alone)
    buffer = np.arange(5, dtype=np.float32)
    reduction = node.begin(0, buffer, [(0, 2), (2, 5)])
    reduction.ready(1)
    with self.assertRaisesRegex(TimeoutError, r'workers \(3,\)'):
      reduction.wait(0.02)
    reduction.ready(0)
    reduction.wait(executors.WAIT_S)
    np.testing.assert_array_equal(buffer, np.arange(5))
    self.assertEqual(reduction.waits_for, ())

  def test_workers_that_are_ahead_wait_within_bounded_memory(self):
    nodes, _ = self.connect_executors(3, chunk_bytes=1024)
    buffers = np.ones((3, 100_000), np.float32)
    buckets = [(0, 100_000)]
    for iteration in range(2):
      early = [
        each.begin(iteration, p, buckets)
        for each, p in zip(nodes[:2], buffers, strict=False)
      ]
      for each in early:
        each.ready(0)
      (lane,) = executors.lanes(nodes[2])
      received = lane.received
      executors.wait_until(lambda received=received: received.lent_bytes > 0)
      self.assertFalse(early[0].ended)
      executors.wait_until(
        lambda e=early: 2 in {*e[0].waits_for, *e[1].waits_for}
      )
      late = nodes[2].begin(iteration, buffers[2], buckets)
      late.ready(0)
      for each in (*early, late):
        each.wait(executors.WAIT_S)
      self.assertLessEqual(received.peak_bytes, nodes[2].bound_bytes)
      self.assertEqual(received.lent_bytes, 0)
    np.testing.assert_array_equal(buffers, np.full_like(buffers, 9.0))

  def test_steps_grow_and_traffic_counts_bytes(self):
    nodes, _ = self.connect_executors(2, chunk_bytes=49152)
    buffers = np.ones((2, 50_000), np.float32)
    reductions = [
      each.begin(0, buffer, [(0, 50_000)])
      for each, buffer in zip(nodes, buffers, strict=True)
    ]
    self.assertEqual([each.steps for each in reductions], [0, 0])
    for each in reductions:
      each.ready(0)
    for each in reductions:
      each.wait(executors.WAIT_S)
    # Each chunk goes up once and down once.
    self.assertEqual([each.steps for each in reductions], [10, 10])
    usage = [each.traffic() for each in nodes]
    self.assertEqual(usage[0][1].sent_bytes, usage[1][0].received_bytes)
    self.assertEqual(
      usage[0][1].sent_bytes + usage[1][0].sent_bytes, 2 * (2e5 + 5 * 48)
    )
    self.assertGreaterEqual(usage[0][1].busy_s, 0.0)

  def test_a_dead_worker_is_named_and_the_others_continue(self):
    nodes, _ = self.connect_executors(3)
    buffers = np.ones((3, 20_000), np.float32)
    buckets = [(0, 20_000)]
    reductions = [nodes[i].begin(0, buffers[i], buckets) for i in (0, 1)]
    for each in reductions:
      each.ready(0)
    (lane,) = executors.lanes(nodes[2])
    for connection in lane.connections():  # A kill.
      connection.sock.shutdown(socket.SHUT_RDWR)
    for each in reductions:
      with self.assertRaisesRegex(PeerLost, 'worker 2: ') as raised:
        each.wait(executors.WAIT_S)
      self.assertEqual(raised.exception.worker, 2)
    with self.assertRaises(PeerLost):  # Until the next membership.
      nodes[0].begin(1, buffers[0], buckets).wait(executors.WAIT_S)
    addresses = {i: nodes[i].address for i in (0, 1)}
    self.form(
      nodes[:2],
      groups.make_membership(*executors.star(2), addresses, membership_epoch=2),
    )
    buffers[:] = 1
    self.assertEqual(
      self.allreduce(nodes[:2], 0, buffers, buckets), [None, None]
    )
    np.testing.assert_array_equal(buffers[:2], np.full((2, 20_000), 2.0))

  def test_a_worker_that_abandons_is_not_reported_as_lost(self):
    nodes, membership = self.connect_executors(3)
    buffers = np.ones((3, 10**5), np.float32)
    reductions = [
      each.begin(0, buffer, [(0, 10**5)])
      for each, buffer in zip(nodes, buffers, strict=True)
    ]
    nodes[1].abandon()
    for each in reductions:
      with self.assertRaises(Abandoned):
        each.wait(executors.WAIT_S)
    with self.assertRaises(Abandoned):
      nodes[1].begin(1, buffers[1], [(0, 10**5)])
    with self.assertRaises(Abandoned):
      nodes[0].begin(1, buffers[0], [(0, 10**5)]).wait(executors.WAIT_S)
    with self.assertRaisesRegex(
      ValueError, 'membership_epoch: expected one after 1'
    ):
      nodes[0].form(membership)

  def test_a_departure_that_cannot_arrive_delays_no_other_worker(self):
    nodes, _ = self.connect_executors(3, timeout_s=60.0, chunk_bytes=2**20)
    release = threading.Event()
    self.addCleanup(release.set)
    # Worker 2 reads nothing, so that connections to it are full.
    nodes[2]._loop.post(lambda: release.wait(executors.WAIT_S))
    buffers = np.ones((2, 10**7), np.float32)
    reductions = [
      node.begin(0, buffer, [(0, 10**7)])
      for node, buffer in zip(nodes[:2], buffers, strict=True)
    ]
    for each in reductions:
      each.ready(0)
    steps = -1
    while steps < (steps := sum(each.steps for each in reductions)):
      time.sleep(0.2)
    start_s = time.monotonic()
    nodes[0].abandon()
    with self.assertRaisesRegex(Abandoned, 'worker 0 has left'):
      reductions[1].wait(executors.WAIT_S)
    self.assertLess(time.monotonic() - start_s, executors.WAIT_S / 4)

  def test_damaged_bytes_are_detected_and_their_sender_named(self):
    nodes, _ = self.connect_executors(2)
    real = frames.pack_header
    buffers = np.ones((2, 100), np.float32)

    def pack_damaged(kind, number, body, *args, **kwargs):
      return real(kind, number, bytes(len(body)), *args, **kwargs)

    with unittest.mock.patch.object(frames, 'pack_header', pack_damaged):
      errors = self.allreduce(nodes, 0, buffers, [(0, 100)])
      damaged = [each for each in errors if isinstance(each, Damaged)]
      self.assertNotEmpty(damaged)
      for index, error in enumerate(errors):
        if isinstance(error, Damaged):
          self.assertEqual(error.worker, 1 - index)
          self.assertRegex(str(error), 'worker .: chunk . has another checksum')

  def test_different_layouts_are_detected(self):
    nodes, _ = self.connect_executors(2)
    buffers = np.ones((2, 100), np.float32)

    def run(index, buckets):
      reduction = nodes[index].begin(0, buffers[index], buckets)
      for number in range(len(buckets)):
        reduction.ready(number)
      self.wait(nodes, reduction)

    errors = executors.parallel(
      [lambda: run(0, [(0, 100)]), lambda: run(1, [(0, 50), (50, 100)])]
    )
    damaged = [each for each in errors if isinstance(each, Damaged)]
    self.assertNotEmpty(damaged)
    self.assertRegex(str(damaged[0]), 'are not ours')

  def test_many_memberships_leak_no_descriptors_or_threads(self):
    star = shapes.star([1] * 3)
    ring = schemes.naive_ring(star, pack(star))
    nodes, membership = self.connect_executors(3, (ring, star.workers))
    buffers = np.ones((3, 10), np.float32)
    first = None

    def open_now():
      return len(os.listdir('/proc/self/fd')), threading.active_count()

    for membership_epoch in range(2, 22):
      self.form(nodes, membership._replace(membership_epoch=membership_epoch))
      self.assertEqual(self.allreduce(nodes, 0, buffers, [(0, 10)]), [None] * 3)
      if membership_epoch % 3 == 0:
        nodes[0].abandon()
      if membership_epoch == 5:
        first = open_now()
    # Threads of other tests may end meanwhile.
    executors.wait_until(lambda: all(map(operator.le, open_now(), first)))
    before = threading.active_count()
    for each in nodes:
      each.close()
      each.close()
    self.assertLessEqual(threading.active_count(), before - 3)
    with self.assertRaises(Abandoned):
      nodes[0].form(membership._replace(membership_epoch=99))
    nodes[0].abandon()

  def test_closing_ends_a_wait(self):
    nodes, _ = self.connect_executors(2)
    reduction = nodes[0].begin(0, np.ones(9, np.float32), [(0, 9)])
    thread = threading.Timer(0.05, nodes[0].close)
    thread.start()
    with self.assertRaises(Abandoned):
      reduction.wait(executors.WAIT_S)
    thread.join()
    with self.assertRaises(Abandoned):
      nodes[0].begin(1, np.ones(9, np.float32), [(0, 9)]).wait(executors.WAIT_S)

  def test_a_completed_allreduce_needs_no_peer(self):
    nodes, _ = self.connect_executors(2)
    buffers = np.ones((2, 100), np.float32)
    self.assertEqual(
      self.allreduce(nodes, 0, buffers, [(0, 100)]), [None, None]
    )
    nodes[1].close()
    with self.assertRaisesRegex(
      Abandoned, 'worker 1 has left membership epoch 1'
    ):
      nodes[0].begin(1, buffers[0], [(0, 100)]).wait(executors.WAIT_S)

  @parameterized.parameters(
    ({'buffer': np.ones(3)}, 'buffer: expected float32'),
    ({'buffer': np.ones(6, np.float32)[::2]}, 'buffer: expected float32'),
    ({'buckets': [(0, 2)]}, 'the last to end at 3'),
    ({'iteration': -1}, 'iteration: expected one after -1'),
  )
  def test_arguments_are_checked(self, given, message):
    node = self.open_executor(0)
    node.form(
      executor.Membership(0, {0: node.address}, pack(shapes.star([1])), {})
    )
    buffer = np.ones(3, np.float32)
    whole = {'iteration': 0, 'buffer': buffer, 'buckets': [(0, 3)], **given}
    with self.assertRaisesRegex(ValueError, message):
      node.begin(**whole)
    reduction = node.begin(0, buffer, [(0, 3)])
    with self.assertRaisesRegex(ValueError, 'iteration before to have ended'):
      node.begin(1, buffer, [(0, 3)])
    with self.assertRaisesRegex(ValueError, 'got 1'):
      reduction.ready(1)
    reduction.ready(0)
    with self.assertRaisesRegex(ValueError, 'got 0'):
      reduction.ready(0)
    reduction.wait(executors.WAIT_S)


if __name__ == '__main__':
  absltest.main()
