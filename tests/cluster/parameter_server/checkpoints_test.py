"""Tests for checkpoints of many processes: who dies when, and what is left."""

import functools
import itertools
import pathlib
import shutil
import tempfile
import threading
from unittest import mock

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from cluster.parameter_server import checkpoints as sharded
from cluster.parameter_server.keeping import Keeping
from cluster.parameter_server.server import Server
from cluster.parameter_server.servers import Orders
from cluster.process.deadlines import Deadlines, Jobs
from outputs import stores
from tests.support import crashes
from wire import dense
from wire.flat import Flat, share

_SIZE = 12
_KEEP = 2


class _Learner:
  """Its parameters are its version."""

  def __init__(self, params):
    self.params, self.stats = params, ()
    self.version = 0

  def add(self, update, payload, examples, *, scale):
    pass

  def commit(self, update):
    self.version += 1
    self.params = jnp.full_like(self.params, self.version)

  def state(self):
    return {'params': self.params, 'version': self.version}

  def restore(self, state):
    self.params, self.version = state['params'], state['version']


@functools.cache
def _flat(servers):
  wire = dense.make(dtype='float32')
  return Flat(np.zeros(_SIZE, np.float32), (), servers=servers, wire=wire)


_JOBS = Jobs(Deadlines(timeout_s=1.0, start_s=10.0, windows=False))


class _Life:
  """A coordinator and its servers, from a start to a death."""

  def __init__(self, directory, num_servers):
    flat = _flat(num_servers)
    self.orders = Orders(flat=flat, schedule=None, num_workers=1)
    self.checkpoints = sharded.ShardedCheckpoints(
      directory,
      orders=self.orders,
      num_servers=num_servers,
      jobs=_JOBS,
      every_s=float('inf'),
      every_examples=1,
      keep=_KEEP,
    )
    self.state = self.checkpoints.restore()
    self._servers, self._keeping = [], []
    for index in range(num_servers):
      learner = _Learner(flat.initial(index)[0])
      if self.state:
        found = sharded.read_servers(directory, *self.checkpoints.found)
        learner.restore(share(found, flat.sizes, index))
      report = self._reporter(index)
      folder = sharded.of_server(directory, index)
      self._keeping.append(Keeping(folder, held={}, report=report))
      self._servers.append(
        Server(
          index,
          learner=learner,
          flat=flat,
          keeping=self._keeping[-1],
          report=report,
        )
      )
    if self.state:
      self.orders.restore(self.state['orders'])
    for server in self._servers:
      server._payloads = mock.MagicMock()  # Every push has arrived.
    self.orders.attach(self._servers)

  def _reporter(self, server):
    def report(event, body):
      del body
      if (event.error or '').startswith('Killed'):
        self.orders.fail(RuntimeError(f'Server {server} is lost.'))
      else:
        error = OSError(event.error) if event.error else None
        self.orders.answer(server, event.question, error)

    return report

  def train(self):
    self.orders.add(0, 0, 1)
    self.orders.commit(0)
    self.orders.flush()

  def save(self):
    self.checkpoints.save({'orders': self.orders.state()}, examples=1)

  def end(self):
    """Ends what is still alive."""
    for server in self._servers:
      server.close(0.0)
    for keeping in self._keeping:
      keeping._pool.shutdown()
    self.checkpoints._pool.shutdown()

  def versions(self):
    return {float(v) for s in self._servers for v in s.learner.params}


def _dies(process):
  """Returns whose thread a name is: the coordinator has server 0 and the main one."""

  def dies(thread):
    name = thread.partition('_')[0]
    index = int(name.removeprefix('server')) if 'server' in name else 0
    return index == process

  return dies


class DeathTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.directory = pathlib.Path(tempfile.mkdtemp()) / 'checkpoints'

  @parameterized.parameters(
    (1, 0, (1, 2)), (2, 1, (2, 3)), (3, 0, (3, 2)), (3, 2, (1,))
  )
  def test_a_process_that_dies_at_any_step_of_a_save(
    self, servers, dead, after
  ):
    again = itertools.cycle(after)
    for step in itertools.count():
      if not self._died(servers, dead, step, next(again)):
        break
      shutil.rmtree(self.directory)
    self.assertGreaterEqual(step, 7)

  def _died(self, servers, dead, step, again):
    """Runs until a process dies at a step, and then once more."""
    life = _Life(self.directory, servers)
    self._saved(life, 2)
    crash = crashes.Crash(self.directory, at=step, dies=_dies(dead))
    with crashes.crashing(crash):
      life.train()
      try:
        life.save()
        life.checkpoints.close()
      except (crashes.Killed, RuntimeError):
        self.assertTrue(crash.happened)
      life.end()
    newest = max(self._numbers())
    life = _Life(self.directory, again)
    version = life.orders.version
    self.assertIn(version, (2, 3))
    self.assertEqual(life.versions(), {version})
    self.assertEqual(version, life.state['orders'][0][0])
    self._saved(life, 3)
    life.checkpoints.close()
    life.end()
    self._check_left(again, version + 3)
    self.assertEqual(self._numbers(), {newest + 2, newest + 3})
    return crash.happened

  def test_full_disks_end_a_run_with_one_message_and_take_nothing(self):
    # The coordinator's follow those of its server; the first is to find the folder.
    steps = [(0, step) for step in (*range(1, 8), *range(9, 15))]
    for process, step in [*steps, *((1, step) for step in range(1, 8))]:
      life = _Life(self.directory, 2)
      before = life.orders.version
      self._saved(life, 2)
      crash = crashes.Crash(
        self.directory,
        at=step,
        dies=_dies(process),
        error=crashes.full(self.directory),
      )
      with crashes.crashing(crash):
        life.train()
        life.save()
        with self.assertRaisesRegex(
          OSError, r'Checkpoint \d+ in .* could not be written; .*No space left'
        ):
          life.checkpoints.close()
        life.checkpoints.close()  # It was said.
      life.end()
      again = _Life(self.directory, 2)
      self.assertEqual(again.versions(), {before + 2})
      again.end()
      self.assertEmpty(list(self.directory.glob(f'*/*{stores.UNFINISHED}')))

  def test_a_folder_that_has_vanished_is_made_again(self):
    life = _Life(self.directory, 2)
    self._saved(life, 2)
    shutil.rmtree(self.directory)
    self._saved(life, 3)
    life.checkpoints.close()
    life.end()
    self._check_left(2, 5)

  def test_a_part_that_is_damaged_makes_the_one_before_count(self):
    life = _Life(self.directory, 2)
    self._saved(life, 3)
    life.end()
    shutil.rmtree(self.directory / 'server1' / '2')
    with self.assertLogs('absl', 'WARNING') as logs:
      life = _Life(self.directory, 2)
    self.assertLen(logs.output, 1)
    self.assertIn('coordinator/2 cannot be read', logs.output[0])
    self.assertEqual(life.versions(), {2})
    self._saved(life, 1)
    self.assertEqual(stores.steps(self.directory / 'coordinator'), [2, 3])
    life.end()

  def test_none_is_due_before_the_last_one_is_safe(self):
    life = _Life(self.directory, 2)
    release = threading.Event()
    life._keeping[1]._pool.submit(release.wait)
    self.assertTrue(life.checkpoints.due(1))
    life.train()
    life.save()
    with self.assertLogs('absl', 'WARNING') as logs:
      self.assertFalse(life.checkpoints.due(5))
    self.assertIn('is due, and 0 is still being written', logs.output[0])
    self.assertEmpty(stores.steps(self.directory / 'coordinator'))
    release.set()
    life.checkpoints._wait()
    self.assertTrue(life.checkpoints.due(5))
    life.end()

  def _saved(self, life, times):
    for _ in range(times):
      life.train()
      life.save()
    life.checkpoints._wait()

  def _numbers(self):
    return {stores.number(path) for path in self.directory.glob('*/*')}

  def _check_left(self, servers, version):
    """Checks that there is what there is to be, and nothing else."""
    kept = stores.steps(self.directory / 'coordinator')
    self.assertLen(kept, _KEEP)
    found = {
      part.name: sorted(path.name for path in part.iterdir())
      for part in self.directory.iterdir()
    }
    for name in (
      'coordinator',
      *(f'server{index}' for index in range(servers)),
    ):
      self.assertEqual(found.pop(name), [str(step) for step in kept])
    self.assertEqual(set(map(tuple, found.values())) - {()}, set())
    life = _Life(self.directory, 1)
    self.assertEqual(life.versions(), {version})
    life.end()


if __name__ == '__main__':
  absltest.main()
