"""Runs of real processes, through the launcher, for tests.

Every run has a time limit, and leaves no process and no port.
"""

import contextlib
import importlib
import json
import pathlib
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from absl.testing import absltest

from launch.processes import Group
from outputs import checkpoints
from tests.support import commands
from tools import replay

SCHEMES = ('bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp', 'quorum')
BATCH = 8  # Worker batch of small.config.
# Checkpoints contain classes of these modules.
_CLASSES = (
  'batching.fixed',
  'batching.lb_bsp',
  'batching.r2sp',
  'predict.arima',
  'predict.narx',
  'train',
)
_LAB_S = 20.0  # For a lab, to end its processes and to remove itself.
_CONFIG = """
from tests.support import small

def get_config():
  return small.{kind}(**{fields!r})
"""
_XLA_FLAGS = """
import os, sys
for role, flags in {flags!r}.items():
  if f'--role={{role}}' in sys.argv:
    os.environ['XLA_FLAGS'] = flags
"""
# Runs a command on each host of a lab.  Like SLURM, ends all commands if one
# fails; --role distinguishes hosts.
_RANKS = """
import os, subprocess, sys, time
from launch import lab
split = sys.argv.index('--')
runs = []
for rank, host in enumerate(os.environ['SYNCOPATE_HOSTS'].split(',')):
  role = f'--role=worker:{rank}'
  argv = [*sys.argv[1:split], role, *sys.argv[split:]]
  runs.append(subprocess.Popen(lab.command(host, argv)))
while any(run.poll() is None for run in runs):
  if any(run.poll() for run in runs):
    break
  time.sleep(0.05)
sys.exit(max(run.poll() or 0 for run in runs))
"""
_FIELDS = {
  'cluster__runtime': 'distributed',
  'cluster__speed__slowdown': (1.0,),
  'cluster__timeout_s': 4.0,
  'checkpoint__every_examples': 96,
  'log_every': 4,
}


def config_file(
  *,
  model: bool = True,
  xla_flags: Mapping[str, str] | None = None,
  code: str = '',
  **fields: Any,
) -> str:
  """Returns the path of a new file with small.config(**fields), for real hosts.

  Args:
    model: False for small.timing, which has no model.
    xla_flags: XLA_FLAGS by role, such as 'worker:1', for hosts that differ.
    code: Python code that each process executes when it reads the file.
    **fields: Fields of the config.
  """
  path = pathlib.Path(tempfile.mkdtemp(), 'config.py')
  kind = 'config' if model else 'timing'
  content = _CONFIG.format(kind=kind, fields=_FIELDS | fields)
  path.write_text(content + _XLA_FLAGS.format(flags=xla_flags or {}) + code)
  return str(path)


class Launch(commands.Running):
  """A launcher, with the times of its lines.

  Attributes:
    folder: Folder of the run.
  """

  def __init__(self, group: Group, folder: pathlib.Path):
    super().__init__(group)
    self.folder = folder
    self._lines: list[tuple[float, str]] = []
    self._rest = ''
    self._reading = threading.Lock()

  @contextlib.contextmanager
  def watched(self) -> Iterator[None]:
    """Notes the times of lines, in a thread, within the context."""
    is_over = threading.Event()

    def watch() -> None:
      while not is_over.wait(0.01):
        self._read()

    with self.log_path.open(errors='replace') as self._log:
      reader = threading.Thread(target=watch)
      reader.start()
      try:
        yield
      finally:
        is_over.set()
        reader.join()
        self._read()

  def times(self, pattern: str) -> list[float]:
    """Returns the Unix times of lines that match."""
    self._read()
    return [at for at, line in self._lines if re.search(pattern, line)]

  def until(self, pattern: str, count: int = 1) -> float:
    """Waits until a number of lines match; returns the time of the last one."""
    super().until(pattern, count)
    return self.times(pattern)[count - 1]

  def reach(self, examples: int) -> None:
    """Waits until metrics.jsonl has a row with a number of examples."""
    deadline = time.monotonic() + commands.LIMIT_S
    while self._recorded_examples() < examples:
      if self.code is not None or time.monotonic() > deadline:
        raise AssertionError(f'Not {examples} examples in:\n{self.text}')
      time.sleep(0.02)

  def _recorded_examples(self) -> int:
    path = self.folder / 'metrics.jsonl'
    whole = path.read_text().rpartition('\n')[0] if path.exists() else ''
    return json.loads(whole.splitlines()[-1])['examples'] if whole else 0

  def _read(self) -> None:
    with self._reading:
      if self._log.closed:  # All has been read.
        return
      *lines, self._rest = (self._rest + self._log.read()).split('\n')
      self._lines += [(time.time(), line) for line in lines]

  def rows(self, name: str) -> list[dict[str, Any]]:
    """Returns the rows of a file of the run."""
    lines = (self.folder / name).read_text().splitlines()
    return [json.loads(line) for line in lines]

  @property
  def summary(self) -> dict[str, Any]:
    """Content of summary.json.

    Raises:
      FileNotFoundError: If there is none; with the output of the run.
    """
    path = self.folder / 'summary.json'
    if not path.exists():
      raise FileNotFoundError(f'{path}\n{self.text}')
    return json.loads(path.read_text())

  def pid(self, role: str, log: str = 'launch.jsonl') -> int:
    """Returns the process id of a role's newest process."""
    rows = self.rows(log)
    return [
      row['pid']
      for row in rows
      if (row['role'], row['event']) == (role, 'start')
    ][-1]


@contextlib.contextmanager
def launch(
  *,
  workers: int,
  servers: int = 1,
  dedicated: bool = False,
  hosts: int = 1,
  folder: pathlib.Path | None = None,
  flags: tuple[str, ...] = (),
  before: tuple[str, ...] = (),
  environ: Mapping[str, str] | None = None,
  **fields: Any,
) -> Iterator[Launch]:
  """Starts a run, and kills it with the context if it has not ended.

  Args:
    workers: Number of workers.
    servers: Number of servers.
    dedicated: True if servers have their own processes.
    hosts: Processes of each worker.
    folder: Folder of the run; None for a new one.
    flags: Flags of each process.
    before: Command that runs the launcher.
    environ: Environment variables.
    **fields: Fields of the config.
  """
  folder = folder or pathlib.Path(tempfile.mkdtemp(), 'run')
  argv = [*before, sys.executable, '-m', 'tools.launch']
  argv += [f'--workers={workers}', f'--servers={servers}', '--grace_s=20']
  argv += [f'--hosts_per_worker={hosts}']
  argv += [f'--workdir={folder}', *(['--dedicated'] if dedicated else [])]
  argv += ['--', f'--config={config_file(**fields)}', *flags]
  with _start(argv, folder, environ or {}, _LAB_S * bool(before)) as launch:
    yield launch


@contextlib.contextmanager
def ranks(
  *, workers: int, servers: int, restarts: int = 3, **fields: Any
) -> Iterator[Launch]:
  """Starts a run in a lab, in which each host has a worker and a launcher.

  Args:
    workers: Number of workers.
    servers: Number of servers, in workers' processes.
    restarts: Largest number of restarts of each launcher.
    **fields: Fields of the config.
  """
  folder = pathlib.Path(tempfile.mkdtemp(), 'run')
  argv = [sys.executable, '-m', 'tools.lab', f'--hosts={workers}', '--']
  argv += [sys.executable, '-c', _RANKS]
  argv += [
    sys.executable,
    '-m',
    'tools.launch',
    '--rank',
    '--coordinator=host0:61500',
  ]
  argv += [f'--workers={workers}', f'--servers={servers}']
  argv += [f'--restarts={restarts}', f'--workdir={folder}', '--']
  argv += [f'--config={config_file(**fields)}']
  argv += ['--config.cluster.interface=eth0']
  with _start(argv, folder, {}, _LAB_S) as launch:
    yield launch


@contextlib.contextmanager
def alone(folder: pathlib.Path, *flags: str, **fields: Any) -> Iterator[Launch]:
  """Starts main.py without a launcher, and kills it with the context."""
  argv = [sys.executable, 'main.py', f'--config={config_file(**fields)}']
  with _start([*argv, f'--workdir={folder}', *flags], folder, {}) as launch:
    yield launch


@contextlib.contextmanager
def again(launch: Launch, role: str) -> Iterator[Launch]:
  """Starts a second process of a role, and kills it with the context."""
  command = pathlib.Path(f'/proc/{launch.pid(role)}/cmdline').read_bytes()
  argv = [word.decode() for word in command.split(b'\0')[:-1]]
  with _start(argv, launch.folder, {}) as second:
    yield second


@contextlib.contextmanager
def _start(
  argv: list[str],
  folder: pathlib.Path,
  environ: Mapping[str, str],
  grace_s: float = 0.0,
) -> Iterator[Launch]:
  with (
    commands.start(
      argv,
      env=environ,
      grace_s=grace_s,
      make=lambda group: Launch(group, folder),
    ) as launch,
    launch.watched(),
  ):
    yield launch


def newest(folder: pathlib.Path) -> tuple[dict[str, Any], list[Any]]:
  """Returns the states of coordinator and servers in the newest checkpoint."""
  for name in (*(f'sync.{scheme}' for scheme in SCHEMES), *_CLASSES):
    importlib.import_module(name)
  directory = folder / 'checkpoints'
  parts = checkpoints.read(directory, checkpoints.steps(directory)[-1])
  state = parts.pop(checkpoints.COORDINATOR)
  return state, [parts[name] for name in parts if name.startswith('server')]


class TestCase(absltest.TestCase):
  """Base of test cases, with checks that hold after every run."""

  def check(self, launch: Launch) -> None:
    """Checks accounting and records of a run, and that no process is left."""
    self._check_nothing_left(launch)
    self._check_accounts(launch)
    with self.assertRaises(SystemExit) as done:
      replay.main(['replay', str(launch.folder)])
    self.assertEqual(done.exception.code, 0)

  def _check_nothing_left(self, launch: Launch) -> None:
    mark = str(launch.folder).encode()
    for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
      with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        self.assertNotIn(mark, path.read_bytes())
    for port in re.findall(r'Coordinator at 127\.0\.0\.1:(\d+)', launch.text):
      with socket.socket() as probe:
        self.assertNotEqual(probe.connect_ex(('127.0.0.1', int(port))), 0)

  def _check_accounts(self, launch: Launch) -> None:
    summary = launch.summary
    events = launch.rows('events.jsonl')
    pushed = [event['examples'] for event in events if event['event'] == 'push']
    self.assertLen(pushed, summary['iterations'])
    self.assertEqual(
      sum(pushed), summary['examples'] + summary['examples_pending']
    )
    size_bytes = _size_bytes(launch.folder)
    self.assertEqual(summary['bytes'], summary['iterations'] * 2 * size_bytes)
    self.assertEqual(summary['late_compilations'], 0, launch.text)
    self.assertEqual(summary['compilations'], 0, launch.text)
    if (launch.folder / 'checkpoints').exists():
      self._check_checkpoint(launch)

  def _check_checkpoint(self, launch: Launch) -> None:
    state, servers = newest(launch.folder)
    stream = state['runtime']['coordinator']['_stream']
    accounting = state['recorder']['accounting']
    outstanding = sum(stop - start for start, stop in stream.outstanding())
    pending = [
      push for pushes in accounting.pending.values() for push in pushes
    ]
    self.assertEqual(
      stream.used, accounting.examples + sum(push.examples for push in pending)
    )
    self.assertEqual(stream.used + outstanding, stream.cursor)
    for server in servers:
      self.assertEqual(server['version'], accounting.updates)
      self.assertEqual(server['examples'], accounting.examples)
      sums = server['_sums' if '_sums' in server else 'sums']
      self.assertEqual(sorted(sums), sorted(accounting.pending))
    if launch.summary['ended'] in ('finished', 'interrupted'):
      self.assertEqual(accounting.iterations, launch.summary['iterations'])
      self.assertEqual(
        [list(each) for each in stream.outstanding()],
        launch.summary['outstanding'],
      )


def _size_bytes(folder: pathlib.Path) -> int:
  """Returns the bytes of a push of a model with 4x4 pixels, 16 and 10 units."""
  config = json.loads((folder / 'manifest.json').read_text())['config']
  if config['model']['name'] == 'none':
    return config['model']['none']['size_bytes']
  each = {'float32': 4, 'bfloat16': 2}[config['wire']['dense']['dtype']]
  return each * ((4 * 4 + 1) * 16 + (16 + 1) * 10)
