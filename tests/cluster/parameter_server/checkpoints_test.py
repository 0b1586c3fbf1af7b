"""Tests for checkpoints that processes write while some of them die."""

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
import pytest
from absl.testing import absltest, parameterized

from cluster.parameter_server import checkpoints as sharded
from cluster.parameter_server.server import Server
from cluster.parameter_server.store import ShardedParameterStore
from cluster.parameter_server.versions import ShardVersions
from cluster.process.deadlines import Deadlines, Jobs
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

  def add(self, update, payload, examples, *, weight, scale):
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


class _Run:
  """A coordinator and its servers, from a start to a death."""

  def __init__(self, directory, num_servers):
    codec = _codec(num_servers)
    self.store = ShardedParameterStore(
      codec=codec, schedule=None, num_workers=1
    )
    self.checkpoints = sharded.ShardedCheckpoints(
      directory,
      store=self.store,
      num_servers=num_servers,
      jobs=_JOBS,
      keep=_KEEP,
    )
    self.state = self.checkpoints.restore()
    self._servers, self._versions = [], []
    for index in range(num_servers):
      learner = _Learner(codec.initial_shard(index)[0])
      if self.state:
        found = self.checkpoints.found
        learner.restore(
          sharded.read_share(directory, *found, codec.sizes, index)
        )
      report = self._reporter(index)
      part = sharded.server_part(index)
      versions = ShardVersions(directory, part, held={}, report=report)
      self._versions.append(versions)
      self._servers.append(
        Server(
          index,
          learner=learner,
          codec=codec,
          versions=self._versions[-1],
          report=report,
        )
      )
    if self.state:
      self.store.restore(self.state['store'])
    for server in self._servers:
      server._payloads = mock.MagicMock()  # Every push has arrived.
    self.store.attach(self._servers)

  def _reporter(self, server):
    def report(event, body):
      del body
      if (event.error or '').startswith('Killed'):
        self.store.fail(RuntimeError(f'Server {server} is lost.'))
      else:
        error = OSError(event.error) if event.error else None
        self.store.answer(server, event.question, error)

    return report

  def train(self):
    self.store.add(0, 0, 1)
    self.store.commit(0)
    self.store.flush()

  def save(self):
    self.checkpoints.save({'store': self.store.state()})

  def end(self):
    """Ends all threads."""
    for server in self._servers:
      server.close(0.0)
    for versions in self._versions:
      versions._pool.shutdown()
    self.checkpoints._pool.shutdown()

  def versions(self):
    return {float(v) for s in self._servers for v in s.learner.params}


def _dies(process):
  """Returns whether a thread belongs to a process, given the thread's name.

  The coordinator's process, 0, has the main thread and that of server 0.
  """

  def dies(thread):
    name = thread.partition('_')[0]
    index = int(name.removeprefix('server')) if 'server' in name else 0
    return index == process

  return dies


def _save(run, times):
  for _ in range(times):
    run.train()
    run.save()
    while run.checkpoints.is_writing():
      time.sleep(0.001)


@functools.cache
def _two_saves(num_servers):
  """Returns a folder with two checkpoints, of the versions 1 and 2."""
  directory = pathlib.Path(tempfile.mkdtemp()) / 'checkpoints'
  run = _Run(directory, num_servers)
  _save(run, 2)
  run.checkpoints.close()
  run.end()
  return directory


class DeathTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.directory = pathlib.Path(tempfile.mkdtemp()) / 'checkpoints'

  @parameterized.parameters(
    (0, 1, 0, (1, 2)), (1, 2, 1, (2, 3)), (2, 3, 0, (3, 2)), (3, 3, 2, (1,))
  )
  def test_a_process_that_dies_at_some_steps_of_a_save(self, first, *case):
    self._check_deaths(range(first, 1000, 4), *case)

  @parameterized.parameters(
    (1, 0, (1, 2)), (2, 1, (2, 3)), (3, 0, (3, 2)), (3, 2, (1,))
  )
  @pytest.mark.soak
  def test_a_process_that_dies_at_any_step_of_a_save(self, *case):
    self._check_deaths(range(1000), *case)

  def _check_deaths(self, steps, servers, dead, after):
    again = itertools.cycle(after)
    for step in steps:
      if not self._run_with_death(servers, dead, step, next(again)):
        break
      shutil.rmtree(self.directory)
    self.assertGreaterEqual(step, 7)

  def _run_with_death(self, servers, dead, step, again):
    """Runs until a process dies at a step, and then once more."""
    shutil.copytree(_two_saves(servers), self.directory)
    run = _Run(self.directory, servers)
    crash = crashes.Crash(self.directory, at=step, dies=_dies(dead))
    with crashes.inject(crash):
      run.train()
      try:
        run.save()
        run.checkpoints.close()
      except (crashes.Killed, RuntimeError):
        self.assertTrue(crash.happened)
      run.end()
    newest = max(self._numbers())
    run = _Run(self.directory, again)
    version = run.store.version
    self.assertIn(version, (2, 3))
    self.assertEqual(run.versions(), {version})
    self.assertEqual(version, run.state['store'][0][0])
    _save(run, 2)
    run.checkpoints.close()
    run.end()
    self._check_left(again, version + 2)
    self.assertEqual(self._numbers(), {newest + 1, newest + 2})
    return crash.happened

  def test_full_disks_end_a_run_with_one_message_and_take_nothing(self):
    failures = 0
    for process in range(2):
      for step in itertools.count(1 + process, 4):
        happened, has_failed = self._fill_disk(process, step)
        failures += has_failed
        if not happened:
          break
    self.assertGreater(failures, 4)

  def _fill_disk(self, process, step):
    """Runs until a step of a process fails; returns if it was, and the save."""
    run = _Run(self.directory, 2)
    before = run.store.version
    _save(run, 2)
    crash = crashes.Crash(
      self.directory,
      at=step,
      dies=_dies(process),
      error=crashes.disk_full(self.directory),
    )
    error = None
    with crashes.inject(crash):
      run.train()
      run.save()
      try:
        run.checkpoints.close()
      except OSError as raised:
        error = raised
      run.checkpoints.close()  # It was reported.
    run.end()
    if error:
      expected = r'Checkpoint \d+ in .* could not be written; .*No space left'
      self.assertRegex(str(error), expected)
      self.assertEmpty(list(self.directory.glob('*/.*')))
    again = _Run(self.directory, 2)
    self.assertEqual(again.versions(), {before + 2 + (not error)})
    again.end()
    self.assertEqual(self._numbers(), {*checkpoints.steps(self.directory)})
    return crash.happened, error is not None

  def test_a_folder_that_has_vanished_is_made_again(self):
    run = _Run(self.directory, 2)
    _save(run, 2)
    shutil.rmtree(self.directory)
    _save(run, 3)
    run.checkpoints.close()
    run.end()
    self._check_left(2, 5)

  def test_a_part_that_is_damaged_makes_the_one_before_count(self):
    run = _Run(self.directory, 2)
    _save(run, 3)
    run.end()
    shutil.rmtree(self.directory / '2' / 'server1')
    with self.assertLogs('absl', 'WARNING') as logs:
      run = _Run(self.directory, 2)
    self.assertLen(logs.output, 1)
    self.assertIn('checkpoints/2 cannot be read', logs.output[0])
    self.assertEqual(run.versions(), {2})
    _save(run, 1)
    self.assertEqual(checkpoints.steps(self.directory), [2, 3])
    run.end()

  def test_a_checkpoint_is_being_written_until_all_parts_are_on_the_disk(self):
    run = _Run(self.directory, 2)
    release = threading.Event()
    run._versions[1]._pool.submit(release.wait)
    self.assertFalse(run.checkpoints.is_writing())
    run.train()
    run.save()
    self.assertTrue(run.checkpoints.is_writing())
    self.assertEmpty(checkpoints.steps(self.directory))
    release.set()
    run.checkpoints.close()
    self.assertFalse(run.checkpoints.is_writing())
    self.assertEqual(checkpoints.steps(self.directory), [0])
    run.end()

  def _numbers(self):
    return {int(path.name) for path in self.directory.iterdir()}

  def _check_left(self, servers, version):
    """Checks that the expected files are there, and no others."""
    steps = checkpoints.steps(self.directory)
    self.assertLen(steps, _KEEP)
    self.assertEqual(self._numbers(), set(steps))
    parts = ['coordinator', *(f'server{index}' for index in range(servers))]
    for step in steps:
      self.assertEqual(checkpoints.part_names(self.directory, step), parts)
      found = (self.directory / str(step)).iterdir()
      self.assertLen(list(found), len(parts))
    run = _Run(self.directory, 1)
    self.assertEqual(run.versions(), {version})
    run.end()


if __name__ == '__main__':
  absltest.main()
