"""Tests of the requirements of tests: met, or skipped, or failed."""

import os
import pathlib
import tempfile
import unittest
from unittest import mock

from absl.testing import absltest, parameterized

from tests.support import requires

_MISSING = {'SYNCOPATE_DATA': '/no/folder', 'PATH': '/no/folder'}


class RequiresTest(parameterized.TestCase):
  @parameterized.parameters(
    (lambda: requires.data('a.csv'), 'data: SYNCOPATE_DATA has no a.csv'),
    (
      lambda: requires.topologies('a'),
      'topologies: SYNCOPATE_TOPOLOGIES names no folder',
    ),
    (lambda: requires.program('openssl'), 'openssl: openssl is not installed'),
    (requires.ray, 'ray: SYNCOPATE_RAY names no interpreter'),
    (lambda: requires.host(False, 'It is too small.'), 'host: It is too small'),
  )
  def test_what_is_missing_skips_a_test_or_fails_it_if_it_must_run(
    self, require, reason
  ):
    with mock.patch.dict(os.environ, _MISSING, clear=True):
      with self.assertRaisesRegex(unittest.SkipTest, reason):
        require()
      os.environ['SYNCOPATE_MUST_RUN'] = ','.join(requires.NAMES)
      with self.assertRaisesRegex(AssertionError, f'MUST_RUN has {reason}'):
        require()

  def test_what_is_there_is_returned(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    (folder / 'a.csv').touch()
    with mock.patch.dict(os.environ, SYNCOPATE_DATA=str(folder)):
      self.assertEqual(requires.data('a.csv'), folder / 'a.csv')
    requires.host(True, 'It is too small.')

  def test_interpreters_that_lack_a_module_are_named_with_the_error(self):
    with (
      mock.patch.dict(os.environ, SYNCOPATE_RAY='/usr/bin/env'),
      self.assertRaisesRegex(unittest.SkipTest, 'ray: .*env'),
    ):
      requires.ray()

  def test_names_are_separated_by_commas(self):
    names = requires.must_run({'SYNCOPATE_MUST_RUN': 'lab, data,'})
    self.assertEqual(names, {'lab', 'data'})
    self.assertEmpty(requires.must_run({}))

  def test_unknown_names_are_refused(self):
    with self.assertRaisesRegex(
      ValueError, r"SYNCOPATE_MUST_RUN: .*'data', .* got \['labs'\]"
    ):
      requires.must_run({'SYNCOPATE_MUST_RUN': 'lab,labs'})


if __name__ == '__main__':
  absltest.main()
