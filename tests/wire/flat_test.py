"""Tests for cluster.layout: flat vectors, and shares cut anew."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from learning.gradient import Payload
from wire.flat import Layout, even, share


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


class LayoutTest(parameterized.TestCase):
  @parameterized.product(
    num_servers=[1, 2, 3, 7], stats=[_STATS, ()], dtype=['float32', 'bfloat16']
  )
  def test_what_is_packed_is_unpacked(self, num_servers, stats, dtype):
    layout = Layout(_PARAMS, stats, num_servers=num_servers, dtype=dtype)

    vectors, finite = layout.pack(Payload(_PARAMS, stats))

    self.assertTrue(finite)
    self.assertEqual(
      [np.asarray(vector).nbytes for vector in vectors],
      [layout.size_bytes(server) for server in range(num_servers)],
    )
    total = sum(leaf.size for leaf in jax.tree.leaves((_PARAMS, stats)))
    self.assertEqual(
      sum(map(layout.size_bytes, range(num_servers))),
      total * jnp.dtype(dtype).itemsize,
    )
    params, found = layout.unpack(vectors)
    expected = jax.tree.map(
      lambda leaf: np.asarray(leaf.astype(dtype).astype(jnp.float32)),
      (_PARAMS, stats),
    )
    jax.tree.map(np.testing.assert_array_equal, (params, found), expected)

  @parameterized.parameters(1, 2, 5)
  def test_shares_are_consecutive_and_even(self, num_servers):
    layout = Layout(_PARAMS, _STATS, num_servers=num_servers, dtype='float32')
    shares = [layout.initial(server) for server in range(num_servers)]
    for name, whole in (('gradient', _PARAMS), ('stats', _STATS)):
      parts = [np.asarray(getattr(part, name)) for part in shares]
      np.testing.assert_array_equal(np.concatenate(parts), _ravelled(whole))
      sizes = [len(part) for part in parts]
      self.assertLessEqual(max(sizes) - min(sizes), 1)

  def test_a_server_gets_back_what_it_sends(self):
    layout = Layout(_PARAMS, _STATS, num_servers=2, dtype='float32')
    initial = layout.initial(1)
    again = layout.split(layout.vector(*initial), 1)
    jax.tree.map(np.testing.assert_array_equal, again, initial)

  @parameterized.parameters(np.nan, np.inf, -np.inf)
  def test_what_is_not_finite_is_told(self, bad):
    params = _PARAMS | {'leaf1': _PARAMS['leaf1'].at[3].set(bad)}
    params['empty'] = jnp.zeros(0)
    layout = Layout(params, (), num_servers=2, dtype='float32')
    self.assertFalse(layout.pack(Payload(params, ()))[1])

  def test_sizes_are_split_evenly(self):
    self.assertEqual(even(10, 4), [3, 3, 2, 2])
    self.assertEqual(even(2, 3), [1, 1, 0])

  def test_bad_input_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'servers: expected at most 7'):
      Layout(_PARAMS, _STATS, num_servers=8, dtype='float32')
    with self.assertRaisesRegex(ValueError, 'float32 leaves, got int32'):
      Layout({'a': jnp.arange(3)}, (), num_servers=1, dtype='float32')


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
