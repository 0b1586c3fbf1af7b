"""Tests of sums by conversations between executors, beside those in one place.

Numbers are whole, so that all sums are exact in any order.
"""

import functools
import itertools
import pathlib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from cluster.allreduce import group
from cluster.allreduce.executor import executor
from cluster.allreduce.executor.errors import Abandoned
from cluster.allreduce.sums import summing
from cluster.allreduce.sums.memory import Memory
from cluster.allreduce.sums.talking import TalkingSumming
from cluster.network.handshake import Security
from cluster.network.messages import ConnectMembers
from cluster.process.deadlines import Deadlines, Pace, Seen
from cluster.process.faults import Faults
from learning.pool import Pool
from route import links, ring
from wire import sparse
from wire.talks import Talks

_PARAMS = {'a': np.zeros((5, 4), np.float32), 'b': np.zeros(7, np.float32)}
_BOOKS = 3


class _Gradient:
  """Hands out whole numbers, other ones for each worker and iteration.

  Attributes:
    events: Has a 'leaf' for each, before it is handed out.
  """

  def __init__(self):
    self.events = []

  @staticmethod
  def of(worker, iteration):
    rng = np.random.default_rng((worker, iteration))
    return jax.tree.map(
      # More than halves of float32 hold.
      lambda leaf: rng.integers(-9999, 9999, leaf.shape).astype(np.float32),
      _PARAMS,
    )

  def stream(self, params, ranges, *, worker, iteration, into, scale):
    del params, ranges
    leaves = jax.tree.leaves(self.of(worker, iteration))
    for number, leaf in reversed([*enumerate(leaves)]):
      self.events.append('leaf')
      into.put(number, leaf * scale)
    return (), 1.0


class _Learner:
  """Notes what is applied."""

  def __init__(self):
    self.version, self.params, self.scaling = 0, (), None
    self.applied = None

  def apply_pool(self, pool, vector, examples, *, pushes, arrived):
    del examples, pushes
    self.version += 1
    self.applied = pool.payload(vector.copy())._replace(arrived=arrived)


def _talks(pool, **changed):
  fields = {
    'dtype': 'float32',
    'sparsity': 0.6,
    'chunk': 4,
    'correction': 'masked',
    'momentum': 0.0,
    'select_lag': 0,
    'warmup': (0.0,),
    'warmup_epochs': 1.0,
  }
  wire = sparse.make(**fields | changed)
  return Talks(wire, pool.gradient, pool.rows, hosted=True)


def _members(dtype):
  # Of three workers, one would round a sum of two on its way.
  return [0, 1, 2] if dtype == 'float32' else [0, 1]


class _Beating:
  """What a coordinator sees of a worker, by a clock of ours."""

  def __init__(self, worker, deadlines):
    self.now, self.overdue = 0.0, []
    self.pace = Pace()
    self._worker, self._deadlines, self._seen = worker, deadlines, Seen()

  def beat(self, seconds=0.0):
    self.now += seconds
    self.pace.reach(self._worker.steps)
    self._seen.tell(self.pace.told(), self.now)
    self.overdue += self._deadlines.overdue(
      [(0, self._seen, 8)], now=self.now, obeyed=0
    )


class _Watched(executor.Executor):
  """An executor of which a test sees, or changes, each sum that begins.

  Attributes:
    watch: Called with a function that begins the sum, and with its ranges;
      returns the sum.
  """

  def __init__(self, *args, **kwargs):
    self.watch = lambda begin, ranges: begin()
    super().__init__(*args, **kwargs)

  def begin(self, number, pool, ranges, *args):
    begin = functools.partial(super().begin, number, pool, ranges, *args)
    return self.watch(begin, ranges)


class _Played:
  """An executor whose sums have so many chunks, and take so long."""

  address = ''

  def __init__(self, chunks, chunk_s):
    self.beating = None
    self._sums = itertools.cycle(zip(chunks, chunk_s, strict=True))

  def begin(self, *args):
    del args
    chunks, chunk_s = next(self._sums)
    made = mock.Mock(steps=0, finite=True)

    def wait():
      for _ in range(chunks):
        made.steps += 2
        self.beating.beat(chunk_s)

    made.wait = wait
    return made

  def close(self):
    """Nothing to end."""


def _note(events, begin, ranges):
  """Begins a sum; notes that, and the ranges that become ready."""
  del ranges
  made = begin()
  ready = made.ready
  made.ready = lambda index: (events.append('part'), ready(index))
  events.append('sum')
  return made


class TalkingTest(parameterized.TestCase):
  def _made(self, count, *, overlap=False, make=_Watched, **changed):
    pool = Pool(_PARAMS, (), (1, 0), bucket_bytes=0, books=_BOOKS)
    faults = Faults(
      (),
      num_workers=count,
      num_servers=1,
      directory=pathlib.Path(tempfile.mkdtemp()),
      interface='lo',
      timeout_s=20.0,
    )
    self.talks = _talks(pool, **changed)
    self.gradients = [_Gradient() for _ in range(count)]
    self.workers = [
      TalkingSumming(
        index,
        talks=self.talks,
        bucket_bytes=32,
        overlap=overlap,
        workers=count,
        gradient=self.gradients[index],
        pool=pool,
        host='127.0.0.1',
        security=Security(),
        timeout_s=20.0,
        faults=faults,
      )
      for index in range(count)
    ]
    self.learners = [_Learner() for _ in self.workers]
    self.executors = {}

    def made(index, **of_executor):
      self.executors[index] = make(index, **of_executor)
      return self.executors[index]

    with mock.patch.object(summing, 'Executor', made):
      self.addresses = [worker.open() for worker in self.workers]
    for worker in self.workers:
      self.addCleanup(worker.close)
    # The same in one place.
    self.states = {k: self.talks.init(k) for k in range(count)}
    self.whole = jax.jit(pool.whole)
    self.pool = pool

  def _each(self, function, members):
    with ThreadPoolExecutor(len(members)) as threads:
      return list(threads.map(function, members))

  def _form(self, generation, members):
    cluster = links.believed('', len(self.workers))
    cluster_of = links.believed('', len(members))
    members_of = group.described(
      {index: self.addresses[index] for index in members},
      [
        cluster.workers[members.index(k)] if k in members else ''
        for k in range(len(self.workers))
      ],
      cluster_of,
      ring.in_order(cluster_of),
    )
    order = ConnectMembers(generation, 0, None, members_of)
    self._each(lambda k: self.workers[k].form(order, 20.0), members)

  def _compute(self, index, version, stage):
    worker, learner = self.workers[index], self.learners[index]
    worker.compute(
      version,
      learner,
      (),
      worker=index,
      iteration=version,
      stage=stage,
      fault=None,
      least_s=0.0,
    )
    numbers = np.zeros(_BOOKS, np.float32)
    numbers[index] = 1 + index
    worker.finish(numbers)

  def _iterate(self, version, members, stage=1):
    def take_part(index):
      worker, learner = self.workers[index], self.learners[index]
      self._compute(index, version, stage)
      books, finite = worker.total()
      worker.apply(learner, examples=8, pushes=len(members))
      return books, finite

    expected = [1.0 + k if k in members else 0.0 for k in range(_BOOKS)]
    for books, finite in self._each(take_part, members):
      self.assertEqual((books, finite), (expected, True))
    vectors = {k: self.whole(_Gradient.of(k, version)) for k in members}
    summed, after = self.talks.together(
      self.states, vectors, stage=stage, scale=1.0
    )
    self.states |= after
    for index in members:
      self._check(index, summed)

  def _check(self, index, summed):
    applied, memory = self.learners[index].applied, self.workers[index].memory
    jax.tree.map(
      np.testing.assert_array_equal,
      applied.gradient,
      self.pool.leaves(summed.vector),
    )
    if not isinstance(summed.arrived, tuple):
      jax.tree.map(
        np.testing.assert_array_equal,
        applied.arrived,
        self.pool.leaves(summed.arrived),
      )
    jax.tree.map(
      np.testing.assert_array_equal, memory.state, self.states[index]
    )

  @parameterized.parameters(
    ('masked', 0, 0.0, 'float32'),
    ('masked', 0, 0.0, 'bfloat16'),
    ('none', 1, 0.0, 'float16'),
    ('local', 0, 0.5, 'float32'),
  )
  def test_workers_get_and_keep_what_they_would_in_one_place(
    self, correction, lag, momentum, dtype
  ):
    members = _members(dtype)
    self._made(
      len(members),
      correction=correction,
      select_lag=lag,
      momentum=momentum,
      dtype=dtype,
    )
    self._form(0, members)
    for version in range(4):
      self._iterate(version, members, stage=int(version > 0))

  @parameterized.parameters(
    ('masked', 0.0, 'float32'),
    ('masked', 0.0, 'bfloat16'),
    ('local', 0.5, 'float32'),
  )
  def test_what_travels_early_is_the_same(self, correction, momentum, dtype):
    members = _members(dtype)
    self._made(
      len(members),
      overlap=True,
      dtype=dtype,
      correction=correction,
      select_lag=1,
      momentum=momentum,
    )
    self._form(0, members)
    for index in members:
      self.executors[index].watch = functools.partial(
        _note, self.gradients[index].events
      )
    early = []  # Whether a part was ready before the last leaf.
    for version in range(4):
      self._iterate(version, members, stage=int(version > 0))
      for gradient in self.gradients:
        events = gradient.events
        first, last = (n for n, each in enumerate(events) if each == 'leaf')
        # The first stage is dense, and nothing of it travels early.
        self.assertEqual('sum' in events[:first], version > 0, events)
        early.append('part' in events[first:last])
        events.clear()
    self.assertTrue(any(early[len(members) :]))
    self.assertFalse(any(early[: len(members)]))

  def test_what_failed_is_repeated_from_what_was_kept_before(self):
    self._made(3)
    self._form(0, [0, 1, 2])
    self._iterate(0, [0, 1, 2])
    # Worker 2 dies after the norms; the others are told to give up.
    begun = []

    def dies(begin, ranges):
      del ranges
      if begun:
        raise Abandoned('as it dies')
      begun.append(begin())
      return begun[0]

    self.executors[2].watch = dies

    def fail(index):
      self._compute(index, 1, 1)
      try:
        self.workers[index].total()
      except Abandoned:
        if index == 2:
          self.workers[0].abandon()
          self.workers[1].abandon()
        return True
      return False

    self.assertEqual(self._each(fail, [0, 1, 2]), [True] * 3)
    self._form(1, [0, 1])
    for version in (1, 2):
      self._iterate(version, [0, 1])

  @parameterized.parameters(0, 1)
  def test_who_has_not_heard_the_end_has_sent_its_part(self, lag):
    self._made(2, select_lag=lag)
    self._form(0, [0, 1])
    self._iterate(0, [0, 1])
    worker = self.workers[1]

    def deaf(begin, ranges):
      made = begin()
      if len(ranges) > 1:  # With the statistics: the last sum.
        wait = made.wait

        def abandoned():
          wait()
          raise Abandoned('others have it')

        made.wait = abandoned
      return made

    self.executors[1].watch = deaf

    def take_part(index):
      self._compute(index, 1, 1)
      try:
        self.workers[index].total()
      except Abandoned:
        return
      self.workers[index].apply(self.learners[index], examples=8, pushes=2)

    self._each(take_part, [0, 1])
    self.executors[1].watch = lambda begin, ranges: begin()
    vectors = {k: self.whole(_Gradient.of(k, 1)) for k in (0, 1)}
    _, self.states = self.talks.together(
      self.states, vectors, stage=1, scale=1.0
    )
    worker.memory.recall(2, self.workers[0].memory.common)
    for index in (0, 1):
      jax.tree.map(
        np.testing.assert_array_equal,
        self.workers[index].memory.state,
        self.states[index],
      )
    self._form(1, [0, 1])
    self._iterate(2, [0, 1])

  def test_a_checkpoint_has_what_all_keep(self):
    self._made(3, correction='local', momentum=0.5, select_lag=1)
    self._form(0, [0, 1, 2])
    self._iterate(0, [0, 1, 2])
    self._iterate(1, [0, 1, 2])
    self.assertIsNone(self.workers[0].memory.saved())
    self._each(lambda k: self.workers[k].collect(2), [0, 1, 2])
    total = jax.tree.map(
      lambda *parts: sum(map(np.asarray, parts)),
      *(state.kept for state in self.states.values()),
    )
    self.assertGreater(np.abs(total['left']).max(), 0)
    saved = self.workers[0].memory.saved()
    jax.tree.map(
      np.testing.assert_array_equal,
      saved['kept'],
      jax.tree.map(self.pool.leaves, total),
    )
    again = Memory(self.talks, self.pool, 0)
    again.restore(2, saved)
    for what in total:
      np.testing.assert_array_equal(again.state.kept[what], total[what])
    np.testing.assert_array_equal(again.common, self.states[0].common)
    # And they go on as if nobody had asked.
    self._iterate(2, [0, 1, 2])
    self.assertIsNone(self.workers[0].memory.saved())

  @parameterized.parameters(False, True)
  def test_steps_count_all_sums_of_an_iteration(self, overlap):
    self._made(2, overlap=overlap, select_lag=int(overlap))
    self._form(0, [0, 1])
    begun, seen = {0: [], 1: []}, {0: [], 1: []}

    def watch(index, begin, ranges):
      del ranges
      made = begin()
      begun[index].append(made)
      wait = made.wait

      def waited():
        wait()
        steps = sum(each.steps for each in begun[index])
        seen[index].append((self.workers[index].steps, steps))

      made.wait = waited
      return made

    for index in (0, 1):
      self.executors[index].watch = functools.partial(watch, index)
    for version in range(3):
      self._iterate(version, [0, 1])
      for index in (0, 1):
        self.assertNotEmpty(seen[index])
        for steps, expected in seen[index]:
          self.assertEqual(steps, expected)
        self.assertEqual(self.workers[index].steps, 0)
        begun[index].clear()
        seen[index].clear()

  def test_a_long_sum_of_few_chunks_is_progress_after_one_of_many(self):
    # Of the two sums of an iteration the first has more chunks.
    self._made(
      1,
      make=lambda index, **_: _Played(chunks=[100, 5], chunk_s=[0.1, 9.0]),
    )
    worker = self.workers[0]
    deadlines = Deadlines(timeout_s=10.0, start_s=300.0, windows=True)
    beating = self.executors[0].beating = _Beating(worker, deadlines)
    for version in range(3):
      beating.pace.begin(version)
      beating.beat()
      self._compute(0, version, 1)
      worker.total()
      beating.beat()
    self.assertEqual(beating.overdue, [])
    self.assertGreater(beating.now, 3 * 2 * 10.0)

  def test_who_comes_new_keeps_nothing_and_knows_what_all_know(self):
    self._made(2, select_lag=1)
    memory = Memory(self.talks, self.pool, 1)
    norms = jnp.arange(8.0)
    memory.recall(7, norms)
    np.testing.assert_array_equal(memory.common, norms)
    self.assertFalse(memory.kept().any())
    self.assertEqual(memory.version, 7)


if __name__ == '__main__':
  absltest.main()
