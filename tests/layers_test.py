"""Tests that the rooms import as the table below allows, and no other way.

Static imports of every module: those inside functions and those for type
checkers count.
"""

import ast
import functools
import pathlib

from absl.testing import absltest, parameterized

_ROOT = pathlib.Path(__file__).parents[1]
# From the bottom to the top; `cluster` has floors of its own.
_FLOORS = (
  ('configs', 'data', 'models', 'topology'),
  ('predict', 'sync'),
  ('batching', 'route', 'wire'),
  ('learning',),
  ('outputs',),
  ('cluster.process', 'cluster.speed', 'cluster.transport'),
  ('cluster',),
  ('cluster.distributed', 'cluster.virtual'),
  ('train',),
  ('sweeps', 'tools'),
  ('bench', 'examples', 'main', 'sweep'),
  ('claims',),
  ('reproduce',),
  ('tests',),
)
# What each room may import: rooms, or single modules of them.  The four
# questions are batching, route, sync and wire.
_MAY = {
  'configs': '',
  'data': '',
  'models': '',
  'topology': '',
  'predict': '',
  'sync': '',
  'batching': 'configs sync.scheme',
  'route': 'configs topology',
  'wire': 'configs',
  'learning': 'configs data models wire',
  'outputs': (
    'configs data.embedded learning.compilations learning.learning sync.record '
    'sync.scheme'
  ),
  'cluster.transport': 'configs',
  'cluster.process': 'configs',
  'cluster.speed': 'configs',
  'cluster': (
    'batching.batching cluster.speed.speed configs data.stream learning '
    'outputs route.route sync.record sync.scheme topology wire.codec wire.talks'
  ),
  'cluster.virtual': (
    'cluster cluster.speed configs learning outputs route.links route.ring '
    'route.route topology wire'
  ),
  'cluster.distributed': (
    'batching.batching cluster cluster.process cluster.speed '
    'cluster.transport configs '
    'data.stream '
    'learning outputs route.choosing route.links route.route topology wire'
  ),
  'train': (
    'batching.batching batching.build cluster cluster.process '
    'cluster.speed cluster.virtual.tuning configs data.dataset learning '
    'models.task outputs route.links route.route '
    'sync.scheme '
    'wire.codec'
  ),
  'main': ('cluster.process configs outputs.transient train'),
  'sweep': 'configs outputs.transient sweeps',
  'sweeps': ('cluster.process configs learning.placement outputs train'),
  'tools': (
    'batching.curves batching.fixed cluster.process '
    'cluster.distributed.links.content cluster.distributed.links.flows '
    'cluster.distributed.links.trials '
    'cluster.distributed.reduced.executor.frames '
    'cluster.distributed.reduced.executor.program '
    'cluster.distributed.reduced.sums.packing '
    'cluster.distributed.reduced.sums.summing '
    'cluster.distributed.rendezvous cluster.distributed.roles '
    'cluster.distributed.served.checkpoints '
    'cluster.lead cluster.speed.driving cluster.speed.layers '
    'cluster.speed.traces '
    'cluster.transport '
    'cluster.virtual.network cluster.virtual.reduced configs learning '
    'outputs.atomic outputs.checkpoints outputs.compiled outputs.console '
    'outputs.files outputs.ledger outputs.manifests outputs.transient '
    'route.links route.ring sync.record sync.scheme topology train '
    'wire.codec wire.flat wire.hosted wire.kept wire.talks'
  ),
  'claims': (
    'bench cluster.speed.layers cluster.speed.rooflines '
    'cluster.virtual.reduced configs outputs.atomic outputs.compiled '
    'route.choosing route.hierarchical route.links route.ring route.route '
    'sweeps sync tools.reading.records topology'
  ),
  'reproduce': 'claims outputs.transient',
  'bench': None,  # All below.
  'examples': None,
  'tests': None,
}
_ANY = ('bench', 'configs', 'tests')  # Folders of as many as there are.


def _modules() -> dict[str, pathlib.Path]:
  """Returns the project's modules by name."""
  paths = [
    path
    for part in _ROOT.iterdir()
    if part.suffix == '.py' or part.name in _MAY
    for path in ([part] if part.is_file() else part.rglob('*.py'))
  ]
  names = ['.'.join(p.relative_to(_ROOT).with_suffix('').parts) for p in paths]
  names = [name.removesuffix('.__init__') for name in names]
  return dict(zip(names, paths, strict=True))


def _imported(text: str, modules) -> dict[str, int]:
  """Returns the project's modules that a text imports, and their lines."""
  found = {}
  for node in ast.walk(ast.parse(text)):
    names = []
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      module = '.' * node.level + (node.module or '')
      names = [f'{module}.{alias.name}' for alias in node.names]
    for name in names:
      while name and name not in modules:
        name = name.rpartition('.')[0]
      if name:
        found.setdefault(name, node.lineno)
  return found


@functools.cache
def _imports() -> dict[str, dict[str, int]]:
  """Returns what each module imports, and in which line."""
  modules = _modules()
  return {
    name: _imported(path.read_text(), modules) for name, path in modules.items()
  }


def _room(module: str) -> str:
  """Returns the room of a module: the longest of the table it is in."""
  words = module.split('.')
  names = ['.'.join(words[:n]) for n in range(len(words), 0, -1)]
  return next((name for name in names if name in _MAY), words[0])


@functools.cache
def _arrows() -> list[tuple[str, str, str, str]]:
  """Returns (where, room, module, its room) of imports of other rooms."""
  return [
    (f'{name}:{line} imports {other}', _room(name), other, _room(other))
    for name, imported in _imports().items()
    for other, line in imported.items()
    if _room(other) != _room(name)
  ]


def _allows(entry: str, module: str) -> bool:
  """Returns whether an entry of the table is of a module."""
  return entry == (_room(module) if entry in _MAY else module)


def _cycle(graph) -> list[str]:
  """Returns modules that import each other in a circle, if there are any."""
  done, path = set(), []

  def visit(node):
    if node in path:
      return [*path[path.index(node) :], node]
    if node in done:
      return []
    path.append(node)
    for other in graph[node]:
      if found := visit(other):
        return found
    done.add(path.pop())
    return []

  return next(filter(None, map(visit, graph)), [])


class LayersTest(parameterized.TestCase):
  def test_every_module_has_a_room_and_every_room_a_floor(self):
    self.assertGreater(len(_imports()), 100)
    for name in _imports():
      self.assertIn(_room(name), _MAY, name)
    self.assertCountEqual(sum(_FLOORS, ()), _MAY)

  def test_rooms_import_what_the_table_allows(self):
    wrong = [
      where
      for where, room, module, _ in _arrows()
      if _MAY[room] is not None
      and not any(_allows(entry, module) for entry in _MAY[room].split())
    ]
    self.assertEmpty(wrong)

  def test_rooms_import_from_floors_below(self):
    floors = {room: n for n, rooms in enumerate(_FLOORS) for room in rooms}
    wrong = [
      where
      for where, room, _, other in _arrows()
      if floors[other] >= floors[room]
    ]
    self.assertEmpty(wrong)

  def test_the_table_allows_no_more_than_is_used(self):
    for room, allowed in _MAY.items():
      used = [module for _, own, module, _ in _arrows() if own == room]
      for entry in (allowed or '').split():
        self.assertTrue(
          any(_allows(entry, module) for module in used), f'{room}: {entry}'
        )

  def test_no_module_imports_itself_in_the_end(self):
    self.assertEmpty(_cycle(_imports()))


class ImportedTest(absltest.TestCase):
  """What the above relies on."""

  def test_all_kinds_of_imports_are_seen(self):
    text = """
import a.b as x, os
from a import b, c, other
from a.c import name
if TYPE_CHECKING:
  from d import deep
def function():
  import e.f.g
  from . import near
"""
    modules = ('a.b', 'a.c', 'd.deep', 'e.f')
    lines = {'a.b': 2, 'a.c': 3, 'd.deep': 6, 'e.f': 8}
    self.assertEqual(_imported(text, modules), lines)

  def test_circles_are_found(self):
    self.assertEqual(_cycle({'a': 'b', 'b': 'c', 'c': ''}), [])
    self.assertEqual(_cycle({'a': 'b', 'b': 'cd', 'c': '', 'd': 'b'}), [*'bdb'])

  def test_rooms_within_rooms_are_not_their_room(self):
    self.assertEqual(_room('cluster.lead'), 'cluster')
    self.assertEqual(_room('cluster.virtual.site'), 'cluster.virtual')
    self.assertFalse(_allows('cluster', 'cluster.virtual.site'))
    self.assertTrue(_allows('cluster', 'cluster.lead'))
    self.assertTrue(_allows('sync.scheme', 'sync.scheme'))
    self.assertFalse(_allows('sync.scheme', 'sync.asp'))


if __name__ == '__main__':
  absltest.main()
