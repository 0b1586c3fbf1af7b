"""Tests of the executor, executor: over real connections."""

import itertools
import operator
import os
import socket
import threading
import unittest
import unittest.mock

import numpy as np
from absl.testing import absltest, parameterized

from cluster.allreduce.executor import executor, frames
from cluster.allreduce.executor.errors import Abandoned, Damaged, PeerLost
from tests.support import executors, groups
from topology.baselines import schemes
from topology.clusters import shapes
from topology.packing.pack import pack


class ExecutorTest(executors.TestCase):
  @parameterized.parameters((2, 1), (3, 3), (4, 100_000), (5, 30_001), (4, 0))
  def test_pools_become_sums(self, count, size):
    made, _ = self.formed(count)
    rng = np.random.default_rng(size)
    ends = [0, size // 3, size // 3, size]
    ranges = list(itertools.pairwise(ends))
    for iteration in range(3):
      draw = rng.integers(-99, 99, (count, size))
      pools = draw.astype(np.float32)
      orders = [rng.permutation(len(ranges)) for _ in made]
      results = self.sums(made, iteration, pools, ranges, orders)
      self.assertEqual(results, [None] * count)
      want = np.tile(draw.sum(0), (count, 1))
      np.testing.assert_array_equal(pools, want)

  def test_forests_of_all_kinds_and_the_same_bits(self):
    rng = np.random.default_rng(0)
    for name, forest, workers in groups.forests(1):
      with self.subTest(name):
        made, _ = self.formed(len(workers), (forest, workers), chunk_bytes=256)
        draw = rng.normal(size=(len(made), 3000)).astype(np.float32)
        seen = []
        for iteration in range(2):
          pools = draw.copy()
          ranges = [(0, 1000), (1000, 3000)]
          results = self.sums(made, iteration, pools, ranges)
          self.assertEqual(results, [None] * len(made))
          seen += [pool.tobytes() for pool in pools]
        self.assertLen(set(seen), 1)
        np.testing.assert_allclose(pools[0], draw.sum(0), atol=1e-5)

  def test_one_member_has_its_sum(self):
    made = self.executor(3)
    alone = executor.Group(1, {3: made.address}, pack(shapes.star([1])), {})
    made.form(alone)
    pool = np.arange(5, dtype=np.float32)
    reduction = made.begin(0, pool, [(0, 2), (2, 5)])
    reduction.ready(1)
    with self.assertRaisesRegex(TimeoutError, r'workers \(3,\)'):
      reduction.wait(0.02)
    reduction.ready(0)
    reduction.wait(executors.WAIT_S)
    np.testing.assert_array_equal(pool, np.arange(5))
    self.assertEqual(reduction.waits_for, ())

  def test_who_is_early_waits_and_does_not_fill_the_memory(self):
    made, _ = self.formed(3, chunk_bytes=1024)
    pools = np.ones((3, 100_000), np.float32)
    ranges = [(0, 100_000)]
    for iteration in range(2):
      early = [
        each.begin(iteration, p, ranges)
        for each, p in zip(made[:2], pools, strict=False)
      ]
      for each in early:
        each.ready(0)
      buffers = made[2]._generation.buffers
      executors.until(lambda buffers=buffers: buffers.lent > 0)
      self.assertFalse(early[0]._done.is_set())
      executors.until(lambda e=early: 2 in {*e[0].waits_for, *e[1].waits_for})
      late = made[2].begin(iteration, pools[2], ranges)
      late.ready(0)
      for each in (*early, late):
        each.wait(executors.WAIT_S)
      peak = buffers.peak * 1024
      self.assertLessEqual(peak, made[2].bound_bytes)
      self.assertEqual(buffers.lent, 0)
    np.testing.assert_array_equal(pools, np.full_like(pools, 9.0))

  def test_steps_grow_and_traffic_counts_bytes(self):
    made, _ = self.formed(2)
    pools = np.ones((2, 50_000), np.float32)
    reductions = [
      each.begin(0, pool, [(0, 50_000)])
      for each, pool in zip(made, pools, strict=True)
    ]
    self.assertEqual([each.steps for each in reductions], [0, 0])
    for each in reductions:
      each.ready(0)
    for each in reductions:
      each.wait(executors.WAIT_S)
    # Each chunk goes up once and down once.
    self.assertEqual([each.steps for each in reductions], [10, 10])
    usage = [each.traffic() for each in made]
    self.assertEqual(usage[0][1].sent_bytes, usage[1][0].received_bytes)
    self.assertEqual(
      usage[0][1].sent_bytes + usage[1][0].sent_bytes, 2 * (2e5 + 5 * 48)
    )
    self.assertGreaterEqual(usage[0][1].busy_s, 0.0)

  def test_a_dead_worker_is_named_and_the_others_go_on_without(self):
    made, _ = self.formed(3)
    pools = np.ones((3, 20_000), np.float32)
    ranges = [(0, 20_000)]
    reductions = [made[i].begin(0, pools[i], ranges) for i in (0, 1)]
    for each in reductions:
      each.ready(0)
    for link in made[2]._generation._links():  # As if it was killed.
      link.sock.shutdown(socket.SHUT_RDWR)
    for each in reductions:
      with self.assertRaisesRegex(PeerLost, 'worker 2: ') as raised:
        each.wait(executors.WAIT_S)
      self.assertEqual(raised.exception.worker, 2)
    with self.assertRaises(PeerLost):  # Until there is another generation.
      made[0].begin(1, pools[0], ranges).wait(executors.WAIT_S)
    addresses = {i: made[i].address for i in (0, 1)}
    self.form(
      made[:2], groups.group(*executors.star(2), addresses, generation=2)
    )
    pools[:] = 1
    self.assertEqual(self.sums(made[:2], 0, pools, ranges), [None, None])
    np.testing.assert_array_equal(pools[:2], np.full((2, 20_000), 2.0))

  def test_who_abandons_is_no_dead_worker(self):
    made, group = self.formed(3)
    pools = np.ones((3, 10**5), np.float32)
    reductions = [
      each.begin(0, pool, [(0, 10**5)])
      for each, pool in zip(made, pools, strict=True)
    ]
    made[1].abandon()
    for each in reductions:
      with self.assertRaises(Abandoned):
        each.wait(executors.WAIT_S)
    with self.assertRaises(Abandoned):
      made[1].begin(1, pools[1], [(0, 10**5)])
    with self.assertRaises(Abandoned):
      made[0].begin(1, pools[0], [(0, 10**5)]).wait(executors.WAIT_S)
    with self.assertRaisesRegex(ValueError, 'generation: expected one after 1'):
      made[0].form(group)

  def test_a_wrong_bit_is_found_and_its_sender_named(self):
    made, _ = self.formed(2)
    real = frames.packed
    pools = np.ones((2, 100), np.float32)

    def spoilt(*args):
      before, (body, *after) = args[:5], args[5:]
      return real(*before, bytes(len(body)), *after)

    with unittest.mock.patch.object(frames, 'packed', spoilt):
      errors = self.sums(made, 0, pools, [(0, 100)])
      damaged = [each for each in errors if isinstance(each, Damaged)]
      self.assertNotEmpty(damaged)
      for index, error in enumerate(errors):
        if isinstance(error, Damaged):
          self.assertEqual(error.worker, 1 - index)
          self.assertRegex(str(error), 'worker .: chunk . has another checksum')

  def test_other_layouts_are_found(self):
    made, _ = self.formed(2)
    pools = np.ones((2, 100), np.float32)

    def run(index, ranges):
      reduction = made[index].begin(0, pools[index], ranges)
      for number in range(len(ranges)):
        reduction.ready(number)
      self.wait(made, reduction)

    errors = executors.parallel(
      [lambda: run(0, [(0, 100)]), lambda: run(1, [(0, 50), (50, 100)])]
    )
    found = [each for each in errors if isinstance(each, Damaged)]
    self.assertNotEmpty(found)
    self.assertRegex(str(found[0]), 'are not ours')

  def test_many_generations_leak_nothing(self):
    star = shapes.star([1] * 3)
    ring = schemes.naive_ring(star, pack(star))
    made, group = self.formed(3, (ring, star.workers))
    pools = np.ones((3, 10), np.float32)
    first = None

    def open_now():
      return len(os.listdir('/proc/self/fd')), threading.active_count()

    for generation in range(2, 22):
      self.form(made, group._replace(generation=generation))
      self.assertEqual(self.sums(made, 0, pools, [(0, 10)]), [None] * 3)
      if generation % 3 == 0:
        made[0].abandon()
      if generation == 5:
        first = open_now()
    # What other tests have left may end meanwhile.
    executors.until(lambda: all(map(operator.le, open_now(), first)))
    before = threading.active_count()
    for each in made:
      each.close()
      each.close()
    self.assertLessEqual(threading.active_count(), before - 3)
    with self.assertRaises(Abandoned):
      made[0].form(group._replace(generation=99))
    made[0].abandon()

  def test_closing_wakes_who_waits(self):
    made, _ = self.formed(2)
    reduction = made[0].begin(0, np.ones(9, np.float32), [(0, 9)])
    thread = threading.Timer(0.05, made[0].close)
    thread.start()
    with self.assertRaises(Abandoned):
      reduction.wait(executors.WAIT_S)
    thread.join()
    with self.assertRaises(Abandoned):
      made[0].begin(1, np.ones(9, np.float32), [(0, 9)]).wait(executors.WAIT_S)

  def test_what_is_done_needs_nobody(self):
    made, _ = self.formed(2)
    pools = np.ones((2, 100), np.float32)
    self.assertEqual(self.sums(made, 0, pools, [(0, 100)]), [None, None])
    made[1].close()
    with self.assertRaisesRegex(Abandoned, 'worker 1 has left generation 1'):
      made[0].begin(1, pools[0], [(0, 100)]).wait(executors.WAIT_S)

  @parameterized.parameters(
    ({'pool': np.ones(3)}, 'pool: expected float32'),
    ({'pool': np.ones(6, np.float32)[::2]}, 'pool: expected float32'),
    ({'ranges': [(0, 2)]}, 'the last to end at 3'),
    ({'iteration': -1}, 'iteration: expected one after -1'),
  )
  def test_arguments_are_checked(self, given, message):
    made = self.executor(0)
    made.form(executor.Group(0, {0: made.address}, pack(shapes.star([1])), {}))
    pool = np.ones(3, np.float32)
    whole = {'iteration': 0, 'pool': pool, 'ranges': [(0, 3)], **given}
    with self.assertRaisesRegex(ValueError, message):
      made.begin(**whole)
    reduction = made.begin(0, pool, [(0, 3)])
    with self.assertRaisesRegex(ValueError, 'iteration before to have ended'):
      made.begin(1, pool, [(0, 3)])
    with self.assertRaisesRegex(ValueError, 'got 1'):
      reduction.ready(1)
    reduction.ready(0)
    with self.assertRaisesRegex(ValueError, 'got 0'):
      reduction.ready(0)
    reduction.wait(executors.WAIT_S)


if __name__ == '__main__':
  absltest.main()
