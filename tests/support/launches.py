"""Launches of small programs instead of main.py, for tests.

The launcher has shorter waits than in real runs, and ends with its test.
"""

import collections
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.support import accelerators

_ROOT = pathlib.Path(__file__).parents[2]
# Launches a program by `launcher.launch`, or by `tools.launch` with flags.
_DRIVER = """
import json, pathlib, sys
from absl import app
from launch import launcher
from launch.plan import Plan
from tools import launch
fields, program, constants, words = json.loads(sys.argv[1])
for name, value in constants.items():
  setattr(launcher, name, value)
if words:
  launch._MAIN = program
  app.run(launch.main, ['launch', *words], flags_parser=launch._parse)
fields['workdir'] = pathlib.Path(fields['workdir'])
sys.exit(launcher.launch(Plan(**fields), [sys.executable, '-S', program]))
"""
# Start of every program.
_PROGRAM = """
import os, pathlib, signal, subprocess, sys, time
flags = dict(word[2:].split('=', 1) for word in sys.argv[1:])
role, folder = flags.get('role'), pathlib.Path(flags['workdir'])
restarts = int(os.environ['SYNCOPATE_RESTARTS'])
def touch(name):
  (folder / name).touch()
def until(name):
  for _ in range(6000):
    if (folder / name).exists():
      return
    time.sleep(0.01)
  sys.exit(f'no {name}')
def until_ended(name):
  # According to the file of the launcher.
  for _ in range(6000):
    for line in (folder / 'launch.jsonl').read_text().splitlines():
      if f'"role": "{name}"' in line and '"exit"' in line:
        return
    time.sleep(0.01)
  sys.exit(f'{name} still runs')
def rest():
  # Short sleeps: a signal just before a sleep is handled after it.
  for _ in range(1200):
    time.sleep(0.05)
def die(number=signal.SIGKILL):
  os.kill(os.getpid(), number)
  rest()
def ignore_sigterm():
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  touch(f'ignores-{role}')
  rest()
"""
# Every process counts as short-lived, on a busy machine, too.
_FAST = {'_BACKOFF_S': 0.02, '_FINISH_S': 0.2, '_KILL_S': 0.2, '_QUICK_S': 60.0}
LIMIT_S = 60.0  # Only a hang takes longer, on a busy machine, too.


def new_folder() -> pathlib.Path:
  """Returns a new, empty folder."""
  return pathlib.Path(tempfile.mkdtemp())


@contextlib.contextmanager
def launch(
  body: str,
  *,
  constants: Any = (),
  words: Any = (),
  cwd: pathlib.Path = _ROOT,
  before: Any = (),
  **fields: Any,
) -> Iterator[tuple[subprocess.Popen, pathlib.Path]]:
  """Starts a launcher; yields its process and the folder of the run.

  Args:
    body: Program of each process.
    constants: Constants of the module to replace.
    words: Command line of the launcher, to use its flags; FOLDER stands for the
      folder of the run.
    cwd: Working directory.
    before: Command that runs the launcher.
    **fields: Fields of the plan; 'environ' and 'stdout' of the process.
  """
  folder = new_folder()
  (folder / 'program.py').write_text(_PROGRAM + body)
  excluded = ('SYNCOPATE_', 'CUDA_')
  words = [word.replace('FOLDER', str(folder / 'run')) for word in words]
  environ = {k: v for k, v in os.environ.items() if not k.startswith(excluded)}
  environ.pop('GLIBC_TUNABLES', None)
  environ |= accelerators.inherited()
  environ |= fields.pop('environ', {})
  stdout = fields.pop('stdout', subprocess.PIPE)
  fields = {'servers': 1, 'dedicated': False} | fields
  fields['workdir'] = str(folder / 'run')
  arguments = [
    fields,
    str(folder / 'program.py'),
    _FAST | dict(constants),
    words,
  ]
  argv = [*before, sys.executable, '-W', 'error', '-c', _DRIVER]
  process = subprocess.Popen(
    [*argv, json.dumps(arguments)],
    cwd=cwd,
    env=environ,
    stdout=stdout,
    stderr=subprocess.PIPE,
    text=True,
  )
  try:
    yield process, folder / 'run'
  finally:
    process.kill()
    process.communicate()


def run(body: str, **fields: Any) -> tuple[int, list[str], list[Any]]:
  """Runs a launch to its end; returns exit code, lines and launch.jsonl."""
  with launch(body, **fields) as (process, folder):
    out, errors = process.communicate(timeout=LIMIT_S)
    if errors:
      raise AssertionError(errors)
    return process.returncode, out.splitlines(), rows(folder)


def read_to(process: subprocess.Popen, text: str) -> None:
  """Reads lines of a launcher until one contains a text."""
  for line in process.stdout:
    if text in line:
      return
  raise AssertionError(f'The launcher has not printed {text!r}.')


def rows(
  folder: pathlib.Path, name: str = 'launch.jsonl'
) -> list[dict[str, Any]]:
  """Returns the rows of a launcher's file so far."""
  text = (folder / name).read_text()
  return [json.loads(line) for line in text.splitlines()]


def codes(rows: list[dict[str, Any]], role: str) -> list[int]:
  """Returns the exit codes of a role's processes."""
  exits = [r for r in rows if (r['role'], r['event']) == (role, 'exit')]
  return [row['code'] for row in exits]


def starts(rows: list[dict[str, Any]]) -> collections.Counter[str]:
  """Returns the number of starts of each role."""
  return collections.Counter(r['role'] for r in rows if r['event'] == 'start')


def lines_of(lines: list[str], name: str) -> list[str]:
  """Returns the lines of one process."""
  prefix = f'[{name}] '
  return [line.removeprefix(prefix) for line in lines if prefix in line]


def wait_for(
  *paths: pathlib.Path, condition: Callable[[], bool] = lambda: True
) -> None:
  """Waits until files exist and a condition holds."""
  for _ in range(6000):
    if all(path.exists() for path in paths) and condition():
      return
    time.sleep(0.01)
  raise AssertionError(f'Expected {paths}, and they do not appear.')


def alive(pid: int | str) -> bool:
  """Returns whether a process runs; a zombie does not."""
  try:
    status = pathlib.Path('/proc', str(pid), 'status').read_text()
  except (FileNotFoundError, ProcessLookupError):
    return False
  return 'State:\tZ' not in status
