"""Tests of the start of JAX on the platforms that JAX_PLATFORMS names."""

import tempfile
from unittest import mock

import jax
from absl.testing import absltest, parameterized

from learning import placement
from tests.support import accelerators, small

_RUN = (
  *('main.py', '--config=configs/vgg16_bsp.py', '--config.model.name=mlp'),
  *('--config.data.name=synthetic', '--config.epochs=0.05'),
)


class StartTest(parameterized.TestCase):
  @parameterized.parameters('cuda', 'cuda,cpu')
  def test_a_gpu_that_is_named_and_not_there_is_an_error(self, platforms):
    """The CPU would compute in its place, many times slower."""
    none = accelerators.cpu() | {'CUDA_VISIBLE_DEVICES': ''}
    folder = tempfile.mkdtemp()
    done = small.python(
      *_RUN,
      f'--workdir={folder}/run',
      **none | {'JAX_PLATFORMS': platforms},
    )
    self.assertEqual(done.returncode, 1, done.stderr)
    self.assertRegex(done.stderr, "Refused: JAX.*'cuda")

  def test_a_platform_that_jax_does_not_know_is_named_with_what_jax_says(self):
    code = 'from learning import placement\nplacement.on_cpu()'
    done = small.python('-c', code, JAX_PLATFORMS='gqu', SYNCOPATE_FAKE_GPU='')
    (message,) = done.stderr.splitlines()[-1:]
    self.assertStartsWith(message, 'ValueError: JAX: expected to start')
    self.assertIn("'gqu' is not in the list of known backends", message)

  def test_an_error_that_no_platform_causes_is_that_of_jax(self):
    """As with `native`, where gloo looks up the name of the host."""
    said = "Unable to initialize backend 'cpu': Unable to resolve host n1"
    with (
      mock.patch.object(jax, 'default_backend', side_effect=RuntimeError(said)),
      self.assertRaisesRegex(ValueError, f'^JAX: .*{said}'),
    ):
      placement.start()

  def test_a_run_without_a_model_needs_no_accelerator(self):
    folder = tempfile.mkdtemp()
    done = small.python(
      *('main.py', '--config=configs/vgg16_bsp.py', '--config.epochs=0.01'),
      *('--config.model.name=none', f'--workdir={folder}/run'),
      **accelerators.cpu() | {'JAX_PLATFORMS': 'cuda'},
    )
    self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == '__main__':
  absltest.main()
