"""Tests of multi-round allreduces of executors, against one process.

Numbers are whole, so that all sums are exact in any order.
"""

import functools
import itertools
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from cluster.allreduce.executor import executor, membership
from cluster.allreduce.executor.errors import Abandoned
from cluster.allreduce.sums import host
from cluster.allreduce.sums.codec_state import CodecState
from cluster.allreduce.sums.multi_round import MultiRoundReducer
from cluster.network.handshake import Security
from cluster.network.messages import ConnectMembers
from cluster.network.port import Port
from cluster.process.deadlines import (
  Deadlines,
  ProgressCounter,
  ReceivedProgress,
)
from learning.iteration import Iteration
from learning.layout import Layout
from learning.scaling import factor
from route import links, ring
from wire import sparse
from wire.multi_round import MultiRoundAllreduce

_PARAMS = {'a': np.zeros((5, 4), np.float32), 'b': np.zeros(7, np.float32)}
_BOOKS = 3


class _Gradient:
  """Gradients of whole numbers that depend on worker and iteration.

  Attributes:
    events: List with a 'leaf' for each leaf, in order with other events.
  """

  def __init__(self):
    self.events = []

  @staticmethod
  def draw(worker, iteration):
    rng = np.random.default_rng((worker, iteration))
    return jax.tree.map(
      # More digits than 16 bits hold.
      lambda leaf: rng.integers(-9999, 9999, leaf.shape).astype(np.float32),
      _PARAMS,
    )

  def stream(self, params, iteration, sink):
    del params
    leaves = jax.tree.leaves(self.draw(iteration.worker, iteration.number))
    for number, leaf in reversed([*enumerate(leaves)]):
      self.events.append('leaf')
      sink(number, leaf * iteration.scale)
    return (), 1.0


class _Learner:
  """Records what is applied."""

  def __init__(self):
    self.version, self.params, self.scaling = 0, (), None
    self.applied = None

  def apply(self, payload, examples, *, weight, pushes):
    del examples, pushes
    self.version += 1
    self.applied = jax.tree.map(np.copy, payload)


def _multi_round(layout, **changed):
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
  return MultiRoundAllreduce(
    wire, layout.gradient_size, layout.matrices(), uses_numpy=True
  )


def _members(dtype):
  # Among three workers one would round a partial sum.
  return [0, 1, 2] if dtype == 'float32' else [0, 1]


class _Heartbeats:
  """A worker's heartbeats as a coordinator sees them, with a fake clock."""

  def __init__(self, worker, deadlines):
    self.now, self.overdue = 0.0, []
    self.progress = ProgressCounter()
    self._worker, self._deadlines, self._received = (
      worker,
      deadlines,
      ReceivedProgress(),
    )

  def beat(self, seconds=0.0):
    self.now += seconds
    self.progress.reach(self._worker.steps)
    self._received.update(self.progress.read(), self.now)
    self.overdue += self._deadlines.overdue(
      [(0, self._received, 8)], now=self.now, executed_orders=0
    )


class _ObservedExecutor(executor.Executor):
  """An executor whose sums a test observes or changes as they begin.

  Attributes:
    observe: Function that is called with a function that begins the sum, and
      with its ranges; returns the sum.
  """

  def __init__(self, *args, **kwargs):
    self.observe = lambda begin, ranges: begin()
    super().__init__(*args, **kwargs)

  def begin(self, number, layout, ranges, *args):
    begin = functools.partial(super().begin, number, layout, ranges, *args)
    return self.observe(begin, ranges)


class _FakeExecutor:
  """An executor whose sums have given numbers of chunks and durations."""

  address = ''

  def __init__(self, chunks, chunk_s):
    self.heartbeats = None
    self._sums = itertools.cycle(zip(chunks, chunk_s, strict=True))

  def begin(self, *args):
    del args
    chunks, chunk_s = next(self._sums)
    made = mock.Mock(steps=0, finite=True)

    def wait():
      for _ in range(chunks):
        made.steps += 2
        self.heartbeats.beat(chunk_s)

    made.wait = wait
    return made

  def close(self):
    """Keeps the fake open."""


def _record(events, begin, ranges):
  """Begins a sum; records that, and the ranges that become ready."""
  del ranges
  reduction = begin()
  ready = reduction.ready
  reduction.ready = lambda index: (events.append('part'), ready(index))
  events.append('sum')
  return reduction


class MultiRoundTest(parameterized.TestCase):
  def _open(self, count, *, overlap=False, make=_ObservedExecutor, **changed):
    layout = Layout(
      _PARAMS, (), order=(1, 0), bucket_bytes=0, step_statistics=_BOOKS
    )
    self.multi_round = _multi_round(layout, **changed)
    self.gradients = [_Gradient() for _ in range(count)]
    self.workers = [
      MultiRoundReducer(
        index,
        multi_round=self.multi_round,
        bucket_bytes=32,
        overlap=overlap,
        workers=count,
        gradient=self.gradients[index],
        layout=layout,
        port=Port('127.0.0.1', 0, Security()),
        timeout_s=20.0,
      )
      for index in range(count)
    ]
    self.learners = [_Learner() for _ in self.workers]
    self.executors = {}

    def make_executor(index, **kwargs):
      self.executors[index] = make(index, **kwargs)
      return self.executors[index]

    with mock.patch.object(host, 'Executor', make_executor):
      self.addresses = [worker.open() for worker in self.workers]
    for worker in self.workers:
      self.addCleanup(worker.close)
    # The same workers in this process.
    self.states = {k: self.multi_round.init(k) for k in range(count)}
    self.to_vector = jax.jit(layout.flatten)
    self.layout = layout

  def _each(self, function, members):
    with ThreadPoolExecutor(len(members)) as threads:
      return list(threads.map(function, members))

  def _form(self, epoch, members):
    cluster_of = links.read_cluster('', len(members))
    described = membership.describe(
      membership.Membership(
        epoch,
        {index: self.addresses[index] for index in members},
        ring.build_in_order(cluster_of),
        {cluster_of.workers[members.index(k)]: k for k in members},
      ),
      cluster_of,
    )
    order = ConnectMembers(epoch, 0, None, described)
    self._each(lambda k: self.workers[k].form(order, 20.0), members)

  def _compute(self, index, version, stage):
    worker, learner = self.workers[index], self.learners[index]
    iteration = Iteration(
      (),
      worker=index,
      number=version,
      scale=factor(learner.scaling),
      version=version,
    )
    worker.compute(learner, iteration, stage=stage, least_s=0.0)
    numbers = np.zeros(_BOOKS, np.float32)
    numbers[index] = 1 + index
    worker.finish(numbers)

  def _iterate(self, version, members, stage=1):
    def take_part(index):
      worker, learner = self.workers[index], self.learners[index]
      self._compute(index, version, stage)
      books, finite = worker.total()
      worker.apply(learner, examples=8, weight=8.0, pushes=len(members))
      return books, finite

    expected = [1.0 + k if k in members else 0.0 for k in range(_BOOKS)]
    for books, finite in self._each(take_part, members):
      self.assertEqual((books, finite), (expected, True))
    vectors = {k: self.to_vector(_Gradient.draw(k, version)) for k in members}
    reduced, next_states = self.multi_round.reduce(
      self.states, vectors, stage=stage, scale=1.0
    )
    self.states |= next_states
    for index in members:
      self._check(index, reduced)

  def _check(self, index, reduced):
    applied = self.learners[index].applied
    codec_state = self.workers[index].codec_state
    jax.tree.map(
      np.testing.assert_array_equal,
      applied.gradient,
      self.layout.unflatten(reduced.vector),
    )
    if not isinstance(reduced.arrived, tuple):
      jax.tree.map(
        np.testing.assert_array_equal,
        applied.arrived,
        self.layout.unflatten(reduced.arrived),
      )
    jax.tree.map(
      np.testing.assert_array_equal, codec_state.state, self.states[index]
    )

  @parameterized.parameters(
    ('masked', 0, 0.0, 'float32'),
    ('masked', 0, 0.0, 'bfloat16'),
    ('none', 1, 0.0, 'float16'),
    ('local', 0, 0.5, 'float32'),
  )
  def test_results_and_states_equal_those_in_one_process(
    self, correction, lag, momentum, dtype
  ):
    members = _members(dtype)
    self._open(
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
  def test_streaming_a_prefix_changes_no_result(
    self, correction, momentum, dtype
  ):
    members = _members(dtype)
    self._open(
      len(members),
      overlap=True,
      dtype=dtype,
      correction=correction,
      select_lag=1,
      momentum=momentum,
    )
    self._form(0, members)
    for index in members:
      self.executors[index].observe = functools.partial(
        _record, self.gradients[index].events
      )
    streamed = []  # Whether a part was ready before the last leaf.
    for version in range(4):
      self._iterate(version, members, stage=int(version > 0))
      for gradient in self.gradients:
        events = gradient.events
        first, last = (n for n, each in enumerate(events) if each == 'leaf')
        # The first stage is dense, and nothing of it is streamed.
        self.assertEqual('sum' in events[:first], version > 0, events)
        streamed.append('part' in events[first:last])
        events.clear()
    self.assertTrue(any(streamed[len(members) :]))
    self.assertFalse(any(streamed[: len(members)]))

  def test_a_failed_iteration_is_repeated_from_the_states_before(self):
    self._open(3)
    self._form(0, [0, 1, 2])
    self._iterate(0, [0, 1, 2])
    # Worker 2 dies after the norms; the others abandon the sum.
    begun = []

    def dies(begin, ranges):
      del ranges
      if begun:
        raise Abandoned('as it dies')
      begun.append(begin())
      return begun[0]

    self.executors[2].observe = dies

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
  def test_a_worker_without_the_last_sum_continues_with_the_state_after_it(
    self, lag
  ):
    self._open(2, select_lag=lag)
    self._form(0, [0, 1])
    self._iterate(0, [0, 1])
    worker = self.workers[1]

    def lose_last_sum(begin, ranges):
      reduction = begin()
      if len(ranges) > 1:  # With the statistics: the last sum.
        wait = reduction.wait

        def abandoned():
          wait()
          raise Abandoned('others have it')

        reduction.wait = abandoned
      return reduction

    self.executors[1].observe = lose_last_sum

    def take_part(index):
      self._compute(index, 1, 1)
      try:
        self.workers[index].total()
      except Abandoned:
        return
      self.workers[index].apply(
        self.learners[index], examples=8, weight=8.0, pushes=2
      )

    self._each(take_part, [0, 1])
    self.executors[1].observe = lambda begin, ranges: begin()
    vectors = {k: self.to_vector(_Gradient.draw(k, 1)) for k in (0, 1)}
    _, self.states = self.multi_round.reduce(
      self.states, vectors, stage=1, scale=1.0
    )
    worker.codec_state.resume(2, self.workers[0].codec_state.replicated)
    for index in (0, 1):
      jax.tree.map(
        np.testing.assert_array_equal,
        self.workers[index].codec_state.state,
        self.states[index],
      )
    self._form(1, [0, 1])
    self._iterate(2, [0, 1])

  def test_a_checkpoint_has_the_sum_of_all_residuals(self):
    self._open(3, correction='local', momentum=0.5, select_lag=1)
    self._form(0, [0, 1, 2])
    self._iterate(0, [0, 1, 2])
    self._iterate(1, [0, 1, 2])
    self.assertIsNone(self.workers[0].codec_state.for_checkpoint())
    self._each(lambda k: self.workers[k].collect(2), [0, 1, 2])
    total = jax.tree.map(
      lambda *parts: sum(map(np.asarray, parts)),
      *(state.residual for state in self.states.values()),
    )
    self.assertGreater(np.abs(total['unsent']).max(), 0)
    saved = self.workers[0].codec_state.for_checkpoint()
    jax.tree.map(
      np.testing.assert_array_equal,
      saved['residual'],
      jax.tree.map(self.layout.unflatten, total),
    )
    again = CodecState(self.multi_round, self.layout, 0)
    again.restore(2, saved)
    for name in total:
      np.testing.assert_array_equal(again.state.residual[name], total[name])
    np.testing.assert_array_equal(again.replicated, self.states[0].replicated)
    # A worker that has outlived the coordinator: its residual is in the sum.
    other = self.workers[1].codec_state
    state = other.state
    other.drop_residual()
    self.assertEqual(other.version, 2)
    self.assertFalse(other.flat_residual().any())
    np.testing.assert_array_equal(other.replicated, state.replicated)
    other.commit(2, state)
    # Collecting residuals changes nothing for the workers.
    self._iterate(2, [0, 1, 2])
    self.assertIsNone(self.workers[0].codec_state.for_checkpoint())

  @parameterized.parameters(False, True)
  def test_steps_count_all_sums_of_an_iteration(self, overlap):
    self._open(2, overlap=overlap, select_lag=int(overlap))
    self._form(0, [0, 1])
    begun, seen = {0: [], 1: []}, {0: [], 1: []}

    def observe(index, begin, ranges):
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
      self.executors[index].observe = functools.partial(observe, index)
    for version in range(3):
      self._iterate(version, [0, 1])
      for index in (0, 1):
        self.assertNotEmpty(seen[index])
        for steps, expected in seen[index]:
          self.assertEqual(steps, expected)
        self.assertEqual(self.workers[index].steps, 0)
        begun[index].clear()
        seen[index].clear()

  def test_a_slow_sum_of_few_chunks_counts_as_progress(self):
    # The first of an iteration's two sums has more chunks.
    self._open(
      1,
      make=lambda index, **_: _FakeExecutor(
        chunks=[100, 5], chunk_s=[0.1, 9.0]
      ),
    )
    worker = self.workers[0]
    deadlines = Deadlines(timeout_s=10.0, start_s=300.0, windows=True)
    heartbeats = self.executors[0].heartbeats = _Heartbeats(worker, deadlines)
    for version in range(3):
      heartbeats.progress.begin_iteration(version)
      heartbeats.beat()
      self._compute(0, version, 1)
      worker.total()
      heartbeats.beat()
    self.assertEqual(heartbeats.overdue, [])
    self.assertGreater(heartbeats.now, 3 * 2 * 10.0)

  def test_a_new_worker_has_no_residual_but_the_replicated_state(self):
    self._open(2, select_lag=1)
    codec_state = CodecState(self.multi_round, self.layout, 1)
    norms = jnp.arange(8.0)
    codec_state.resume(7, norms)
    np.testing.assert_array_equal(codec_state.replicated, norms)
    self.assertFalse(codec_state.flat_residual().any())
    self.assertEqual(codec_state.version, 7)


if __name__ == '__main__':
  absltest.main()
