"""Tests for checkpoints of many processes: who dies when, and what is left."""

import functools
import itertools
import pathlib
import shutil
import tempfile
import threading
import time
from unittest import mock

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from cluster.parameter_server import checkpoints as sharded
from cluster.parameter_server.keeping import Keeping
from cluster.parameter_server.server import Server
from cluster.parameter_server.servers import Orders
from cluster.process.deadlines import Deadlines, Jobs
from learning.layout import reshard
from learning.shard_codec import ShardCodec
from outputs import checkpoints
from tests.support import crashes
from wire import dense

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
def _codec(servers):
  wire = dense.make(dtype='float32')
  return ShardCodec(np.zeros(_SIZE, np.float32), (), servers=servers, wire=wire)


_JOBS = Jobs(Deadlines(timeout_s=1.0, start_s=10.0, windows=False))


class _Life:
  """A coordinator and its servers, from a start to a death."""

  def __init__(self, directory, num_servers):
    codec = _codec(num_servers)
    self.orders = Orders(codec=codec, schedule=None, num_workers=1)
    self.checkpoints = sharded.ShardedCheckpoints(
      directory,
      orders=self.orders,
      num_servers=num_servers,
      jobs=_JOBS,
      keep=_KEEP,
    )
    self.state = self.checkpoints.restore()
    self._servers, self._keeping = [], []
    for index in range(num_servers):
      learner = _Learner(codec.initial_shard(index)[0])
      if self.state:
        found = sharded.read_servers(directory, *self.checkpoints.found)
        learner.restore(reshard(found, codec.sizes, index))
      report = self._reporter(index)
      part = sharded.server_part(index)
      keeping = Keeping(directory, part, held={}, report=report)
      self._keeping.append(keeping)
      self._servers.append(
        Server(
          index,
          learner=learner,
          codec=codec,
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
      if event.get('error', '').startswith('Killed'):
        self.orders.fail(RuntimeError(f'Server {server} is lost.'))
      else:
        error = OSError(event['error']) if 'error' in event else None
        self.orders.answer(server, event['id'], error)

    return report

  def train(self):
    self.orders.add(0, 0, 1)
    self.orders.commit(0)
    self.orders.flush()

  def save(self):
    self.checkpoints.save({'orders': self.orders.state()})

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
    # Each part takes seven steps, of which the first may find the folder; the
    # coordinator's follow those of its server.
    steps = [(0, step) for step in (*range(1, 7), *range(8, 14))]
    for process, step in [*steps, *((1, step) for step in range(1, 7))]:
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
      self.assertEmpty(list(self.directory.glob('*/.*')))
      self.assertEqual(self._numbers(), {*checkpoints.steps(self.directory)})

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
    (self.directory / '2' / 'server1.npz').unlink()
    with self.assertLogs('absl', 'WARNING') as logs:
      life = _Life(self.directory, 2)
    self.assertLen(logs.output, 1)
    self.assertIn('checkpoints/2 cannot be read', logs.output[0])
    self.assertEqual(life.versions(), {2})
    self._saved(life, 1)
    self.assertEqual(checkpoints.steps(self.directory), [2, 3])
    life.end()

  def test_a_checkpoint_is_being_written_until_all_parts_are_on_the_disk(self):
    life = _Life(self.directory, 2)
    release = threading.Event()
    life._keeping[1]._pool.submit(release.wait)
    self.assertFalse(life.checkpoints.is_writing())
    life.train()
    life.save()
    self.assertTrue(life.checkpoints.is_writing())
    self.assertEmpty(checkpoints.steps(self.directory))
    release.set()
    life.checkpoints.close()
    self.assertFalse(life.checkpoints.is_writing())
    self.assertEqual(checkpoints.steps(self.directory), [0])
    life.end()

  def _saved(self, life, times):
    for _ in range(times):
      life.train()
      life.save()
      while life.checkpoints.is_writing():
        time.sleep(0.001)

  def _numbers(self):
    return {int(path.name) for path in self.directory.iterdir()}

  def _check_left(self, servers, version):
    """Checks that there is what there is to be, and nothing else."""
    steps = checkpoints.steps(self.directory)
    self.assertLen(steps, _KEEP)
    self.assertEqual(self._numbers(), set(steps))
    parts = ['coordinator', *(f'server{index}' for index in range(servers))]
    for step in steps:
      self.assertEqual(checkpoints.part_names(self.directory, step), parts)
      found = (self.directory / str(step)).iterdir()
      self.assertLen(list(found), len(parts))
    life = _Life(self.directory, 1)
    self.assertEqual(life.versions(), {version})
    life.end()


if __name__ == '__main__':
  absltest.main()
