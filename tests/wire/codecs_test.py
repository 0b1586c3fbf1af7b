"""Tests for wire.topk and wire.lowrank, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from learning.shard_codec import ShardCodec, byte_views
from tests.support import collectives
from tests.support.collectives import jit_codec
from wire import lowrank, topk
from wire.codec import Payload, Rows
from wire.multi_round import MultiRoundAllreduce


def _vectors(seed, *shape):
  rng = np.random.default_rng(seed)
  return rng.normal(size=shape).astype(np.float32)


def _size_bytes(message):
  return sum(leaf.nbytes for leaf in jax.tree.leaves(message))


class TopKTest(parameterized.TestCase):
  def test_the_largest_numbers_are_sent_and_others_stay_in_the_residual(self):
    n, count, codec = 50, 5, jit_codec(topk.make(sparsity=0.9).push)
    state, left = codec.init(n, 0), np.zeros(n, np.float32)
    pushed, arrived = np.zeros(n), np.zeros(n)
    for gradient in _vectors(0, 8, n):
      left += gradient
      places = np.argsort(-np.abs(left), kind='stable')[:count]
      sent = np.zeros(n, np.float32)
      sent[places] = left[places]
      left[places] = 0

      message, state = codec.encode(state, jnp.asarray(gradient))
      np.testing.assert_array_equal(codec.decode(message, n).vector, sent)
      np.testing.assert_array_equal(state.residual, left)
      self.assertEqual(_size_bytes(message), 8 * count)
      pushed += gradient.astype(np.float64)
      arrived += sent
    self.assertEqual(codec.size_bytes(n), 8 * count)
    np.testing.assert_allclose(arrived + left, pushed, atol=1e-6)

  def test_the_whole_vector_is_sent_without_sparsity(self):
    codec = jit_codec(topk.make(sparsity=0.0).push)
    message, state = codec.encode(codec.init(9, 0), jnp.arange(9.0))
    np.testing.assert_array_equal(
      codec.decode(message, 9).vector, np.arange(9.0)
    )
    self.assertEqual((codec.size_bytes(9), message.nbytes), (36, 36))
    self.assertFalse(state.residual.any())


_ROWS = [Rows(3, 6, 5), Rows(40, 4, 4)]
_N = 60


def _power_step(matrix, right):
  left, _ = np.linalg.qr(matrix @ right)
  return left, matrix.T @ left


class LowRankTest(parameterized.TestCase):
  def test_factors_follow_a_power_iteration_in_float64(self):
    codec = jit_codec(lowrank.make(rank=1).for_matrices(_ROWS).push)
    state, kept = codec.init(_N, 0), np.zeros(_N)
    rights = [np.asarray(each, np.float64) for each in state.replicated]
    for gradient in _vectors(0, 4, _N).astype(np.float64):
      wanted = kept + gradient
      sent = wanted.copy()
      for number, each in enumerate(_ROWS):
        place = slice(each.start, each.start + each.rows * each.columns)
        matrix = wanted[place].reshape(each.rows, each.columns)
        left, rights[number] = _power_step(matrix, rights[number])
        sent[place] = (left @ rights[number].T).reshape(-1)
      kept = wanted - sent

      message, state = codec.encode(state, jnp.asarray(gradient, jnp.float32))
      np.testing.assert_allclose(
        codec.decode(message, _N).vector, sent, atol=1e-5
      )
      np.testing.assert_allclose(state.residual, kept, atol=1e-5)
    size = 4 * (6 + 5 + 4 + 4 + _N - 30 - 16)
    self.assertEqual((_size_bytes(message), codec.size_bytes(_N)), (size, size))

  @parameterized.parameters(1, 2)
  def test_matrices_of_the_rank_are_sent_exactly(self, rank):
    rng = np.random.default_rng(rank)
    matrix = rng.normal(size=(20, rank)) @ rng.normal(size=(rank, 10))
    vector = jnp.asarray(matrix.reshape(-1), jnp.float32)
    codec = jit_codec(
      lowrank.make(rank=rank).for_matrices([Rows(0, 20, 10)]).push
    )
    state, arrived = codec.init(200, 0), 0.0
    for step in range(3):
      message, state = codec.encode(state, vector)
      arrived += codec.decode(message, 200).vector
      np.testing.assert_allclose(arrived, (step + 1) * vector, atol=1e-4)
    np.testing.assert_allclose(state.residual, 0, atol=1e-5)

  def test_matrices_that_would_not_become_smaller_are_sent_as_they_are(self):
    codec = jit_codec(lowrank.make(rank=1).for_matrices([Rows(0, 2, 2)]).push)
    vector = jnp.asarray([1, 2, 3, 5], jnp.float32)
    message, state = codec.encode(codec.init(4, 0), vector)
    np.testing.assert_array_equal(codec.decode(message, 4).vector, vector)
    np.testing.assert_array_equal(state.residual, 0)

  def test_the_power_iteration_recovers_from_zeros(self):
    codec = jit_codec(lowrank.make(rank=1).for_matrices([Rows(0, 4, 4)]).push)
    _, state = codec.encode(codec.init(16, 0), jnp.zeros(16))
    vector = jnp.asarray(
      np.outer([1, 2, 3, 4], [4, 3, 2, 1]).reshape(-1), jnp.float32
    )
    for _ in range(3):
      message, state = codec.encode(state, vector)
    np.testing.assert_allclose(state.residual, 0, atol=1e-4)
    del message

  @parameterized.parameters(False, True)
  def test_an_allreduce_is_a_power_step_of_the_summed_matrix(self, uses_numpy):
    codec = jit_codec(lowrank.make(rank=2).for_matrices(_ROWS[:1]).push)
    states = [codec.init(_N, k) for k in range(3)]
    right = np.asarray(states[0].replicated[0], np.float64)
    kept = np.zeros((3, _N))
    for step in range(3):
      vectors = _vectors(step, 3, _N)
      wanted = kept + vectors
      place = slice(3, 33)
      matrices = wanted[:, place].reshape(3, 6, 5)
      left, _ = np.linalg.qr(matrices.sum(0) @ right)
      each = [matrix.T @ left for matrix in matrices]
      right = sum(each)
      sums, states, sizes = collectives.allreduce(
        codec, states, vectors, uses_numpy=uses_numpy
      )
      total_ = wanted.sum(0)
      total_[place] = (left @ right.T).reshape(-1)
      for number, (got, state) in enumerate(zip(sums, states, strict=True)):
        np.testing.assert_allclose(got.vector, total_, atol=1e-4)
        np.testing.assert_array_equal(got.vector, sums[0].vector)
        np.testing.assert_array_equal(
          state.replicated[0], states[0].replicated[0]
        )
        own = wanted[number].copy()
        own[place] = (left @ each[number].T).reshape(-1)
        kept[number] = wanted[number] - own
        np.testing.assert_allclose(state.residual, kept[number], atol=1e-4)
      self.assertEqual(sizes, [4 * (12 + _N - 30), 4 * 10])

  def test_numpy_and_jax_allreduces_agree_at_any_scale(self):
    rows = [Rows(3, 300, 200), Rows(60_010, 6, 40_000)]
    wire = lowrank.make(rank=2)
    n = 300_020
    allreduces = [
      MultiRoundAllreduce(wire, n, rows, uses_numpy=uses_numpy)
      for uses_numpy in (False, True)
    ]
    states = [{k: each.init(k) for k in range(2)} for each in allreduces]
    for step, scale in enumerate((1.0, 4.0, 0.5)):
      vectors = dict(enumerate(scale * _vectors(step, 2, n)))
      ends = [
        each.reduce(own, vectors, stage=0, scale=scale)
        for each, own in zip(allreduces, states, strict=True)
      ]
      jax.tree.map(
        lambda *both: np.testing.assert_allclose(*both, atol=1e-3), *ends
      )
      states = [after for _, after in ends]

  @parameterized.parameters(1, 3)
  def test_shares_of_servers_have_matrices_of_whole_rows(self, servers):
    params = {
      'bias': jnp.zeros(7),
      'conv': jnp.asarray(_vectors(0, 3, 3, 2, 8)),
      'dense': jnp.asarray(_vectors(1, 20, 6)),
    }
    codec = ShardCodec(params, (), servers=servers, wire=lowrank.make(rank=1))
    messages, states, _ = codec.encode(
      codec.init(0), Payload(params, ()), 0, 1.0
    )
    for server, message in enumerate(messages):
      self.assertLen(
        np.concatenate(byte_views(message)), codec.push_bytes(server)
      )
    arrived, _ = codec.join(
      [codec.decode(each, server) for server, each in enumerate(messages)]
    )
    np.testing.assert_array_equal(arrived['bias'], params['bias'])
    kept, _ = codec.join([(state.residual, ()) for state in states])
    jax.tree.map(
      lambda *parts: np.testing.assert_allclose(
        parts[0] + parts[1], parts[2], atol=1e-5
      ),
      *(arrived, kept, params),
    )
    if servers == 1:  # 18 x 8 and 20 x 6.
      size = 4 * (18 + 8 + 20 + 6 + 7)
      self.assertEqual(codec.push_bytes(0), size)

  def test_rejects_vectors_without_matrices(self):
    wire = lowrank.make(rank=1)
    message = 'rank: expected vectors with matrices, as of a model, got .none'
    with self.assertRaisesRegex(ValueError, message):
      wire.push_bytes(1000, 0)
    with self.assertRaisesRegex(ValueError, message):
      ShardCodec(jnp.zeros(9), (), servers=1, wire=wire)


if __name__ == '__main__':
  absltest.main()
