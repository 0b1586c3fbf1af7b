"""Tests for main.py: which starts wait, which are refused, and their codes."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest, parameterized

from configs import default
from tests.support import (
  accelerators,
  commands,
  locks,
  processes,
  requires,
  small,
)

_ROOT = pathlib.Path(__file__).parents[1]
_LIMIT_S = 100.0
# Fields that small.config sets, as they are by default.
_SYNTHETIC = {
  name: default.get_config().data.synthetic[name]
  for name in ('num_train', 'num_test', 'pixels', 'channels')
}


def _flags(folder, *, real=True, **fields):
  """Returns flags of a run of one worker on this host, which takes a moment."""
  virtual = {'cluster__runtime': 'virtual', 'cluster__timeout_s': 10.0}
  fields = {
    'model': False,
    'cluster__workers': 1,
    'epochs': 0.5,
    'checkpoint__every_examples': 0,
    **({} if real else virtual),
    **fields,
  }
  return [
    f'--config={processes.config_file(**fields)}',
    f'--workdir={folder}',
  ]


def _main(flags):
  """Returns the exit code of main.py and its output."""
  done = small.python('main.py', *flags, cwd=_ROOT)
  return done.returncode, done.stderr


def _main_until(text, then, flags):
  """Calls `then` once main.py has printed a text; returns as `_main`."""
  with commands.start([sys.executable, 'main.py', *flags]) as process:
    process.until(re.escape(text))
    then()
    return process.wait(), process.text


def _ended(folder):
  return json.loads((folder / 'summary.json').read_text())['ended']


def _port():
  """Returns a port that is free, as is the next one."""
  while True:
    with socket.create_server(('127.0.0.1', 0)) as server:
      port = server.getsockname()[1]
      with contextlib.suppress(OSError, OverflowError):
        socket.create_server(('127.0.0.1', port + 1)).close()
        return port


class LockTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp(), 'run')

  def test_a_run_starts_once_the_lock_of_its_folder_is_free(self):
    for real in (False, True):
      folder = self.folder / str(real)
      with locks.hold(folder) as pid:
        waiting = f'Waiting for process {pid} on'
        code, said = _main_until(
          waiting,
          lambda pid=pid: (time.sleep(2.0), os.kill(pid, signal.SIGKILL)),
          _flags(folder, real=real),
        )
      self.assertEqual(code, 0, said)
      self.assertIn(waiting, said)
      self.assertEqual(_ended(folder), 'finished')

  def test_after_the_limit_the_start_exits_75_and_names_the_holder(self):
    with locks.hold(self.folder) as pid:
      start = time.monotonic()
      code, said = _main(_flags(self.folder, cluster__start_s=1.0))
      took_s = time.monotonic() - start
    self.assertEqual(code, 75, said)
    self.assertRegex(said, f'another run writes to .*process {pid} on')
    self.assertNotIn('Refused', said)
    self.assertLess(took_s, 60.0)


class VirtualTest(parameterized.TestCase):
  @parameterized.parameters('server', 'forest')
  def test_a_run_loads_neither_pyarrow_nor_the_runtime_of_real_hosts(
    self, route
  ):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    code = (
      'import atexit, runpy, sys\n'
      'atexit.register(lambda: print(*sys.modules, sep="\\n"))\n'
      'runpy.run_path("main.py", run_name="__main__")\n'
    )
    done = small.python(
      *('-c', code, '--config=configs/vgg16_bsp.py', f'--workdir={folder}'),
      *('--config.model.name=none', '--config.epochs=0.02'),
      f'--config.route.name={route}',
      cwd=_ROOT,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertEqual(_ended(folder), 'finished')
    loaded = done.stdout.splitlines()
    self.assertIn('cluster.virtual.runtime', loaded)
    for absent in (
      *('pyarrow', 'cluster.network', 'cluster.distributed'),
      *('sweeps', 'tools', 'bench', 'papers'),
    ):
      self.assertNotIn(absent, loaded)


class PortTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp(), 'run')

  @parameterized.parameters(('server', 0), ('native', 1))
  def test_a_run_starts_once_its_port_is_free(self, route, beside):
    port = _port()
    flags = _flags(self.folder, route__name=route)
    with socket.create_server(('127.0.0.1', port + beside)) as server:
      code, said = _main_until(
        'tried again', server.close, [*flags, f'--coordinator=127.0.0.1:{port}']
      )
    self.assertEqual(code, 0, said)
    self.assertRegex(said, 'tried again for .*Address already in use')
    self.assertEqual(_ended(self.folder), 'finished')

  @parameterized.parameters(('server', 0), ('native', 1))
  def test_after_the_limit_the_start_exits_75(self, route, beside):
    port = _port()
    flags = _flags(self.folder, route__name=route, cluster__start_s=1.0)
    with socket.create_server(('127.0.0.1', port + beside)):
      start = time.monotonic()
      code, said = _main([*flags, f'--coordinator=127.0.0.1:{port}'])
      took_s = time.monotonic() - start
    self.assertEqual(code, 75, said)
    self.assertIn('Address already in use', said)
    self.assertLess(took_s, 60.0)

  def test_a_run_of_one_process_has_the_port_of_its_config(self):
    port = _port()
    flags = [*_flags(self.folder), f'--config.cluster.port={port}']
    code, said = _main(flags)
    self.assertEqual(code, 0, said)
    self.assertIn(f'127.0.0.1:{port}', said)

  def test_a_worker_whose_port_stays_taken_exits_75(self):
    port, token = _port(), self.folder.with_name('token')
    token.write_text('a secret of this run')
    flags = _flags(self.folder, cluster__start_s=1.0, cluster__workers=2)
    flags += ['--role=worker:1', f'--coordinator=127.0.0.1:{_port()}']
    flags.append(f'--config.cluster.token_file={token}')
    flags.append(f'--config.cluster.port={port - 1}')  # Of worker 0.
    with socket.create_server(('127.0.0.1', port)):
      code, said = _main(flags)
    self.assertEqual(code, 75, said)
    self.assertIn(f'127.0.0.1:{port}: Address already in use', said)


class RefusalTest(parameterized.TestCase):
  """A permanent error ends a start at once, with code 1."""

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp(), 'run')

  def _check(self, flags, message):
    code, said = _main(flags)
    self.assertEqual(code, 1, said)
    self.assertRegex(said, f'(?m)^Refused: {message}')
    self.assertNotIn('tried again', said)

  def test_a_wrong_config_is_refused(self):
    flags = [*_flags(self.folder), '--config.cluster.timeout_s=-1.0']
    self._check(flags, '.*timeout_s: expected')

  @parameterized.parameters(-1, 65536)
  def test_a_port_out_of_range_is_refused(self, port):
    flags = [*_flags(self.folder), f'--config.cluster.port={port}']
    self._check(flags, f'config.cluster.port: expected .* got {port}')

  def test_ports_beyond_the_last_are_refused(self):
    flags = [*_flags(self.folder, cluster__workers=4), '--role=worker:1']
    flags.append('--coordinator=127.0.0.1:65533')
    flags.append('--config.cluster.port=65533')
    self._check(
      flags,
      'config.cluster.port: expected at most 65532, as 4 processes have a port '
      'each, got 65533',
    )

  def test_a_missing_data_file_is_refused(self):
    data = {'data__name': 'cifar10', 'data__dir': str(self.folder)}
    fields = {f'data__synthetic__{k}': v for k, v in _SYNTHETIC.items()}
    flags = _flags(self.folder, real=False, model=True, **data, **fields)
    self._check(flags, 'config.data.cifar10.file: expected')

  def test_a_missing_token_file_is_refused(self):
    path = self.folder.parent / 'token'
    flags = [*_flags(self.folder), f'--config.cluster.token_file={path}']
    self._check(flags, 'config.cluster.token_file: expected a file')
    path.write_text('short')
    self._check(flags, 'config.cluster.token_file: expected a secret')

  def test_a_workdir_that_is_a_file_is_refused(self):
    self.folder.write_text('mine')
    self._check(_flags(self.folder), '.*(File exists|Not a directory)')
    self.assertEqual(self.folder.read_text(), 'mine')

  def test_a_folder_without_write_permission_is_refused(self):
    requires.host(os.geteuid() != 0, 'Root may write anywhere.')
    self.folder.mkdir(mode=0o500)
    self._check(_flags(self.folder / 'run'), '.*Permission denied')


class InterruptedWriteTest(parameterized.TestCase):
  @parameterized.parameters(False, True)
  def test_a_run_starts_over_empty_files_of_an_interrupted_write(self, real):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    flags = _flags(folder, real=real)
    folder.mkdir()
    (folder / 'manifest.json').touch()
    code, said = _main(flags)
    self.assertEqual(code, 0, said)
    self.assertIn(f'{folder}/manifest.json is rewritten', said)
    json.loads((folder / 'manifest.json').read_text())

    (folder / 'summary.json').write_text('{"ended": "fini')
    code, said = _main(flags)
    self.assertEqual(code, 0, said)
    self.assertIn(f'{folder}/summary.json is left of an interrupted', said)
    self.assertEqual(_ended(folder), 'finished')


class FullTest(absltest.TestCase):
  def test_a_run_that_a_full_disk_has_ended_may_be_started_again(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    # A limit on the size of files would be for good: EFBIG.
    code = """
import errno, os, runpy, sys
from outputs import rows
def full(self, row):
  raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
rows.Rows.metric = full
sys.argv = ['main.py', *sys.argv[1:]]
runpy.run_path('main.py', run_name='__main__')
"""
    flags = _flags(folder, real=False)
    done = subprocess.run(
      [sys.executable, '-c', code, *flags],
      cwd=_ROOT,
      env=os.environ | accelerators.inherited(),
      capture_output=True,
      text=True,
      timeout=_LIMIT_S,
      check=False,
    )
    self.assertEqual(done.returncode, 75, done.stderr)
    self.assertIn('No space left on device', done.stderr)
    self.assertIn('No space left', _ended(folder))
    code, said = _main(flags)
    self.assertEqual(code, 0, said)


if __name__ == '__main__':
  absltest.main()
