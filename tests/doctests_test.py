"""Tests that every example in a docstring gives what it says."""

import doctest
import importlib
import pathlib

from absl.testing import absltest

_ROOT = pathlib.Path(__file__).parents[1]


def _modules() -> list[str]:
  """Returns the names of all modules that have examples."""
  paths = [path.relative_to(_ROOT) for path in _ROOT.glob('[a-z]*/**/*.py')]
  return [
    '.'.join(path.with_suffix('').parts).removesuffix('.__init__')
    for path in paths
    if path.parts[0] not in ('tests', 'runs', 'docs')
    and '>>> ' in (_ROOT / path).read_text()
  ]


class DocstringTest(absltest.TestCase):
  def test_examples_give_the_results_that_they_show(self):
    modules = _modules()
    self.assertGreater(len(modules), 5)
    for name in modules:
      with self.subTest(name):
        results = doctest.testmod(importlib.import_module(name))
        self.assertGreater(results.attempted, 0)
        self.assertEqual(results.failed, 0)


if __name__ == '__main__':
  absltest.main()
