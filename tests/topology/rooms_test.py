"""Tests that topology/ can be used without the rest of the project."""

from absl.testing import absltest

from tests.support import small


class RoomsTest(absltest.TestCase):
  def test_topology_imports_only_numpy(self):
    code = (
      'import sys, pkgutil, importlib\n'
      'import numpy\n'
      'before = set(sys.modules)\n'
      'import topology\n'
      'for found in pkgutil.walk_packages(topology.__path__, "topology."):\n'
      '  importlib.import_module(found.name)\n'
      'new = {name.split(".")[0] for name in set(sys.modules) - before}\n'
      'print(sorted(new - sys.stdlib_module_names - {"numpy", "topology"}))\n'
    )
    done = small.python('-c', code)
    done.check_returncode()

    self.assertEqual(done.stdout.strip(), '[]')


if __name__ == '__main__':
  absltest.main()
