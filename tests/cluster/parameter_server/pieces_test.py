"""Tests for pieces, against one server of the whole share."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest

from cluster.parameter_server.pieces import Pieces
from cluster.pipelining import MAX_PIECES
from learning.learner import TaskLearner
from wire import dense
from wire.codec import Payload

_KEYS = [(0, 0), (1, 0), (2, 3)]


def _server(params, stats):
  return TaskLearner(
    params=params,
    stats=stats,
    tx=optax.sgd(1.0, momentum=0.9),
    schedule=lambda examples, updates: 0.1 / (1 + examples),
    reduction='sum',
    num_workers=3,
    worker_batch=4,
  )


def _params():
  rng = np.random.default_rng(5)
  return jnp.array(rng.normal(size=100), jnp.float32)


def _create_pieces():
  return Pieces(
    _server, _params(), wire=dense.make(dtype='float32'), count=MAX_PIECES
  )


def _pushes(count):
  rng = np.random.default_rng(6)
  return rng.integers(-8, 8, (count, 100)).astype(np.float32)


class PiecesTest(absltest.TestCase):
  def test_pieces_equal_a_server_without_pieces(self):
    pipe, whole = _create_pieces(), _server(_params(), ())
    for step in range(3):
      pushes = _pushes(3) * (step + 1)
      _expect(pipe, dict.fromkeys(_KEYS, (4, 1.0)))
      for key, push in zip(_KEYS, pushes, strict=True):
        _send(pipe, key, push)
      served = [*pipe.complete_from(0)]
      for key in _KEYS:
        pipe.add(step, key)
      pipe.commit(step)
      total = jnp.array(pushes.sum(axis=0))  # Integers: any order is exact.
      whole.add(step, Payload(total, ()), 12)
      whole.commit(step)

      _assert_close(pipe.params, whole.params)
      sent = _vector(pipe).view(np.float32)
      np.testing.assert_array_equal(sent, pipe.params)
      np.testing.assert_array_equal(np.concatenate(served), _vector(pipe))
    self.assertEqual((pipe.version, pipe.examples), (3, 36))
    jax.tree.map(_assert_close, pipe.state(), whole.state())

  def test_a_piece_travels_back_before_the_next_is_sent(self):
    pipe = _create_pieces()
    _expect(pipe, dict.fromkeys(_KEYS, (4, 1.0)))
    sizes = np.cumsum([0, *pipe.sizes])
    pushes = _pushes(3)
    for number in range(5):
      for key, push in zip(_KEYS, pushes, strict=True):
        self.assertEmpty([*pipe.complete_from(number)])
        chunk = push[sizes[number] : sizes[number + 1]]
        is_complete = pipe.take(key, number, chunk.view(np.uint8))
        self.assertEqual(is_complete, key == _KEYS[-1])
      (piece,) = pipe.complete_from(number)
      self.assertLen(piece, 4 * pipe.sizes[number])

  def test_pieces_ahead_are_no_version_before_the_coordinator_commits(self):
    pipe = _create_pieces()
    start = pipe.state()
    _expect(pipe, dict.fromkeys(_KEYS, (4, 1.0)))
    for key in _KEYS:
      _send(pipe, key, np.ones(100, np.float32))
    np.testing.assert_array_equal(pipe.params, start['params'])
    jax.tree.map(np.testing.assert_array_equal, pipe.state(), start)
    self.assertFalse((_vector(pipe).view(np.float32) == pipe.params).any())

  def test_a_checkpoint_holds_the_sum_of_counted_pushes(self):
    pipe, whole = _create_pieces(), _server(_params(), ())
    _expect(pipe, dict.fromkeys(_KEYS, (4, 1.0)))
    pushes = _pushes(3)
    for key, push in zip(_KEYS, pushes, strict=True):
      _send(pipe, key, push)
    for key, push in zip(_KEYS[:2], pushes, strict=False):
      pipe.add(7, key)
      whole.add(7, Payload(jnp.array(push), ()), 4)
    state = pipe.state()
    jax.tree.map(np.testing.assert_array_equal, state, whole.state())
    pipe.leave(_KEYS[2])
    pipe.commit(7)
    again = _create_pieces()
    again.restore(state)
    again.commit(7)
    for each in (pipe, again):
      np.testing.assert_array_equal(each.params, again.params)
      np.testing.assert_array_equal(_vector(each), _vector(again))

  def test_a_worker_that_leaves_is_not_awaited_and_does_not_count(self):
    pipe = _create_pieces()
    self.assertTrue(_expect(pipe, dict.fromkeys(_KEYS, (4, 1.0))))
    start = np.asarray(pipe.params)
    for number in range(2):  # The third worker dies after two pieces.
      size = pipe.sizes[number]
      pipe.take(_KEYS[2], number, np.ones(size, np.float32).view(np.uint8))
    for key in _KEYS[:2]:
      _send(pipe, key, np.ones(100, np.float32))
    ahead, _ = pipe.complete_from(0)  # Pieces of all three workers.
    pipe.leave(_KEYS[2])
    self.assertLen(list(pipe.complete_from(1)), MAX_PIECES - 1)
    for key in _KEYS[:2]:
      pipe.add(0, key)
    pipe.commit(0)
    self.assertFalse(_expect(pipe, dict.fromkeys(_KEYS[:2], (4, 1.0))))
    self.assertFalse((ahead == _vector(pipe)[: ahead.size]).all())
    # The mean gradient is the same, the displacement that of its examples.
    step = start - np.asarray(pipe.params)
    np.testing.assert_allclose(step, 2 / 8 * 8 * 0.1 / 4, rtol=1e-5)

  def test_a_superstep_without_workers_changes_nothing(self):
    pipe = _create_pieces()
    start = pipe.state()
    for _ in range(2):
      _expect(pipe, {(0, 0): (4, 1.0)})
      _send(pipe, (0, 0), _pushes(1)[0])
      pipe.leave((0, 0))
      self.assertFalse(_expect(pipe, {}))
      jax.tree.map(np.testing.assert_array_equal, pipe.state(), start)
      np.testing.assert_array_equal(_vector(pipe).view(np.float32), pipe.params)

  def test_its_state_equals_that_of_a_server_without_pieces(self):
    pipe = _create_pieces()
    _expect(pipe, {(0, 0): (4, 1.0)})
    _send(pipe, (0, 0), _pushes(1)[0])
    pipe.add(0, (0, 0))
    pipe.commit(0)
    whole = _server(_params(), ())
    whole.restore(pipe.state())
    again = _create_pieces()
    again.restore(whole.state())
    jax.tree.map(np.testing.assert_array_equal, again.state(), pipe.state())
    np.testing.assert_array_equal(_vector(again), _vector(pipe))


def _vector(pipe):
  return np.concatenate(pipe.outgoing())


def _assert_close(one, other):
  # XLA may round multiply-and-add once or twice.
  np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def _expect(pipe, released):
  valid = pipe.expect(released)
  for key, (examples, _) in released.items():
    pipe.weigh(key, examples)
  return valid


def _send(pipe, key, push):
  ends = np.cumsum(pipe.sizes)[:-1]
  for number, piece in enumerate(np.split(push, ends)):
    pipe.take(key, number, piece.view(np.uint8))


if __name__ == '__main__':
  absltest.main()
