"""Tests that need a GPU: `pytest -m gpu`, or `make gpu`, runs them."""

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from learning import build, device_copies, digest, placement
from tests.support import accelerators, small

pytestmark = pytest.mark.gpu


class GradientTest(parameterized.TestCase):
  @parameterized.parameters('mlp', 'vgg')
  def test_is_that_of_the_cpu_to_rounding(self, model):
    pixels = {'mlp': 4, 'vgg': 32}[model]
    hidden = {'mlp': (16,), 'vgg': (128,)}[model]  # The default where unused.
    config = small.config(
      model__name=model,
      model__mlp__hidden=hidden,
      data__synthetic__pixels=pixels,
    )
    with jax.default_matmul_precision('float32'):
      there = self._gradient(config)
      with placement.on_cpu():
        here = self._gradient(config)
    for one, other in zip(there, here, strict=True):
      size = np.linalg.norm(other) + 1e-12
      self.assertLess(np.linalg.norm(one - other) / size, 1e-4)

  def _gradient(self, config):
    """Returns the leaves of a gradient and the loss, on the default device."""
    learned = build.from_config(config)
    payload, loss = learned.gradient(
      learned.params, ((0, 8),), worker=0, iteration=0
    )
    leaves = jax.tree.leaves((payload.gradient, loss))
    return [np.asarray(leaf, np.float64) for leaf in leaves]


class CopiesTest(absltest.TestCase):
  def test_gradients_come_through_pinned_memory_unchanged(self):
    copies = device_copies.find_copies()
    self.assertIsInstance(copies, device_copies.PinnedCopies)
    arrays = [jax.numpy.arange(size, dtype='float32') for size in (1, 2**20)]
    for copy, array in zip(copies.start_to_host(arrays), arrays, strict=True):
      self.assertEqual(copy.sharding.memory_kind, device_copies.PINNED)
      on_host = copies.wait_for_host(copy)
      np.testing.assert_array_equal(on_host, np.asarray(array))
      (back,) = copies.start_to_device([on_host])
      copies.wait_for_device(back)
      self.assertEqual(back.devices(), array.devices())
      np.testing.assert_array_equal(back, array)


class RunTest(absltest.TestCase):
  def test_equal_runs_have_equal_digests_and_accounts(self):
    (one, account), (other, again) = (small.execute() for _ in range(2))
    states = [
      run.runtime.coordinator.store.learner.state() for run in (one, other)
    ]
    self.assertEqual(*map(digest.digest, states))
    self.assertEqual(small.timeless(account), small.timeless(again))


class PlaceTest(absltest.TestCase):
  def test_the_gpu_is_the_default_and_the_cpu_is_there(self):
    code = (
      'import jax; from learning import placement; '
      'print(placement.has_accelerator()); '
      'print(jax.numpy.ones(2).devices() == set(jax.local_devices()[:1])); '
      'placement.on_cpu().__enter__(); '
      'cpu = jax.local_devices(backend="cpu")[0]; '
      'print(jax.numpy.ones(2).devices() == {cpu})'
    )
    done = small.python(
      '-c', code, **accelerators.inherited() | {'JAX_PLATFORMS': ''}
    )
    self.assertEqual(done.stdout.split(), ['True'] * 3, done.stderr)


if __name__ == '__main__':
  absltest.main()
