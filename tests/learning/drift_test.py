"""Tests for learning.drift."""

import math

import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

from learning import drift


def _state(scale=1.0, count=3):
  rng = np.random.default_rng(0)
  params = {
    'a': rng.normal(size=(30, 7)).astype(np.float32),
    'b': rng.normal(size=5).astype(np.float32) * scale,
  }
  state = optax.adam(0.1).init(params)[0]._replace(count=np.int32(count))
  return {'params': params, 'stats': (), 'version': 7, '_state': state}


class RelativeDifferenceTest(parameterized.TestCase):
  def test_matches_norms_of_all_numbers_of_an_item(self):
    own, reference = _state(1.5), _state()
    flat = [
      np.concatenate([each['params'][k].ravel() for k in 'ab'])
      for each in (own, reference)
    ]
    expected = np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[1])
    apart = drift.relative_difference(own, reference)
    self.assertAlmostEqual(apart, expected, places=6)

  def test_equal_states_do_not_differ(self):
    self.assertEqual(drift.relative_difference(_state(), _state()), 0.0)
    self.assertEqual(drift.relative_difference({}, {}), 0.0)

  def test_arrays_of_jax_and_numpy_are_the_same(self):
    own = _state()
    own['params'] = {k: jnp.asarray(v) for k, v in own['params'].items()}
    self.assertEqual(drift.relative_difference(own, _state()), 0.0)

  def test_an_item_is_judged_by_its_own_norm(self):
    own, reference = _state(), _state()
    own['stats'] = np.float32([1e-9])
    reference['stats'] = np.float32([2e-9])
    apart = drift.relative_difference(own, reference)
    self.assertAlmostEqual(apart, 0.5, places=6)

  @parameterized.named_parameters(
    ('counts', {'_state': _state(count=4)['_state']}),
    ('versions', {'version': 8}),
    ('trees', {'stats': {'mean': np.zeros(3, np.float32)}}),
    ('shapes', {'params': {'a': np.zeros((7, 30)), 'b': np.zeros(5)}}),
    ('not_a_number', {'stats': np.float32([math.nan])}),
    ('items', {'more': ()}),
  )
  def test_other_states_are_infinitely_far(self, change):
    reference = _state()
    if 'stats' in change and not isinstance(change['stats'], dict):
      reference['stats'] = np.float32([1.0])
    apart = drift.relative_difference(_state() | change, reference)
    self.assertEqual(apart, math.inf)

  def test_a_rounded_copy_is_within_the_bound_and_a_flipped_bit_is_not(self):
    reference = _state()
    rounded = _state()
    params = rounded['params']
    params['a'] = params['a'] * np.float32(1 + 2.0**-23)
    apart = drift.relative_difference(rounded, reference)
    self.assertBetween(apart, 2.0**-25, drift.BOUND / 100)
    params['a'] = reference['params']['a'].copy()
    params['a'].view(np.uint32)[3, 2] ^= 1 << 27
    apart = drift.relative_difference(rounded, reference)
    self.assertGreater(apart, drift.BOUND)


if __name__ == '__main__':
  absltest.main()
