"""Tests of the settings of tests: devices, examples, order, requirements."""

import hypothesis
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


class ExamplesTest(absltest.TestCase):
  def test_each_run_has_the_same_unless_the_profile_is_random(self):
    self.assertTrue(hypothesis.settings().derandomize)
    self.assertFalse(hypothesis.settings.get_profile('random').derandomize)


class OrderTest(absltest.TestCase):
  def test_the_files_that_take_longest_are_first(self):
    files = 'tests/doctests_test.py', 'tests/placement_test.py'
    code, said = _pytest('--collect-only', *files)
    self.assertEqual(code, 0, said)
    self.assertLess(said.index(files[1]), said.index(files[0]))


class MustRunTest(absltest.TestCase):
  def test_unknown_requirements_end_the_run(self):
    code, said = _pytest('tests/doctests_test.py', SYNCOPATE_MUST_RUN='labs')
    self.assertEqual(code, 4, said)
    self.assertIn('SYNCOPATE_MUST_RUN: expected names', said)


if __name__ == '__main__':
  absltest.main()
