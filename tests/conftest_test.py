"""Tests of the devices of tests: the CPU, or a GPU for those that need one."""

from absl.testing import absltest

from tests.support import small


def _pytest(*words, **environ):
  """Returns the exit code of a test run, and its output."""
  argv = ('-m', 'pytest', '-p', 'no:cacheprovider')
  done = small.python(*argv, *words, **environ)
  return done.returncode, done.stdout + done.stderr


class DevicesTest(absltest.TestCase):
  def test_tests_compute_on_the_cpu_whatever_the_host_has(self):
    own = {'JAX_PLATFORMS': 'cuda', 'SYNCOPATE_FAKE_GPU': ''}
    code, said = _pytest('tests/learning/drift_test.py', **own)
    self.assertEqual(code, 0, said)

  def test_tests_that_need_a_gpu_are_skipped_with_the_reason(self):
    own = {'JAX_PLATFORMS': 'cpu', 'SYNCOPATE_FAKE_GPU': ''}
    code, said = _pytest('-m', 'gpu', 'tests/gpu_test.py', **own)
    self.assertEqual(code, 0, said)
    self.assertRegex(said, r'SKIPPED \[\d+\].*: gpu: JAX sees no GPU')

  def test_others_leave_them_out(self):
    code, said = _pytest('tests/gpu_test.py', JAX_PLATFORMS='cpu')
    self.assertEqual(code, 5, said)  # Nothing to run.
    self.assertIn('deselected', said)


if __name__ == '__main__':
  absltest.main()
