"""Tests for cluster.allreduce.executor.exchange, over pipes in memory."""

import collections
import dataclasses
import functools
import itertools

import hypothesis
import ml_dtypes
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from cluster.allreduce.executor import exchange, program
from cluster.network.errors import Corrupt
from cluster.network.frames import DOWN, UP
from tests.support import executors, groups
from topology.clusters import shapes
from topology.packing.pack import pack

_CHUNK_BYTES = 32
_SETTINGS = hypothesis.settings(
  deadline=None,
  max_examples=60,
  suppress_health_check=[*hypothesis.HealthCheck],
)


@functools.cache
def _memberships():
  return [
    groups.make_membership(forest, workers)
    for seed in range(4)
    for _, forest, workers in groups.forests(seed)
  ]


class _Workers:
  """All workers of a membership, with a pipe per ordered pair of them."""

  def __init__(self, membership, arrays, buckets, window, dtypes=None):
    self.exchanges, self.buffers = {}, {}
    self.pipes = collections.defaultdict(collections.deque)
    for index, array in enumerate(arrays):
      roles = program.find_roles(membership, index, chunk_bytes=_CHUNK_BYTES)
      roles = roles._replace(ahead_bytes=window * _CHUNK_BYTES)
      plan = program.make_program(roles, array.size, buckets, dtypes)
      most = window * len(roles.children) * _CHUNK_BYTES
      self.buffers[index] = exchange.ReceiveBuffers(most)
      self.exchanges[index] = exchange.Exchange(
        plan, array, self.buffers[index], np.empty(array.size, np.uint16)
      )
      self.exchanges[index].window = window
    self.unready = [(w, r) for w in self.exchanges for r in range(len(buckets))]
    self.pairs = [
      (a, b)
      for a, each in self.exchanges.items()
      for b in each.program.num_sent
    ]
    self.cut = set()

  def moves(self):
    """Returns possible steps: a bucket is ready, a frame is sent or read."""
    result = [('ready', *each) for each in self.unready]
    for pair in self.pairs:
      if pair not in self.cut:
        a, b = pair
        if self.exchanges[a]._queues[b]:
          result.append(('send', *pair))
        if self.pipes[pair]:
          result.append(('receive', *pair))
    return result

  def move(self, kind, a, b):
    if kind == 'ready':
      self.unready.remove((a, b))
      self.exchanges[a].ready(b)
    elif kind == 'send':
      out = self.exchanges[a].take(b)
      self.pipes[a, b].append((*out._replace(body=bytes(out.body)),))
      self.exchanges[a].sent(b)
    else:
      kind, chunk, body, dtype = self.pipes[a, b].popleft()
      place = self.exchanges[b].allocate(a, kind, chunk, len(body), dtype)
      place[:] = body
      self.exchanges[b].arrived(a, kind, chunk, place)

  def run(self, rng, most=10**6):
    for _ in range(most):
      moves = self.moves()
      if not moves:
        break
      self.move(*moves[rng.integers(len(moves))])


def _draw_buckets(rng, size, count):
  ends = [0, *np.sort(rng.integers(0, size + 1, count - 1)).tolist(), size]
  return list(itertools.pairwise(ends))


def _draw_arrays(rng, count, size, are_integers):
  if are_integers:
    draw = rng.integers(-1000, 1000, (count, size))
  else:
    draw = rng.normal(size=(count, size)) * 10.0 ** rng.integers(-9, 9, size)
  return draw.astype(np.float32)


def _rounded(array, dtype):
  return array.astype(dtype).astype(np.float32)


def _summed(membership, plan, arrays, dtypes):
  """Returns expected sums, by recursion: parts are rounded on the way up."""
  total = np.empty_like(arrays[0])
  for number, (first, end) in enumerate(plan.bucket_chunks):
    for chunk in range(first, end):
      tree = membership.forest.trees[plan.trees[chunk]]
      where = slice(plan.starts[chunk], plan.stops[chunk])

      def part(node, tree=tree, where=where, dtype=dtypes[number]):
        result = arrays[membership.names[node]][where]
        for hop in tree.up:
          if hop[-1] == node:
            result = result + _rounded(part(hop[0]), dtype)
        return result

      total[where] = _rounded(part(tree.root), dtypes[number])
  return total


class ExchangeTest(parameterized.TestCase):
  @_SETTINGS
  @hypothesis.given(
    which=st.integers(0, 10**6),
    size=st.sampled_from([0, 1, 2, 7, 8, 9, 100, 333]),
    count=st.integers(1, 6),
    window=st.sampled_from([1, 2, 3, 8, 50]),
    seed=st.integers(0, 10**6),
  )
  def test_all_get_the_sums_in_any_order(
    self, which, size, count, window, seed
  ):
    membership = _memberships()[which % len(_memberships())]
    rng = np.random.default_rng(seed)
    buckets = _draw_buckets(rng, size, count)
    for are_integers in (True, False):
      arrays = _draw_arrays(rng, len(membership.addresses), size, are_integers)
      expected = arrays.astype(np.float64).sum(0)
      workers = _Workers(membership, list(arrays.copy()), buckets, window)
      again = _Workers(membership, list(arrays.copy()), buckets, window)
      for each in (workers, again):
        each.run(rng)
        for index, state in each.exchanges.items():
          self.assertTrue(state.done, (index, state.waits_for(index)))
          self.assertFalse(any(map(state.needs, membership.addresses)))
          self.assertEqual(each.buffers[index].lent_bytes, 0)
          self.assertEqual(state.low, len(state.program.trees))
      got = np.array([s._buffer for s in workers.exchanges.values()])
      np.testing.assert_array_equal(got, np.tile(got[0], (len(got), 1)))
      np.testing.assert_array_equal(again.exchanges[0]._buffer, got[0])
      if are_integers:
        np.testing.assert_array_equal(got[0], expected)
      else:
        scale = np.abs(arrays).astype(np.float64).sum(0)
        self.assertTrue((np.abs(got[0] - expected) <= 1e-6 * scale).all())

  @hypothesis.settings(_SETTINGS, max_examples=40)
  @hypothesis.given(
    which=st.integers(0, 10**6),
    size=st.sampled_from([1, 15, 16, 17, 100]),
    dtype=st.sampled_from([ml_dtypes.bfloat16, np.float16]),
    seed=st.integers(0, 10**6),
  )
  def test_half_precision_is_rounded_on_each_hop_up_and_at_the_root(
    self, which, size, dtype, seed
  ):
    membership = _memberships()[which % len(_memberships())]
    rng = np.random.default_rng(seed)
    buckets = [*_draw_buckets(rng, size, 2), (size, size + 9)]
    dtypes = [np.dtype(each) for each in (dtype, dtype, np.float32)]
    arrays = _draw_arrays(rng, len(membership.addresses), size + 9, False)
    arrays = np.clip(arrays, -1e3, 1e3)
    workers = _Workers(membership, list(arrays.copy()), buckets, 8, dtypes)
    workers.run(rng)
    plan = workers.exchanges[0].program
    expected = _summed(membership, plan, arrays, dtypes)
    for state in workers.exchanges.values():
      np.testing.assert_array_equal(state._buffer, expected)
      self.assertTrue(state.finite)
    sizes = np.subtract(plan.stops, plan.starts)
    items = [4 if first >= size else 2 for first in plan.starts]
    self.assertLessEqual((sizes * items).max(), _CHUNK_BYTES)

  @parameterized.parameters(
    ((3e4, 3e4), True), ((4e4, 4e4), False), ((np.inf, -np.inf), False),
    ((7e4, 0), False),
  )  # fmt: skip
  def test_all_workers_detect_sums_beyond_float16(self, numbers, finite):
    star = shapes.star([1, 1])
    membership = groups.make_membership(pack(star), star.workers)
    arrays = [np.array([1.0, each, 2.0], np.float32) for each in numbers]
    dtypes = [np.dtype(np.float16)]
    workers = _Workers(membership, arrays, [(0, 3)], 8, dtypes)
    with np.errstate(over='ignore', invalid='ignore'):
      workers.run(np.random.default_rng(0))
    result = [state.finite for state in workers.exchanges.values()]
    self.assertEqual(result, [finite, finite])

  @_SETTINGS
  @hypothesis.given(
    which=st.integers(0, 10**6),
    window=st.sampled_from([1, 3, 8]),
    seed=st.integers(0, 10**6),
  )
  def test_a_chain_of_waits_for_ends_at_the_late_worker(
    self, which, window, seed
  ):
    membership = _memberships()[which % len(_memberships())]
    rng = np.random.default_rng(seed)
    arrays = _draw_arrays(rng, len(membership.addresses), 300, True)
    workers = _Workers(
      membership, list(arrays), _draw_buckets(rng, 300, 3), window
    )
    late = workers.unready.pop(rng.integers(len(workers.unready)))
    workers.run(rng)
    if late[1] < len(workers.exchanges[late[0]].program.bucket_chunks):
      first, end = workers.exchanges[late[0]].program.bucket_chunks[late[1]]
      hypothesis.assume(first < end)
    for index, state in workers.exchanges.items():
      self.assertFalse(state.done)
      chain = [index]
      while chain[-1] != late[0]:
        before = chain[-1]
        waits = workers.exchanges[before].waits_for(before)
        self.assertNotEmpty(waits)
        chain.append(next((w for w in waits if w not in chain), late[0]))
      limit = window * len(state.program.roles.children) * _CHUNK_BYTES
      self.assertLessEqual(workers.buffers[index].peak_bytes, limit)
    workers.unready.append(late)
    workers.run(rng)
    self.assertTrue(all(each.done for each in workers.exchanges.values()))

  @_SETTINGS
  @hypothesis.given(which=st.integers(0, 10**6), seed=st.integers(0, 10**6))
  def test_a_cut_connection_is_needed_by_an_end_unless_all_are_done(
    self, which, seed
  ):
    membership = _memberships()[which % len(_memberships())]
    rng = np.random.default_rng(seed)
    arrays = _draw_arrays(rng, len(membership.addresses), 200, True)
    workers = _Workers(membership, list(arrays), [(0, 200)], 4)
    workers.run(rng, most=int(rng.integers(200)))
    pair = workers.pairs[rng.integers(len(workers.pairs))]
    workers.cut.add(pair)
    workers.run(rng)
    done = {w: each.done for w, each in workers.exchanges.items()}
    if all(done.values()):
      self.assertFalse(workers.exchanges[pair[1]].needs(pair[0]))
    else:
      # Whoever is not done has an end of the cut to blame, or waits for one.
      needs = [workers.exchanges[a].needs(b) for a, b in (pair, pair[::-1])]
      self.assertTrue(any(needs))

  def test_frames_out_of_turn_are_corrupt(self):
    star = shapes.star([1, 1, 1])
    membership = groups.make_membership(pack(star), star.workers)
    workers = _Workers(
      membership, list(np.ones((3, 100), np.float32)), [(0, 100)], 8
    )
    state = workers.exchanges[0]
    plan = state.program
    root = next(
      c for c, t in enumerate(plan.trees) if plan.roles.trees[t].children
    )
    leaf = next(
      c for c, t in enumerate(plan.trees) if plan.roles.trees[t].parent
    )
    child = plan.roles.trees[plan.trees[root]].children[0]
    parent = plan.roles.trees[plan.trees[leaf]].source
    with self.assertRaisesRegex(Corrupt, 'of another dtype, 2'):
      state.allocate(child, UP, root, 32, dtype=2)
    for worker, kind, chunk, size in (
      (child, UP, root, 28),  # Of another size.
      (child, UP, 10**6, 32),
      (child, DOWN, root, 32),
      (parent, DOWN, leaf, 32),  # Before our part.
      (parent, UP, leaf, 32),
      (child, 7, root, 32),
    ):
      with self.assertRaises(Corrupt):
        state.allocate(worker, kind, chunk, size)
    state.arrived(child, UP, root, state.allocate(child, UP, root, 32))
    with self.assertRaisesRegex(Corrupt, 'must not be sent now'):
      state.allocate(child, UP, root, 32)
    state.ready(0)
    with self.assertRaisesRegex(ValueError, 'got 0 again'):
      state.ready(0)

  def test_no_more_buffers_are_lent_than_the_limit(self):
    buffers = exchange.ReceiveBuffers(40)
    first = buffers.take(16)
    buffers.take(20)
    with self.assertRaisesRegex(Corrupt, 'more than 40 bytes'):
      buffers.take(5)
    buffers.give_back(first)
    self.assertIs(buffers.take(16), first)
    self.assertEqual((buffers.lent_bytes, buffers.peak_bytes), (36, 36))

  def test_free_buffers_of_other_sizes_count_towards_the_limit(self):
    buffers = exchange.ReceiveBuffers(40)
    first = buffers.take(16)
    buffers.give_back(first)
    buffers.give_back(buffers.take(40))
    self.assertIsNot(buffers.take(16), first)

  def test_a_longer_round_trip_lets_more_chunks_be_sent(self):
    membership = groups.make_membership(*_star_of_rate(10**6))
    roles = program.find_roles(membership, 1, chunk_bytes=1000)
    plan = program.make_program(roles, 10**6, [(0, 10**6)])
    buffers = exchange.ReceiveBuffers(len(roles.children) * roles.ahead_bytes)
    state = exchange.Exchange(
      plan, np.zeros(10**6, np.float32), buffers, np.empty(0, np.uint16)
    )
    before = state.window
    state.ready(0)
    queued = sum(map(len, state._queues.values()))
    state.adapt_window(1.0)
    self.assertGreater(sum(map(len, state._queues.values())), queued)
    self.assertGreaterEqual(state.window, 1000)  # Of 1 MB/s, for a second.
    state.adapt_window(0.001)
    self.assertEqual(state.window, before)


def _star_of_rate(rate_Bps):
  forest, workers = executors.star(3)
  return dataclasses.replace(forest, rate_Bps=rate_Bps), workers


if __name__ == '__main__':
  absltest.main()
