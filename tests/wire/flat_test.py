"""Tests for wire.flat: flat vectors, and shares cut anew."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from wire import dense
from wire.codec import Payload
from wire.flat import Flat, even, pieces, share, views


def _tree(seed, *shapes):
  rng = np.random.default_rng(seed)
  return {
    f'leaf{number}': jnp.array(rng.normal(size=shape), jnp.float32)
    for number, shape in enumerate(shapes)
  }


def _ravelled(tree):
  leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(tree)]
  return np.concatenate(leaves) if leaves else np.zeros(0, np.float32)


_PARAMS = _tree(0, (3, 5), (7,), (2, 2, 2))
_STATS = _tree(1, (4,), (3,))


def _flat(params, stats, servers, wire=None):
  wire = wire or dense.make(dtype='float32')
  return Flat(params, stats, servers=servers, wire=wire)


def _carried(message):
  """Returns the bytes of a message, as a receiver has them."""
  return np.concatenate([np.empty(0, np.uint8), *views(message)])


class FlatTest(parameterized.TestCase):
  @parameterized.parameters(
    (1, _STATS, 'float32'),
    (2, (), 'float32'),
    (3, _STATS, 'bfloat16'),
    (7, (), 'bfloat16'),
    (2, _STATS, 'float16'),
  )
  def test_pushes_and_pulls_arrive(self, servers, stats, dtype):
    flat = _flat(_PARAMS, stats, servers, dense.make(dtype=dtype))
    payload = Payload(_PARAMS, stats)

    messages, _, finite = flat.encode(flat.init(0), payload)

    self.assertTrue(finite)
    sent = [_carried(message) for message in messages]
    pushed = [
      flat.decode(flat.push_of(bytes_, k), k) for k, bytes_ in enumerate(sent)
    ]
    pulls = [
      _carried(flat.outgoing(*flat.initial(server)))
      for server in range(servers)
    ]
    pulled = flat.pulled([flat.pull_of(p, k) for k, p in enumerate(pulls)])
    rounded = jax.tree.map(
      lambda leaf: np.asarray(leaf.astype(dtype).astype(jnp.float32)), _PARAMS
    )
    expected = rounded, stats  # Which are never rounded.
    for got in (flat.joined(pushed), pulled):
      jax.tree.map(np.testing.assert_array_equal, got, expected)
    for server in range(servers):
      self.assertLen(sent[server], flat.push_bytes(server))
      self.assertLen(pulls[server], flat.pull_bytes(server))

  @parameterized.parameters(1, 2, 5)
  def test_shares_are_consecutive_and_even(self, servers):
    flat = _flat(_PARAMS, _STATS, servers)
    shares = [flat.initial(server) for server in range(servers)]
    for parts, whole in zip(
      zip(*shares, strict=True), (_PARAMS, _STATS), strict=True
    ):
      np.testing.assert_array_equal(np.concatenate(parts), _ravelled(whole))
      sizes = [len(part) for part in parts]
      self.assertLessEqual(max(sizes) - min(sizes), 1)

  def test_a_snapshot_is_exact(self):
    flat = _flat(_PARAMS, _STATS, 2, dense.make(dtype='bfloat16'))
    whole = [_carried(flat.initial(k)).view(np.float32) for k in range(2)]
    parts = [flat.split(vector, k) for k, vector in enumerate(whole)]
    got = flat.joined(parts)
    jax.tree.map(np.testing.assert_array_equal, got, (_PARAMS, _STATS))

  @parameterized.parameters(np.nan, np.inf, -np.inf)
  def test_what_is_not_finite_is_told(self, bad):
    params = _PARAMS | {'leaf1': _PARAMS['leaf1'].at[3].set(bad)}
    params['empty'] = jnp.zeros(0)
    flat = _flat(params, (), 2)
    self.assertFalse(flat.encode(flat.init(0), Payload(params, ()))[2])

  def test_sizes_are_split_evenly(self):
    self.assertEqual(even(10, 4), [3, 3, 2, 2])
    self.assertEqual(even(2, 3), [1, 1, 0])

  def test_bad_input_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'servers: expected at most 7'):
      _flat(_PARAMS, _STATS, 8)
    with self.assertRaisesRegex(ValueError, 'float32 leaves, got int32'):
      _flat({'a': jnp.arange(3)}, (), 1)


class PiecesTest(parameterized.TestCase):
  @parameterized.parameters(
    (1, 10**7, 64),  # So many at most,
    (1, 20 * 2**14 + 1, 20),  # of so many bytes at least.
    (3, 10**7, 21),
    (3, 20 * 2**14, 6),
    (3, 1, 1),
    (100, 10**7, 1),
  )
  def test_pieces_are_neither_many_nor_small(self, servers, size, count):
    self.assertEqual(pieces(servers, size), count)


class ShareTest(parameterized.TestCase):
  @parameterized.product(before=[1, 2, 3, 5], now=[1, 2, 4])
  def test_states_are_joined_and_cut_anew(self, before, now):
    whole = {
      'params': np.arange(11.0),
      'stats': np.arange(100.0, 106.0),
      'version': 3,
      'sums': {2: (Payload(np.arange(11.0) * 2, np.arange(6.0)), 40)},
    }

    def cut(index, count):
      first = np.cumsum([0, *even(11, count)])
      second = np.cumsum([0, *even(6, count)])
      one = slice(first[index], first[index + 1])
      other = slice(second[index], second[index + 1])
      payload, examples = whole['sums'][2]
      return {
        'params': jnp.array(whole['params'][one]),
        'stats': jnp.array(whole['stats'][other]),
        'version': 3,
        'sums': {
          2: (
            Payload(
              jnp.array(payload.gradient[one]), jnp.array(payload.stats[other])
            ),
            examples,
          )
        },
      }

    states = [cut(index, before) for index in range(before)]
    sizes = list(zip(even(11, now), even(6, now), strict=True))
    for index in range(now):
      jax.tree.map(
        np.testing.assert_array_equal,
        share(states, sizes, index),
        cut(index, now),
      )


if __name__ == '__main__':
  absltest.main()
