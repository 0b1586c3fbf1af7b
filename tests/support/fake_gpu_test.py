"""Tests for the fake accelerator of tests."""

import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest, parameterized

from tests.support import accelerators, small

_PLACES = """
import jax, jax.numpy as jnp, numpy as np
assert jax.default_backend() == {default!r}, jax.default_backend()
with jax.default_device(jax.local_devices(backend='cpu')[0]):
  jnp.ones(5) + 1
jax.jit(lambda x: x * 2)(np.ones(3, np.float32))
jax.device_put(np.ones(7, np.float32))
"""
_FORKED = """
import multiprocessing
def child():
  import jax
  print(jax.default_backend())
if __name__ == '__main__':
  context = multiprocessing.get_context('forkserver')
  process = context.Process(target=child)
  process.start()
  process.join()
"""


def _run(*argv: str, environ: dict[str, str]) -> str:
  done = small.python('-W', 'error', *argv, **environ)
  if done.returncode:
    raise AssertionError(done.stdout + done.stderr)
  return done.stdout + done.stderr


class FakeGpuTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())

  def test_arrays_without_a_device_are_on_the_fake_and_are_recorded(self):
    code = _PLACES.format(default='fake')
    _run('-c', code, environ=accelerators.environment(self.folder))

    (record,) = accelerators.records(self.folder)
    cpu, fake = record.clients['cpu'], record.clients['fake']
    self.assertIn('jit_add', cpu.computations)
    self.assertEqual(dict(fake.computations), {'jit__lambda': 1})
    self.assertIn(28, fake.bytes)
    self.assertNotIn(28, cpu.bytes)

  def test_the_fake_does_not_start_where_platforms_exclude_it(self):
    code = _PLACES.format(default='cpu')
    environ = accelerators.environment(self.folder, platforms='cpu')
    _run('-c', code, environ=environ)
    (record,) = accelerators.records(self.folder)
    self.assertEqual(set(record.clients), {'cpu'})

  def test_the_fake_has_the_requested_number_of_devices(self):
    environ = accelerators.environment(devices=3)
    code = 'import jax; print(len(jax.devices()), len(jax.devices("cpu")))'
    self.assertEqual(_run('-c', code, environ=environ), '3 1\n')

  def test_the_cpu_is_unknown_where_platforms_name_the_accelerator_alone(self):
    environ = accelerators.environment(platforms='fake')
    code = 'import jax; jax.local_devices(backend="cpu")'
    with self.assertRaisesRegex(AssertionError, 'Unknown backend cpu'):
      _run('-c', code, environ=environ)

  def test_the_hidden_sitecustomize_runs(self):
    (self.folder / 'sitecustomize.py').write_text('print("a site\'s own")')
    environ = accelerators.environment()
    environ['PYTHONPATH'] += f':{self.folder}'
    self.assertEqual(_run('-c', '', environ=environ), "a site's own\n")

  def test_processes_without_jax_do_not_import_it(self):
    code = 'import sys; print("jax" in sys.modules)'
    environ = accelerators.environment()
    self.assertEqual(_run('-c', code, environ=environ), 'False\n')

  def test_children_of_a_fork_server_have_the_fake(self):
    path = self.folder / 'program.py'
    path.write_text(_FORKED)
    output = _run(str(path), environ=accelerators.environment())
    self.assertEqual(output, 'fake\n')

  def test_without_its_variable_the_fake_is_missing(self):
    environ = accelerators.environment()
    variables = {'PYTHONPATH': environ['PYTHONPATH'], 'JAX_PLATFORMS': ''}
    code = 'import jax; print(jax.default_backend())'
    line = [sys.executable, '-c', code]
    done = subprocess.run(
      line, env=variables, capture_output=True, text=True, check=True
    )
    self.assertNotIn('fake', done.stdout)


if __name__ == '__main__':
  absltest.main()
