"""Tests for what the coordinator of reduced routes is made of, part by part."""

import math
import time
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

import data.stream
from batching import fixed
from cluster import coordinator
from cluster.allreduce.assignment import Dealing
from cluster.allreduce.step_statistics import Booking, Books, Entry
from cluster.membership.members import Member
from outputs.recorder import Recorder
from sync import bsp

_float32 = st.floats(-1e6, 1e6, width=32)
_entries = st.builds(
  Entry,
  began=_float32,
  computed=_float32,
  compute_s=_float32,
  examples=st.integers(0, 2**20),
  compilations=st.integers(0, 99),
  loss=st.one_of(st.just(math.nan), _float32),
  finite=st.integers(0, 1),
)


class BooksTest(parameterized.TestCase):
  @settings(deadline=None, max_examples=40)
  @given(st.lists(_entries, min_size=1, max_size=5), st.randoms())
  def test_the_sum_gives_what_each_has_written(self, entries, random):
    workers, factors = len(entries) + 1, 2
    books = Books(workers, factors)
    written = []
    for worker, entry in enumerate(entries):
      numbers = np.full(books.size, 7.0, np.float32)
      books.write(numbers, worker, entry, (worker, -0.5))
      written.append(numbers)
    random.shuffle(written)
    found = books.read(sum(written))
    for worker, entry in enumerate(entries):
      got, driving = found[worker]
      np.testing.assert_array_equal(np.array(got), np.array(entry))
      self.assertEqual(driving, (worker, -0.5))
    self.assertEqual(found[workers - 1][0].examples, 0)  # It was not there.

  def test_a_loss_that_is_not_finite_spoils_nothing(self):
    books = Books(2, 0)
    numbers = np.zeros((2, books.size), np.float32)
    for worker, loss in enumerate((math.inf, 2.0)):
      entry = Entry(0.0, 0.0, 0.0, 1, 0, loss, math.isfinite(loss))
      books.write(numbers[worker], worker, entry, ())
    found = books.read(numbers.sum(0))
    self.assertEqual(found[0][0].finite, 0)
    self.assertEqual(found[1][0].loss, 2.0)


def _coordinator(workers, *, ahead=True, batch=8):
  store = mock.Mock(version=0, scalings=[])
  stream = data.stream.Stream(num_examples=1000, seed=0, ahead=0)
  recorder = mock.create_autospec(Recorder, instance=True, finished=False)
  made = coordinator.Coordinator(
    scheme=bsp.make(num_workers=workers),
    batching=fixed.make(num_workers=workers, worker_batch=batch),
    store=store,
    stream=stream,
    recorder=recorder,
    num_workers=workers,
    ahead=ahead,
  )
  made.attach(release=lambda index: None, wake_at=lambda at: None)

  def commit(update):
    del update
    store.version += 1

  store.commit.side_effect = commit
  return made, stream, recorder


def _push(made, index, time):
  made.push(index, time, compute_s=1.0, factors=(), loss=1.0, computed=8)


class BookingTest(parameterized.TestCase):
  def _booked(self, entries, *, time, joining=(), dealt_at=10.0):
    made, _, recorder = _coordinator(3)
    made.start(10.0)
    for index in joining:
      made.leave(index, 10.0, '')
    books = Books(3, 0)
    numbers = np.zeros(books.size, np.float32)
    for worker, entry in entries.items():
      own = np.empty_like(numbers)
      books.write(own, worker, entry, ())
      numbers += own
    booking = Booking(
      made,
      books,
      [Member(incarnation=0) for _ in range(3)],
      lambda n, stage: 100 * n,
    )
    booking(
      numbers.tolist(),
      sorted(entries),
      joining,
      dealt_at=dealt_at,
      stage=0,
      time=time,
    )
    return made, recorder

  @parameterized.parameters(9.0, 10.25)
  def test_phases_are_those_of_the_computations(self, dealt_at):
    late = 10.0 - dealt_at  # Times in the books are after that.
    entries = {
      0: Entry(0.5 + late, 2.0 + late, 1.5, 8, 0, 1.0, 1),
      1: Entry(0.5 + late, 4.0 + late, 3.5, 8, 0, 1.0, 1),
      2: Entry(1.0 + late, 3.0 + late, 2.0, 8, 0, 1.0, 1),
    }
    made, recorder = self._booked(entries, time=16.0, dealt_at=dealt_at)
    spans = {0: [], 1: [], 2: []}
    for call in recorder.span.call_args_list:
      worker, phase, start, end, _ = call.args
      if end > start:
        spans[worker].append((phase, start, end))
    # Nobody pulls: sums of before are on their way once all are released.
    first = [('push', max(10.0, dealt_at), 10.5)]
    if dealt_at > 10:
      first.insert(0, ('wait', 10.0, dealt_at))
    own = [('compute', 10.5, 12.0), ('wait', 12.0, 14.0), ('push', 14.0, 16.0)]
    self.assertEqual(spans[0], first + own)
    # The others have waited for it.
    own = [('compute', 10.5, 14.0), ('push', 14.0, 16.0)]
    self.assertEqual(spans[1], first + own)
    self.assertIn(('compute', 11.0, 13.0), spans[2])
    made.carried.assert_called_once_with(300)

  def test_clocks_that_differ_make_no_phase_negative(self):
    entries = {0: Entry(-3.0, 99.0, 1.0, 8, 0, math.nan, 1)}
    _, recorder = self._booked(entries, time=12.0, joining=(1, 2))
    for call in recorder.span.call_args_list:
      _, _, start, end, _ = call.args
      self.assertLessEqual(10.0, start)
      self.assertLessEqual(start, end)
      self.assertLessEqual(end, 12.0)

  def test_who_joins_is_released_with_the_others(self):
    entries = {k: Entry(0.0, 1.0, 1.0, 8, 0, 1.0, 1) for k in (0, 1)}
    made, _ = self._booked(entries, time=12.0, joining=(2,))
    self.assertEqual([w.phase for w in made.workers], ['pull'] * 3)
    self.assertEqual(made.workers[2].version, 1)

  def test_what_is_not_finite_ends_the_run(self):
    entries = {k: Entry(0.0, 1.0, 1.0, 8, 0, 1.0, k != 1) for k in range(3)}
    with self.assertRaisesRegex(FloatingPointError, 'worker 1, iteration 0'):
      self._booked(entries, time=12.0)


class AheadTest(parameterized.TestCase):
  @settings(deadline=None, max_examples=25)
  @given(
    st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=3), max_size=8),
    st.lists(st.sampled_from(['', '1', '2']), max_size=8),
  )
  def test_each_example_once_and_batches_one_iteration_later(self, plan, gone):
    found = {}
    for ahead in (False, True):
      made, stream, _ = _coordinator(3, ahead=ahead)
      given_ = iter(plan)
      made.batching = mock.Mock(barrier=True)
      made.batching.assign.side_effect = lambda released, given_=given_: dict(
        zip(range(3), next(given_, (4, 4, 4)), strict=True)
      )
      made.start(0.0)
      sizes, used, alive = [], [], {0, 1, 2}
      for step in range(8):
        if step < len(gone) and gone[step]:
          index = int(gone[step])
          if index in alive:
            made.leave(index, step, '')
            alive.remove(index)
        sizes.append({k: made.workers[k].examples for k in sorted(alive)})
        for k in sorted(alive):
          used += [p for r in made.workers[k].ranges for p in range(*r)]
        dealt = {k: made.workers[k].ahead for k in alive}
        for k in sorted(alive):
          _push(made, k, step)
        if ahead:
          for k in alive:
            self.assertEqual(made.workers[k].ranges, dealt[k])
      self.assertLen({*used}, len(used))
      self.assertEqual(stream.used, len(used))
      held = sum(b - a for a, b in stream.outstanding())
      self.assertEqual(stream.used + held, stream.cursor)
      found[ahead] = sizes
    self.assertEqual(found[True][:1], found[False][:1])
    for before, after in zip(found[False], found[True][1:], strict=False):
      for k in after:
        self.assertEqual(after[k], before[k])


class DealingTest(parameterized.TestCase):
  def test_it_deals_this_iteration_and_the_next(self):
    made, _, _ = _coordinator(2)
    made.start(0.0)
    said = []
    dealing = Dealing(made, lambda k, deal: said.append((k, deal)))
    dealing.begin(0)
    self.assertEqual(dealing.newest, -1)
    dealing.send(3, 0, (0, 1))
    dealing.send(3, 1, (0, 1))
    for k in range(2):
      _push(made, k, 1.0)
    self.assertEqual(dealing.newest, 1)
    self.assertEqual([deal.iteration for _, deal in said], [0, 0, 1, 1])
    self.assertEqual({deal.total for _, deal in said}, {16})
    ranges = [deal.ranges for _, deal in said]
    self.assertEqual(ranges[2:], [w.ranges for w in made.workers])
    positions = [p for each in ranges for r in each for p in range(*r)]
    self.assertCountEqual(positions, range(32))
    self.assertLessEqual(dealing.at(0)[0], time.monotonic())
    with self.assertRaises(KeyError):
      dealing.at(0)


if __name__ == '__main__':
  absltest.main()
