"""Tests for data.stream."""

import dataclasses
import itertools
import json

import hypothesis
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from data.stream import Stream

_TAKE, _DONE, _LEAVE = 'take', 'done', 'leave'
_GIVE_BACK = 'give_back'


def _stream(**changed) -> Stream:
  return Stream(**({'num_examples': 10, 'seed': 0, 'ahead': 1} | changed))


def _positions(ranges) -> list[int]:
  return [p for start, stop in ranges for p in range(start, stop)]


class _Model:
  """The stream again, one position at a time."""

  def __init__(self, ahead):
    self.ahead = ahead
    self.cursor = 0
    self.returned = set()
    self.leases = {}
    self.in_use = {}
    self.done_ = []

  def take(self, worker, count):
    lease = self.leases.setdefault(worker, [])
    while len(lease) < count + self.ahead * count:
      lease.append(self._next())
    self.in_use[worker] = [lease.pop(0) for _ in range(count)]
    return sorted(self.in_use[worker])

  def _next(self):
    if self.returned:
      first = min(self.returned)
      self.returned.remove(first)
      return first
    self.cursor += 1
    return self.cursor - 1

  def done(self, worker):
    self.done_ += self.in_use.pop(worker)

  def give_back(self, worker):
    self.returned.update(self.in_use.pop(worker))

  def leave(self, worker):
    self.returned.update(self.in_use.pop(worker, []))
    self.returned.update(self.leases.pop(worker, []))

  def outstanding(self):
    held = [*self.leases.values(), *self.in_use.values(), self.returned]
    return sorted(itertools.chain(*held))


# Random events of a worker: it leaves now and then; else it takes if it can,
# and is done, or gives its examples back, if not.
_EVENTS = st.lists(
  st.tuples(
    st.integers(0, 4),
    st.integers(1, 12),
    st.sampled_from([_DONE] * 4 + [_GIVE_BACK, _LEAVE]),
  ),
  max_size=60,
)


def _play(stream, events):
  """Yields (event, worker, count, result of take) of each event."""
  busy = set()
  for worker, count, end in events:
    if end == _LEAVE:
      stream.leave(worker)
      busy.discard(worker)
      yield _LEAVE, worker, count, None
    elif worker in busy:
      getattr(stream, end)(worker)
      busy.remove(worker)
      yield end, worker, count, None
    else:
      busy.add(worker)
      yield _TAKE, worker, count, stream.take(worker, count)


class StreamTest(parameterized.TestCase):
  @hypothesis.settings(deadline=None)
  @hypothesis.given(events=_EVENTS, ahead=st.integers(0, 3))
  def test_equals_a_model_of_single_positions(self, events, ahead):
    stream, model = _stream(ahead=ahead), _Model(ahead)
    for event, worker, count, taken in _play(stream, events):
      if event == _TAKE:
        self.assertEqual(_positions(taken), model.take(worker, count))
        self.assertLen(stream.indices(taken), count)
      else:
        getattr(model, event)(worker)
      outstanding = _positions(stream.outstanding())
      self.assertEqual(outstanding, model.outstanding())
      self.assertEqual(stream.used, len(model.done_))
      self.assertEqual(stream.cursor, model.cursor)
      # Nothing is lost and nothing is used twice.
      self.assertEqual(
        sorted(model.done_ + outstanding), list(range(stream.cursor))
      )

  @hypothesis.settings(deadline=None)
  @hypothesis.given(events=_EVENTS)
  def test_ranges_are_merged(self, events):
    stream = _stream()
    for _, _, _, taken in _play(stream, events):
      for ranges in (taken or (), stream.returned, stream.outstanding()):
        bounds = list(itertools.chain(*ranges))
        self.assertEqual(bounds, sorted(set(bounds)))

  @hypothesis.settings(deadline=None)
  @hypothesis.given(events=_EVENTS, cut=st.integers(0, 60))
  def test_state_survives_json(self, events, cut):
    stream = _stream()
    for _ in _play(stream, events[:cut]):
      pass
    state = json.loads(json.dumps(dataclasses.asdict(stream)))
    restored = Stream(**state)
    self.assertEqual(restored, stream)
    for worker in range(5):
      for each in (stream, restored):
        each.leave(worker)
      self.assertEqual(restored.take(worker, 7), stream.take(worker, 7))
    self.assertEqual(restored, stream)

  def test_each_epoch_is_another_permutation(self):
    stream = _stream(num_examples=100)
    epochs = [stream.indices(((100 * e, 100 * e + 100),)) for e in range(6)]
    for epoch in epochs:
      self.assertEqual(epoch.dtype, np.int64)
      self.assertEqual(sorted(epoch), list(range(100)))
    self.assertLen({tuple(epoch) for epoch in epochs}, 6)
    other = _stream(num_examples=100, seed=1)
    self.assertFalse(np.array_equal(other.indices(((0, 100),)), epochs[0]))
    again = _stream(num_examples=100).indices(((0, 100),))
    np.testing.assert_array_equal(again, epochs[0])

  def test_iterations_may_span_epochs(self):
    stream = _stream(num_examples=10, ahead=0)
    taken = stream.take(0, 27)
    self.assertEqual(taken, ((0, 27),))
    indices = stream.indices(taken)
    expected = [stream.indices(((p, p + 1),))[0] for p in range(27)]
    np.testing.assert_array_equal(indices, expected)
    self.assertEqual(np.bincount(indices).min(), 2)

  def test_indices_follow_the_order_of_the_ranges(self):
    stream = _stream()
    indices = stream.indices(((25, 28), (3, 5)))
    expected = [stream.indices(((p, p + 1),))[0] for p in (25, 26, 27, 3, 4)]
    np.testing.assert_array_equal(indices, expected)

  @parameterized.parameters(0, 1, 3)
  def test_examples_are_leased_ahead_of_use(self, ahead):
    stream = _stream(ahead=ahead)
    leased = []
    for _ in range(5):
      for worker, count in enumerate((2, 5)):
        taken = stream.take(worker, count)
        if len(leased) >= 2 * ahead and ahead:
          # These examples were known `ahead` iterations ago.
          self.assertContainsSubset(_positions(taken), leased[-2 * ahead])
        stream.done(worker)
        leased.append(_positions(stream.leases[worker]))
        self.assertLen(leased[-1], ahead * count)

  def test_positions_of_a_leaving_worker_are_issued_first(self):
    stream = _stream(ahead=1)
    self.assertEqual(stream.take(0, 3), ((0, 3),))
    self.assertEqual(stream.take(1, 2), ((6, 8),))
    stream.leave(0)
    self.assertEqual(stream.returned, ((0, 6),))
    stream.done(1)
    # Worker 1 continues with its lease and adds the returned examples to it.
    self.assertEqual(stream.take(1, 2), ((8, 10),))
    self.assertEqual(stream.leases[1], ((0, 2),))
    self.assertEqual(stream.take(2, 4), ((2, 6),))
    self.assertEqual(stream.leases[2], ((10, 14),))
    self.assertEqual(stream.outstanding(), ((0, 6), (8, 14)))

  def test_a_smaller_batch_uses_the_lease_up_first(self):
    stream = _stream(ahead=1)
    stream.take(0, 8)
    stream.done(0)
    self.assertEqual(stream.take(0, 3), ((8, 11),))
    self.assertEqual(stream.cursor, 16)

  def test_leaving_without_ever_taking_is_nothing(self):
    stream = _stream()
    stream.leave(3)
    self.assertEqual(stream, _stream())

  def test_taking_before_done_is_rejected(self):
    stream = _stream()
    stream.take(4, 2)
    with self.assertRaisesRegex(ValueError, 'worker: expected .* got 4'):
      stream.take(4, 2)

  def test_done_without_an_iteration_is_rejected(self):
    stream = _stream()
    stream.take(4, 2)
    with self.assertRaisesRegex(ValueError, r'one of \[4\], .* got 1'):
      stream.done(1)

  @parameterized.parameters(
    ({'num_examples': 0}, 'num_examples: expected at least 1, got 0'),
    ({'seed': -1}, 'seed: expected at least 0, got -1'),
    ({'ahead': -2}, 'ahead: expected at least 0, got -2'),
  )
  def test_rejects(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      _stream(**changed)

  @parameterized.parameters(0, -1)
  def test_rejects_empty_iterations(self, count):
    with self.assertRaisesRegex(ValueError, f'count: .* got {count}'):
      _stream().take(0, count)


if __name__ == '__main__':
  absltest.main()
