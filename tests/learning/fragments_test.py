"""Tests for learning.fragments and the pushes of fragments."""

import itertools

import jax
import numpy as np
from absl.testing import absltest, parameterized

from data.dataset import Split
from learning import fragments, optimizer
from learning.fragment_steps import FragmentSteps
from learning.gradient import TaskGradient
from learning.iteration import Iteration
from learning.layout import Layout
from learning.local_steps import LocalSteps
from tests.support import fragments as linear

_ORDER = (3, 1, 0, 2)


def _best(sizes, count):
  """The smallest largest part, over all divisions into consecutive parts."""
  cuts = itertools.combinations(range(1, len(sizes)), count - 1)
  return min(
    max(
      sum(sizes[start:end])
      for start, end in itertools.pairwise([0, *each, len(sizes)])
    )
    for each in cuts
  )


def _gradient():
  task, dataset = linear.make_task()
  return TaskGradient(
    task,
    Split(*dataset.train),
    lambda ranges: np.concatenate([np.arange(*each) for each in ranges]),
    micro_batch=4,
    seed=0,
  )


def _fragments(count, ready=1.0):
  sizes = [leaf.size for leaf in jax.tree.leaves(linear.make_task()[0].params)]
  ends = fragments.split([sizes[leaf] for leaf in _ORDER], count)
  leaves = tuple(
    _ORDER[start:end] for start, end in itertools.pairwise([0, *ends])
  )
  numbers = tuple(sum(sizes[leaf] for leaf in each) for each in leaves)
  return fragments.Fragments(leaves, numbers, ready)


def _push(pushes, params, state, version, **more):
  return pushes.push(
    params,
    Iteration(
      ((8 * version, 8 * version + 8),),
      worker=0,
      number=version,
      rate=0.01,
      version=version,
    ),
    state,
    **more,
  )


_ADAMW = optimizer.adamw(b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.1)


class SplitTest(parameterized.TestCase):
  @parameterized.product(seed=[*range(20)], count=[1, 2, 3, 5, 7])
  def test_the_largest_part_is_as_small_as_possible(self, seed, count):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 12, rng.integers(count, 9)).tolist()
    ends = fragments.split(sizes, count)
    parts = [*itertools.pairwise([0, *ends])]
    self.assertLen(parts, count)
    self.assertEqual(ends[-1], len(sizes))
    self.assertTrue(all(start < end for start, end in parts))
    largest = max(sum(sizes[start:end]) for start, end in parts)
    self.assertEqual(largest, _best(sizes, count))


class PushTest(absltest.TestCase):
  def test_one_fragment_without_overlap_is_plain_local_steps_bit_for_bit(self):
    gradient = _gradient()
    plain = LocalSteps(gradient, _ADAMW, worker_batch=2)
    found = FragmentSteps(
      gradient,
      _ADAMW,
      _fragments(1),
      worker_batch=2,
      overlap_steps=0,
      blend=0.0,
    )
    params = linear.make_task()[0].params
    states = plain.init(params), found.init(params)
    for version in range(3):
      expected, loss, before = _push(plain, params, states[0], version)
      payload, own, after = _push(found, params, states[1], version)
      states = before, after
      jax.tree.map(
        np.testing.assert_array_equal,
        (payload, own, after.optimizer),
        (expected, loss, before),
      )
      params = jax.tree.map(
        lambda leaf, moved: leaf - moved / 8, params, payload.gradient
      )

  def test_a_displacement_is_sent_before_the_last_steps(self):
    gradient, computed = _gradient(), []
    pushes = FragmentSteps(
      gradient,
      _ADAMW,
      _fragments(2, 0.25),
      worker_batch=2,
      overlap_steps=3,
      blend=0.5,
    )
    params = linear.make_task()[0].params
    payload, _, _ = _push(
      pushes,
      params,
      pushes.init(params),
      1,
      send=lambda moved: computed.append((gradient.computed, moved)),
    )
    ((examples, moved),) = computed
    self.assertEqual((examples, gradient.computed), (2, 8))
    self.assertIs(moved, payload.gradient)
    is_zero = [not np.any(leaf) for leaf in jax.tree.leaves(moved)]
    chosen = {*pushes.fragments.leaves[1]}
    self.assertEqual(is_zero, [leaf not in chosen for leaf in range(4)])

  def test_a_worker_that_missed_a_version_begins_with_the_current_one(self):
    gradient = _gradient()
    pushes = FragmentSteps(
      gradient,
      _ADAMW,
      _fragments(2),
      worker_batch=2,
      overlap_steps=0,
      blend=0.5,
    )
    params = linear.make_task()[0].params
    _, _, state = _push(pushes, params, pushes.init(params), 0)
    fresh = pushes.init(params)._replace(optimizer=state.optimizer)
    expected, _, _ = _push(pushes, params, fresh, 2)
    payload, _, _ = _push(pushes, params, state, 2)
    jax.tree.map(
      np.testing.assert_array_equal, payload.gradient, expected.gradient
    )


class LayoutTest(absltest.TestCase):
  def test_layouts_of_fragments_hold_their_leaves_and_read_others_as_0(self):
    params = linear.make_task()[0].params
    found, parts = jax.tree.map(np.zeros_like, params), _fragments(3)
    for chosen in parts.leaves:
      layout = Layout(params, order=_ORDER, only=chosen, step_statistics=2)
      self.assertEqual(layout.order, chosen)
      vector = np.zeros(layout.size, np.float32)
      for leaf in chosen:
        layout.write_leaf(vector, leaf, jax.tree.leaves(params)[leaf])
      part = layout.unflatten(vector)
      np.testing.assert_array_equal(
        layout.flatten(params), vector[: layout.gradient_size]
      )
      found = jax.tree.map(np.add, found, part)
      with self.assertRaisesRegex(ValueError, 'leaf: expected one of'):
        other = next(leaf for leaf in range(4) if leaf not in chosen)
        layout.write_leaf(vector, other, np.zeros(1))
    jax.tree.map(np.testing.assert_array_equal, found, params)


if __name__ == '__main__':
  absltest.main()
