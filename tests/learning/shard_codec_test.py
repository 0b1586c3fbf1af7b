"""Tests for learning.shard_codec."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from learning.shard_codec import ShardCodec, byte_views
from wire import dense
from wire.codec import Payload


def _tree(seed, *shapes):
  rng = np.random.default_rng(seed)
  return {
    f'leaf{number}': jnp.array(rng.normal(size=shape), jnp.float32)
    for number, shape in enumerate(shapes)
  }


def _ravel(tree):
  leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(tree)]
  return np.concatenate(leaves) if leaves else np.zeros(0, np.float32)


_PARAMS = _tree(0, (3, 5), (7,), (2, 2, 2))
_STATS = _tree(1, (4,), (3,))


def _codec(params, stats, servers, wire=None):
  wire = wire or dense.make(dtype='float32')
  return ShardCodec(params, stats, servers=servers, wire=wire)


def _carry(message):
  """Returns the bytes of a message, as a receiver has them."""
  return np.concatenate([np.empty(0, np.uint8), *byte_views(message)])


class ShardCodecTest(parameterized.TestCase):
  @parameterized.parameters(
    (1, _STATS, 'float32'),
    (2, (), 'float32'),
    (3, _STATS, 'bfloat16'),
    (7, (), 'bfloat16'),
    (2, _STATS, 'float16'),
  )
  def test_pushes_and_pulls_arrive(self, servers, stats, dtype):
    codec = _codec(_PARAMS, stats, servers, dense.make(dtype=dtype))
    payload = Payload(_PARAMS, stats)

    messages, _, finite = codec.encode(codec.init(0), payload)

    self.assertTrue(finite)
    sent = [_carry(message) for message in messages]
    pushed = [
      codec.decode(codec.push_message(bytes_, k), k)
      for k, bytes_ in enumerate(sent)
    ]
    pulls = [
      _carry(codec.encode_pull(*codec.initial_shard(server)))
      for server in range(servers)
    ]
    pulled = codec.decode_pulls(
      [codec.pull_message(p, k) for k, p in enumerate(pulls)]
    )
    rounded = jax.tree.map(
      lambda leaf: np.asarray(leaf.astype(dtype).astype(jnp.float32)), _PARAMS
    )
    expected = rounded, stats  # Which are never rounded.
    for got in (codec.join(pushed), pulled):
      jax.tree.map(np.testing.assert_array_equal, got, expected)
    for server in range(servers):
      self.assertLen(sent[server], codec.push_bytes(server))
      self.assertLen(pulls[server], codec.pull_bytes(server))

  @parameterized.parameters(1, 2, 5)
  def test_shares_are_consecutive_and_even(self, servers):
    codec = _codec(_PARAMS, _STATS, servers)
    shares = [codec.initial_shard(server) for server in range(servers)]
    for parts, whole in zip(
      zip(*shares, strict=True), (_PARAMS, _STATS), strict=True
    ):
      np.testing.assert_array_equal(np.concatenate(parts), _ravel(whole))
      sizes = [len(part) for part in parts]
      self.assertLessEqual(max(sizes) - min(sizes), 1)

  def test_a_version_without_codec_is_exact(self):
    codec = _codec(_PARAMS, _STATS, 2, dense.make(dtype='bfloat16'))
    whole = [_carry(codec.initial_shard(k)).view(np.float32) for k in range(2)]
    parts = [codec.split_shard(vector, k) for k, vector in enumerate(whole)]
    got = codec.join(parts)
    jax.tree.map(np.testing.assert_array_equal, got, (_PARAMS, _STATS))

  @parameterized.parameters(np.nan, np.inf, -np.inf)
  def test_numbers_that_are_not_finite_are_reported(self, bad):
    params = _PARAMS | {'leaf1': _PARAMS['leaf1'].at[3].set(bad)}
    params['empty'] = jnp.zeros(0)
    codec = _codec(params, (), 2)
    self.assertFalse(codec.encode(codec.init(0), Payload(params, ()))[2])

  def test_bad_input_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'servers: expected at most 7'):
      _codec(_PARAMS, _STATS, 8)
    with self.assertRaisesRegex(ValueError, 'float32 leaves, got int32'):
      _codec({'a': jnp.arange(3)}, (), 1)


if __name__ == '__main__':
  absltest.main()
