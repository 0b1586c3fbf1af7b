"""Tests that need a GPU: `pytest -m gpu`, or `make gpu`, runs them."""

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from learning import build, digest, placement
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


class RunTest(absltest.TestCase):
  def test_equal_runs_have_equal_digests_and_accounts(self):
    (one, account), (other, again) = (small.execute() for _ in range(2))
    states = [run.runtime.lead.holder.learner.state() for run in (one, other)]
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
