"""Tests of the executor, exchange: over pipes in memory."""

import collections
import functools
import itertools

import hypothesis
import ml_dtypes
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from cluster.allreduce.executor import exchange, program
from cluster.allreduce.executor.frames import DOWN, UP
from cluster.network.errors import Corrupt
from tests.support import groups
from topology.clusters import shapes
from topology.packing.pack import pack

_CHUNK_BYTES = 32
_SETTINGS = hypothesis.settings(
  deadline=None,
  max_examples=60,
  suppress_health_check=[*hypothesis.HealthCheck],
)


@functools.cache
def _groups():
  return [
    groups.group(forest, workers)
    for seed in range(4)
    for _, forest, workers in groups.forests(seed)
  ]


class _Workers:
  """All workers of a group, with a pipe per ordered pair of them."""

  def __init__(self, group, pools, ranges, window, dtypes=None):
    self.exchanges, self.buffers = {}, {}
    self.pipes = collections.defaultdict(collections.deque)
    for index, pool in enumerate(pools):
      own = program.roles(group, index, chunk_bytes=_CHUNK_BYTES)
      own = own._replace(window=window)
      made = program.program(own, pool.size, ranges, dtypes)
      most = window * len(own.adding)
      self.buffers[index] = exchange.Buffers(most, _CHUNK_BYTES)
      self.exchanges[index] = exchange.Exchange(
        made, pool, self.buffers[index], np.empty(pool.size, np.uint16)
      )
    self.unready = [(w, r) for w in self.exchanges for r in range(len(ranges))]
    self.pairs = [
      (a, b) for a, each in self.exchanges.items() for b in each.program.goes
    ]
    self.cut = set()

  def moves(self):
    """What may happen next: a range, a frame that is sent or that arrives."""
    found = [('ready', *each) for each in self.unready]
    for pair in self.pairs:
      if pair not in self.cut:
        a, b = pair
        if self.exchanges[a]._queues[b]:
          found.append(('send', *pair))
        if self.pipes[pair]:
          found.append(('receive', *pair))
    return found

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
      place = self.exchanges[b].place(a, kind, chunk, len(body), dtype)
      place[:] = body
      self.exchanges[b].arrived(a, kind, chunk, place)

  def run(self, rng, most=10**6):
    for _ in range(most):
      moves = self.moves()
      if not moves:
        break
      self.move(*moves[rng.integers(len(moves))])


def _ranges(rng, size, count):
  ends = [0, *np.sort(rng.integers(0, size + 1, count - 1)).tolist(), size]
  return list(itertools.pairwise(ends))


def _pools(rng, count, size, whole):
  if whole:
    draw = rng.integers(-1000, 1000, (count, size))
  else:
    draw = rng.normal(size=(count, size)) * 10.0 ** rng.integers(-9, 9, size)
  return draw.astype(np.float32)


def _rounded(array, dtype):
  return array.astype(dtype).astype(np.float32)


def _summed(group, made, pools, dtypes):
  """What all have, by recursion: parts are rounded as they are sent up."""
  total = np.empty_like(pools[0])
  for number, (first, end) in enumerate(made.chunks):
    for chunk in range(first, end):
      tree = group.forest.trees[made.trees[chunk]]
      where = slice(made.starts[chunk], made.stops[chunk])

      def part(node, tree=tree, where=where, dtype=dtypes[number]):
        found = pools[group.names[node]][where]
        for hop in tree.up:
          if hop[-1] == node:
            found = found + _rounded(part(hop[0]), dtype)
        return found

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
    group = _groups()[which % len(_groups())]
    rng = np.random.default_rng(seed)
    ranges = _ranges(rng, size, count)
    for whole in (True, False):
      pools = _pools(rng, len(group.addresses), size, whole)
      want = pools.astype(np.float64).sum(0)
      workers = _Workers(group, list(pools.copy()), ranges, window)
      again = _Workers(group, list(pools.copy()), ranges, window)
      for each in (workers, again):
        each.run(rng)
        for index, state in each.exchanges.items():
          self.assertTrue(state.done, (index, state.waits_for(index)))
          self.assertFalse(any(map(state.needs, group.addresses)))
          self.assertEqual(each.buffers[index].lent, 0)
          self.assertEqual(state.low, len(state.program.trees))
      got = np.array([s._pool for s in workers.exchanges.values()])
      np.testing.assert_array_equal(got, np.tile(got[0], (len(got), 1)))
      np.testing.assert_array_equal(again.exchanges[0]._pool, got[0])
      if whole:
        np.testing.assert_array_equal(got[0], want)
      else:
        scale = np.abs(pools).astype(np.float64).sum(0)
        self.assertTrue((np.abs(got[0] - want) <= 1e-6 * scale).all())

  @hypothesis.settings(_SETTINGS, max_examples=40)
  @hypothesis.given(
    which=st.integers(0, 10**6),
    size=st.sampled_from([1, 15, 16, 17, 100]),
    dtype=st.sampled_from([ml_dtypes.bfloat16, np.float16]),
    seed=st.integers(0, 10**6),
  )
  def test_halves_are_rounded_as_they_go_up_and_once_at_the_root(
    self, which, size, dtype, seed
  ):
    group = _groups()[which % len(_groups())]
    rng = np.random.default_rng(seed)
    ranges = [*_ranges(rng, size, 2), (size, size + 9)]
    dtypes = [np.dtype(each) for each in (dtype, dtype, np.float32)]
    pools = _pools(rng, len(group.addresses), size + 9, False)
    pools = np.clip(pools, -1e3, 1e3)
    workers = _Workers(group, list(pools.copy()), ranges, 8, dtypes)
    workers.run(rng)
    made = workers.exchanges[0].program
    want = _summed(group, made, pools, dtypes)
    for state in workers.exchanges.values():
      np.testing.assert_array_equal(state._pool, want)
      self.assertTrue(state.finite)
    sizes = np.subtract(made.stops, made.starts)
    items = [4 if first >= size else 2 for first in made.starts]
    self.assertLessEqual((sizes * items).max(), _CHUNK_BYTES)

  @parameterized.parameters(
    ((3e4, 3e4), True), ((4e4, 4e4), False), ((np.inf, -np.inf), False),
    ((7e4, 0), False),
  )  # fmt: skip
  def test_sums_that_float16_cannot_hold_are_noticed_by_all(
    self, numbers, finite
  ):
    star = shapes.star([1, 1])
    group = groups.group(pack(star), star.workers)
    pools = [np.array([1.0, each, 2.0], np.float32) for each in numbers]
    dtypes = [np.dtype(np.float16)]
    workers = _Workers(group, pools, [(0, 3)], 8, dtypes)
    with np.errstate(over='ignore', invalid='ignore'):
      workers.run(np.random.default_rng(0))
    found = [state.finite for state in workers.exchanges.values()]
    self.assertEqual(found, [finite, finite])

  @_SETTINGS
  @hypothesis.given(
    which=st.integers(0, 10**6),
    window=st.sampled_from([1, 3, 8]),
    seed=st.integers(0, 10**6),
  )
  def test_who_waits_says_for_whom_up_to_who_is_late(self, which, window, seed):
    group = _groups()[which % len(_groups())]
    rng = np.random.default_rng(seed)
    pools = _pools(rng, len(group.addresses), 300, True)
    workers = _Workers(group, list(pools), _ranges(rng, 300, 3), window)
    late = workers.unready.pop(rng.integers(len(workers.unready)))
    workers.run(rng)
    if late[1] < len(workers.exchanges[late[0]].program.chunks):
      first, end = workers.exchanges[late[0]].program.chunks[late[1]]
      hypothesis.assume(first < end)
    for index, state in workers.exchanges.items():
      self.assertFalse(state.done)
      seen = [index]
      while seen[-1] != late[0]:
        before = seen[-1]
        waits = workers.exchanges[before].waits_for(before)
        self.assertNotEmpty(waits)
        seen.append(next((w for w in waits if w not in seen), late[0]))
      limit = window * len(state.program.roles.adding)
      self.assertLessEqual(workers.buffers[index].peak, limit)
    workers.unready.append(late)
    workers.run(rng)
    self.assertTrue(all(each.done for each in workers.exchanges.values()))

  @_SETTINGS
  @hypothesis.given(which=st.integers(0, 10**6), seed=st.integers(0, 10**6))
  def test_a_cut_is_needed_by_both_ends_or_by_none(self, which, seed):
    group = _groups()[which % len(_groups())]
    rng = np.random.default_rng(seed)
    pools = _pools(rng, len(group.addresses), 200, True)
    workers = _Workers(group, list(pools), [(0, 200)], 4)
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
    group = groups.group(pack(star), star.workers)
    workers = _Workers(
      group, list(np.ones((3, 100), np.float32)), [(0, 100)], 8
    )
    state = workers.exchanges[0]
    made = state.program
    root = next(
      c for c, t in enumerate(made.trees) if made.roles.trees[t].children
    )
    leaf = next(
      c for c, t in enumerate(made.trees) if made.roles.trees[t].parent
    )
    child = made.roles.trees[made.trees[root]].children[0]
    parent = made.roles.trees[made.trees[leaf]].source
    with self.assertRaisesRegex(Corrupt, 'of another dtype, 2'):
      state.place(child, UP, root, 32, dtype=2)
    for worker, kind, chunk, size in (
      (child, UP, root, 28),  # Of another size.
      (child, UP, 10**6, 32),
      (child, DOWN, root, 32),
      (parent, DOWN, leaf, 32),  # Before our part.
      (parent, UP, leaf, 32),
      (child, 7, root, 32),
    ):
      with self.assertRaises(Corrupt):
        state.place(worker, kind, chunk, size)
    state.arrived(child, UP, root, state.place(child, UP, root, 32))
    with self.assertRaisesRegex(Corrupt, 'not for now'):
      state.place(child, UP, root, 32)
    state.ready(0)
    with self.assertRaisesRegex(ValueError, 'got 0 again'):
      state.ready(0)

  def test_no_more_buffers_are_lent_than_there_are(self):
    buffers = exchange.Buffers(2, 16)
    first = buffers.take()
    buffers.take()
    with self.assertRaisesRegex(Corrupt, 'more than 2'):
      buffers.take()
    buffers.give(first[:8])
    self.assertLen(buffers.take(), 16)
    self.assertEqual((buffers.lent, buffers.peak), (2, 2))


if __name__ == '__main__':
  absltest.main()
