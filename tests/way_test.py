"""The way of one gradient, from main.py to the update that it goes into.

Counted are the project's files that are on the stack, in any thread, when a
gradient is computed, encoded, sent, taken in, told of, decided on, summed and
applied, and those that are compiled into what is called there.  train.py, which
puts all of it together before, is not on the stack.
"""

import contextlib
import importlib
import json
import pathlib
import runpy
import sys
import tempfile
import traceback
from unittest import mock

from absl import flags
from absl.testing import absltest

from tests.support import small

_ROOT = pathlib.Path(__file__).parents[1]
_COMPILED = {'models/task.py', 'wire/dense.py'}
# Where a gradient passes, in each runtime.
_WAYS = {
  'virtual': (
    'learning.gradient:TaskGradient.__call__',
    'cluster.virtual.holder:LocalHolder.arrived',
    'wire.trees:_same',
    'sync.bsp:Bsp.push',
    'learning.learner:TaskLearner.add',
    'learning.learner:TaskLearner.commit',
  ),
  'distributed': (
    'learning.gradient:TaskGradient.__call__',
    'cluster.distributed.served.worker:_push',
    'cluster.transport.messages:Stream._send',
    'cluster.distributed.served.server:Server._taken',
    'wire.flat:Flat.push_of',
    'cluster.distributed.served.reception:ServedReception.told',
    'sync.bsp:Bsp.push',
    'cluster.distributed.served.orders:Orders.add',
    'learning.learner:TaskLearner.add',
    'learning.learner:TaskLearner.commit',
  ),
}


def _watched(runtime):
  """Runs main.py and prints the files on the way; in a process of its own."""
  files, seen, started = {*_COMPILED}, set(), []

  def watch(name):
    path, _, member = name.partition(':')
    *above, last = member.split('.')
    owner = importlib.import_module(path)
    owner = getattr(owner, above[0]) if above else owner
    original = getattr(owner, last)

    def watching(*args, **kwargs):
      # What servers are asked for is told on the same way.
      told = {arg.get('told') for arg in args if isinstance(arg, dict)}
      # Beats and orders have no body.
      bare = last == '_send' and not args[3]
      if started and not bare and not told & {'snapshot', 'saved'}:
        seen.add(name)
        stack = [frame.filename for frame in traceback.extract_stack()]
        for file in map(pathlib.Path, [*stack, original.__code__.co_filename]):
          if file.is_relative_to(_ROOT):
            files.add(str(file.relative_to(_ROOT)))
      return original(*args, **kwargs)

    return mock.patch.object(owner, last, watching)

  lead = importlib.import_module('cluster.lead').Lead
  start = lead.start
  with contextlib.ExitStack() as stack:
    for name in _WAYS[runtime]:
      stack.enter_context(watch(name))
    stack.enter_context(
      mock.patch.object(
        lead, 'start', lambda *args: (started.append(1), start(*args))[1]
      )
    )
    for flag in ('config', 'workdir', 'role', 'lead'):
      if flag in flags.FLAGS:
        delattr(flags.FLAGS, flag)
    sys.argv = [
      str(_ROOT / 'main.py'),
      f'--config={_ROOT}/configs/vgg16_bsp.py',
      f'--workdir={tempfile.mkdtemp()}/run',
      f'--config.cluster.runtime={runtime}',
      '--config.cluster.workers=1',
      '--config.cluster.speed.slowdown=(1.0,)',
      '--config.model.name=mlp',
      '--config.epochs=0.1',
    ]
    with contextlib.suppress(SystemExit):
      runpy.run_path(sys.argv[0], run_name='__main__')
  own = [f for f in files if not f.startswith(('.venv', 'tests'))]
  print(json.dumps([sorted(own), sorted(seen)]))


class WayTest(absltest.TestCase):
  def _files(self, runtime):
    code = f'from tests import way_test; way_test._watched({runtime!r})'
    done = small.python('-c', code)
    files, seen = json.loads(done.stdout.splitlines()[-1])
    self.assertEqual(seen, sorted(_WAYS[runtime]), done.stderr)
    return files

  def test_at_most_12_files_under_the_virtual_clock(self):
    files = self._files('virtual')
    self.assertLessEqual(len(files), 12, files)

  def test_at_most_16_files_on_real_hosts(self):
    files = self._files('distributed')
    self.assertLessEqual(len(files), 16, files)


if __name__ == '__main__':
  absltest.main()
