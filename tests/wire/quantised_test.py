"""Tests for wire.quantised, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from learning.shard_codec import ShardCodec, byte_views
from tests.support import small
from tests.support.collectives import jit_codec
from wire import quantised
from wire.codec import Payload

_BITS = (8, 4, 2)
_CLIPS = 2.0 ** -np.arange(0, 4, 0.5)


def _wire(bits, chunk, *, error_feedback=True, seed=0):
  return quantised.make(
    bits=bits, chunk=chunk, error_feedback=error_feedback, seed=seed
  )


def _codec(bits, chunk, **settings):
  return jit_codec(_wire(bits, chunk, **settings).push)


def _vectors(seed, *shape):
  rng = np.random.default_rng(seed)
  return rng.standard_t(3, size=shape).astype(np.float32)


def _size_bytes(message):
  return sum(leaf.nbytes for leaf in jax.tree.leaves(message))


def _packed(whole, bits):
  """Returns the bytes of integers, bit by bit, the lowest bit first."""
  each = [[value >> bit & 1 for bit in range(bits)] for value in whole.tolist()]
  return np.packbits(np.array(each, np.uint8).reshape(-1), bitorder='little')


def _chunk_errors(vector, chunk, largest, clip):
  """Returns each chunk's squared error, float64, with one clip."""
  rows = np.pad(vector.astype(np.float64), (0, -vector.size % chunk))
  rows = rows.reshape(-1, chunk)
  steps = np.abs(rows).max(1, keepdims=True) * clip / largest
  whole = np.clip(np.round(rows / steps), -largest, largest)
  return np.square(rows - whole * steps).sum(1)


class PackingTest(parameterized.TestCase):
  @parameterized.product(bits=_BITS, n=[0, 5, 258])
  def test_bytes_are_those_of_numpy_bit_for_bit(self, bits, n):
    rng = np.random.default_rng(n)
    high = 2 ** (bits - 1)
    whole = rng.integers(-high, high, n).astype(np.int8)
    if n == 258:
      whole = (np.arange(n) % (2 * high) - high).astype(np.int8)

    packed = quantised.pack(jnp.asarray(whole), bits)

    expected = _packed(whole, bits)
    self.assertEqual(packed.dtype, np.uint8)
    self.assertLen(packed, -(-n * bits // 8))
    np.testing.assert_array_equal(packed, expected)
    unpacked = quantised.unpack(jnp.asarray(expected), bits, n)
    self.assertEqual(unpacked.dtype, np.int8)
    np.testing.assert_array_equal(unpacked, whole)


class ErrorFeedbackTest(parameterized.TestCase):
  @parameterized.product(bits=_BITS, sizes=[(23, 5), (7, 9)])
  def test_messages_are_those_of_numpy(self, bits, sizes):
    (n, chunk), largest = sizes, 2 ** (bits - 1) - 1
    codec = _codec(bits, chunk)
    state, left = codec.init(n, 0), np.zeros(n, np.float32)
    pushed, arrived = np.zeros(n), np.zeros(n)
    for vector in _vectors(bits, 6, n):
      total = left + vector
      message, state = codec.encode(state, jnp.asarray(vector))
      scales, packed = map(np.asarray, message)
      each = np.repeat(scales, chunk)[:n]
      whole = np.clip(np.round(total / each), -largest, largest)
      np.testing.assert_array_equal(packed, _packed(whole.astype(int), bits))
      decoded = np.asarray(codec.decode(message, n).vector)
      np.testing.assert_array_equal(decoded, whole * each)
      np.testing.assert_allclose(
        state.residual, total - decoded, atol=1e-6 * np.abs(total).max()
      )
      left = np.asarray(state.residual)
      self.assertEqual(_size_bytes(message), codec.size_bytes(n))
      pushed += vector.astype(np.float64)
      arrived += decoded

      # No clip of half octaves has a smaller error; 8 bits clip nothing.
      clips = _CLIPS if bits < 8 else _CLIPS[:1]
      errors = [_chunk_errors(total, chunk, largest, clip) for clip in clips]
      padded = np.pad(left.astype(np.float64), (0, -n % chunk))
      found = np.square(padded.reshape(-1, chunk)).sum(1)
      np.testing.assert_allclose(found, np.min(errors, 0), 1e-3, 1e-10)
    self.assertEqual(
      codec.size_bytes(n), -(-n * bits // 8) + 4 * -(-n // chunk)
    )
    np.testing.assert_allclose(arrived + left, pushed, atol=1e-4)

  @parameterized.parameters(*_BITS)
  def test_residuals_of_a_constant_gradient_stay_bounded(self, bits):
    n, codec = 300, _wire(bits, 64).push
    vector = jnp.asarray(_vectors(0, n))

    def step(state, _):
      total = state.residual + vector
      _, state = codec.encode(state, vector)
      return state, (total, state.residual)

    _, (totals, left) = jax.lax.scan(step, codec.init(n, 0), length=300)
    self.assertTrue((np.abs(left) <= np.abs(totals) * (1 + 1e-6)).all())
    norms = np.linalg.norm(left, axis=1) / np.linalg.norm(vector)
    self.assertLess(norms[150:].max(), 1.1 * norms[:150].max())
    self.assertLess(norms.max(), {8: 0.1, 4: 1.0, 2: 8.0}[bits])

  @parameterized.parameters(*_BITS)
  def test_zeros_and_whole_steps_are_exact(self, bits):
    largest, codec = 2.0 ** (bits - 1) - 1, _codec(bits, 4)
    vector = jnp.array([largest, -largest, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    message, state = codec.encode(codec.init(9, 0), vector)
    np.testing.assert_array_equal(codec.decode(message, 9).vector, vector)
    self.assertFalse(np.asarray(state.residual).any())

  @parameterized.product(bits=(8, 2), power=[-100, 120])
  def test_numbers_of_any_magnitude_are_rounded_alike(self, bits, power):
    codec, vector = _codec(bits, 8), _vectors(1, 40)
    expected, _ = codec.encode(codec.init(40, 0), jnp.asarray(vector))
    scaled = jnp.asarray(vector * np.float32(2) ** power)
    found, _ = codec.encode(codec.init(40, 0), scaled)
    np.testing.assert_array_equal(found[1], expected[1])

  @parameterized.parameters(*_BITS)
  def test_a_number_that_is_not_finite_spoils_its_chunk_alone(self, bits):
    vector = _vectors(2, 10)
    shards = ShardCodec(
      jnp.asarray(vector),
      (),
      servers=1,
      wire=_wire(bits, 4),
    )

    def send(vector):
      (message,), _, is_finite = shards.encode(
        shards.init(0), Payload(jnp.asarray(vector), ()), 0, 1.0
      )
      return np.asarray(shards.decode(message, 0).gradient), bool(is_finite)

    clean, is_finite = send(vector)
    self.assertTrue(is_finite)
    for value in (np.nan, np.inf, -np.inf):
      spoiled = vector.copy()
      spoiled[5] = value
      found, is_finite = send(spoiled)
      self.assertFalse(is_finite)
      self.assertFalse(np.isfinite(found[4:8]).any())
      np.testing.assert_array_equal(found[:4], clean[:4])
      np.testing.assert_array_equal(found[8:], clean[8:])


class RandomTest(parameterized.TestCase):
  @parameterized.parameters(*_BITS)
  def test_numbers_are_rounded_to_a_neighbouring_step(self, bits):
    n, largest = 23, 2 ** (bits - 1) - 1
    codec = _codec(bits, 5, error_feedback=False, seed=3)
    vector = _vectors(0, n)
    message, state = codec.encode(codec.init(n, 0), jnp.asarray(vector))
    scales = [
      np.abs(vector[start : start + 5]).max() / largest
      for start in range(0, n, 5)
    ]
    np.testing.assert_allclose(message[0], scales, rtol=1e-6)
    self.assertEqual(_size_bytes(message), -(-n * bits // 8) + 4 * 5)
    self.assertEqual(codec.size_bytes(n), _size_bytes(message))
    each = np.repeat(np.asarray(message[0]), 5)[:n]
    whole = np.asarray(codec.decode(message, n).vector) / each
    np.testing.assert_allclose(whole, np.round(whole), atol=1e-5)
    self.assertLess(np.abs(whole - vector / each).max(), 1 + 1e-5)
    # The next vector is rounded in another way, and all is repeatable.
    again, _ = codec.encode(codec.init(n, 0), jnp.asarray(vector))
    np.testing.assert_array_equal(again[1], message[1])
    for other in (state, codec.init(n, 1)):
      differs, _ = codec.encode(other, jnp.asarray(vector))
      self.assertTrue((differs[1] != message[1]).any())

  @parameterized.parameters(*_BITS)
  def test_the_expected_value_is_exact(self, bits):
    n, draws = 40, 4000
    codec = _wire(bits, 40, error_feedback=False).push
    vector = jnp.asarray(_vectors(2, n))

    def draw(state, _):
      message, state = codec.encode(state, vector)
      return state, codec.decode(message, n).vector

    _, found = jax.lax.scan(draw, codec.init(n, 0), length=draws)
    scale = float(jnp.max(jnp.abs(vector))) / (2 ** (bits - 1) - 1)
    # A step between neighbours has a standard deviation of half of it at most.
    error = np.abs(np.asarray(found, np.float64).mean(axis=0) - vector)
    self.assertLess(error.max(), 5 * scale / 2 / draws**0.5)
    self.assertGreater(np.std(found, axis=0).max(), 0.3 * scale)


class ShardTest(parameterized.TestCase):
  @parameterized.product(bits=_BITS, servers=[1, 3])
  def test_shards_of_any_length_arrive_and_residuals_move(self, bits, servers):
    params = {
      'bias': jnp.asarray(_vectors(0, 7)),
      'kernel': jnp.asarray(_vectors(1, 13, 5)),
    }
    wire = _wire(bits, 6)
    codec = ShardCodec(params, (), servers=servers, wire=wire)
    messages, states, _ = codec.encode(
      codec.init(0), Payload(params, ()), 0, 1.0
    )
    for server, message in enumerate(messages):
      sent = np.concatenate(byte_views(message))
      n = codec.sizes[server][0]
      self.assertLen(sent, -(-n * bits // 8) + 4 * -(-n // 6))
      self.assertEqual(codec.push_bytes(server), sent.size)
      received = codec.push_message(sent, server)
      jax.tree.map(np.testing.assert_array_equal, received, message)
    arrived, _ = codec.join(
      [codec.decode(each, server) for server, each in enumerate(messages)]
    )
    residuals = codec.residuals(states)
    for name, pushed in params.items():
      (key,) = (key for key in residuals if key.endswith(name))
      np.testing.assert_allclose(
        arrived[name] + residuals[key], pushed, atol=1e-6
      )
    # A run with another number of servers inherits them.
    other = ShardCodec(params, (), servers=4, wire=wire)
    moved = other.residuals(other.inherit(other.init(1), [residuals]))
    jax.tree.map(np.testing.assert_array_equal, moved, residuals)


class RejectionTest(absltest.TestCase):
  def test_rejects_a_seed_with_error_feedback(self):
    message = 'seed: expected 0, as error_feedback rounds nothing at random'
    with self.assertRaisesRegex(ValueError, f'config.wire.quantised.{message}'):
      small.build(small.config(wire__name='quantised', wire__quantised__seed=1))


if __name__ == '__main__':
  absltest.main()
