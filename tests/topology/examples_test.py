"""Examples in docstrings hold, in every module of topology/."""

import doctest
import importlib
import pkgutil

from absl.testing import absltest

import topology


class ExamplesTest(absltest.TestCase):
  def test_examples_hold(self):
    attempted = 0
    for found in pkgutil.walk_packages(topology.__path__, 'topology.'):
      results = doctest.testmod(importlib.import_module(found.name))
      self.assertEqual(results.failed, 0, found.name)
      attempted += results.attempted
    self.assertGreater(attempted, 10)


if __name__ == '__main__':
  absltest.main()
