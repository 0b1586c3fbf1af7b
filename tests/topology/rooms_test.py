"""Rooms of topology/ know those before them only, and no other project room."""

import ast
import pathlib

from absl.testing import absltest

import topology
from tests.support import small

_ROOT = pathlib.Path(topology.__file__).parent
_ROOMS = 'algorithms', 'clusters', 'bounds', 'forests', 'packing', 'baselines'


def _imports(path: pathlib.Path) -> list[str]:
  found = []
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      found += [name.name for name in node.names]
    elif isinstance(node, ast.ImportFrom):
      found += [f'{node.module}.{name.name}' for name in node.names]
  return found


class RoomsTest(absltest.TestCase):
  def test_arrows_run_one_way(self):
    rooms = sorted(
      p.name for p in _ROOT.iterdir() if (p / '__init__.py').exists()
    )
    self.assertEqual(rooms, sorted(_ROOMS))
    for place, room in enumerate(_ROOMS):
      for path in (_ROOT / room).glob('*.py'):
        for name in _imports(path):
          if name.startswith('topology.'):
            self.assertIn(name.split('.')[1], _ROOMS[: place + 1], path)

  def test_importing_all_of_it_needs_numpy_only(self):
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
