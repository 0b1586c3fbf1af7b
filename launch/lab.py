"""Labs: several hosts on one machine, with links shaped by the kernel.

`made` creates a lab and removes it, `command` runs a command on one of its
hosts; see also `tools.lab`.  `launch.hosts` has the links and their commands.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import NoReturn

from configs.checks import require
from launch import delayed_link, hosts, processes
from launch.processes import Command, ProcessError

_ROOT = pathlib.Path(__file__).parent.parent
_STATES = pathlib.Path('/run')
_NAMESPACES = pathlib.Path('/run/netns')  # Folder of `ip netns`.
_NAME = re.compile('syn-[0-9a-f]{6}')
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE_S = 3.0
_LIMIT_S = 10.0
_AS_HOST = """
  echo "$0" > /proc/sys/kernel/hostname && mount --bind "$1" /etc/hosts &&
  shift && exec "$@"
"""


def run(links: hosts.Links, argv: Sequence[str]) -> int:
  """Runs a command on the first host of a new lab; removes the lab.

  SIGINT, SIGTERM and SIGHUP get handlers in this process, which stay.

  Args:
    argv: Command, which finds the lab and its hosts in SYNCOPATE_LAB and
      SYNCOPATE_HOSTS.

  Returns:
    The exit code of the command; 128 + the number of a signal that ended it.

  Raises:
    ValueError: If the machine does not allow a lab.
    SystemExit: After SIGINT, SIGTERM or SIGHUP, unless they are ignored.
  """
  for number in _SIGNALS:
    if signal.getsignal(number) != signal.SIG_IGN:
      signal.signal(number, _exit)
  with made(links) as lab:
    names = ','.join(links.up)
    print(f'SYNCOPATE_LAB={lab} SYNCOPATE_HOSTS={names}', file=sys.stderr)
    here = {'SYNCOPATE_LAB': lab, 'SYNCOPATE_HOSTS': names}
    words = command(next(iter(links.up)), argv, lab)
    code = subprocess.Popen(words, env=os.environ | here).wait()
  return code if code >= 0 else 128 - code


def command(host: str, argv: Sequence[str], lab: str = '') -> list[str]:
  """Returns a command that executes another one on a host.

  Its process becomes that of the other command, so that signals reach it.

  Args:
    host: Name of the host.
    argv: Command to execute there.
    lab: Name of the lab; '' for that of SYNCOPATE_LAB.

  Raises:
    ValueError: If the lab or the host does not exist.
  """
  check_machine()
  lab = lab or os.environ.get('SYNCOPATE_LAB', '')
  path = _state(lab)
  is_running = bool(_NAME.fullmatch(lab)) and path.exists()
  require(is_running, 'SYNCOPATE_LAB', 'the name of a running lab', lab)
  listed = json.loads(path.read_text())['namespaces']
  names = [name.removeprefix(f'{lab}-') for name in listed]
  names.remove(hosts.SWITCH)
  require(host in names, 'host', f'one of {names}', host)
  enter = f'ip netns exec {lab}-{host} unshare --uts sh -c'.split()
  return [*enter, _AS_HOST, host, str(_hosts_file(lab)), *argv]


@contextlib.contextmanager
def made(links: hosts.Links) -> Iterator[str]:
  """Creates a lab and yields its name; removes it and its processes afterwards.

  Raises:
    ValueError: If the machine does not allow a lab.
  """
  check_machine()
  lab = f'syn-{secrets.token_hex(3)}'
  names = hosts.namespaces(lab, links)
  for name in names:
    exists = (_NAMESPACES / name).exists()
    require(not exists, 'namespace', 'an unused name', name)
  # The lock, which the kernel releases at the end of this process, tells
  # --clean that it is alive.
  with open(_state(lab), 'x', encoding='utf-8') as state:
    fcntl.flock(state, fcntl.LOCK_EX)
    state.write(json.dumps({'namespaces': names}))
    state.flush()
    try:
      _make(lab, links)
      with _delays(lab, links):
        yield lab
    finally:
      with _signals_ignored():
        _remove(lab, names)


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
  """Ignores signals in the context, and restores their handlers."""
  before = {
    number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS
  }
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def check_machine() -> None:
  """Raises ValueError, with what is missing, if this machine allows no lab."""
  if os.geteuid() != 0:
    raise ValueError('tools.lab creates network namespaces, which needs root.')
  for tool in ('ip', 'tc', 'unshare', 'mount', 'sysctl'):
    exists = shutil.which(tool) is not None
    packages = 'iproute2, util-linux or procps'
    require(exists, 'PATH', f'{tool} (of {packages})', 'none')


def clean() -> None:
  """Removes the namespaces and files of labs whose processes have died.

  Raises:
    ValueError: If a lab cannot be removed.
  """
  check_machine()
  for path in sorted(_STATES.glob(_state('syn-*').name)):
    lab = path.stem.removeprefix(_state('').stem)
    with contextlib.suppress(FileNotFoundError), path.open() as state:
      try:
        fcntl.flock(state, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        print(f'{lab} still runs', file=sys.stderr)
        continue
      # A process killed before it wrote the list has created nothing.
      listed = json.loads(state.read() or '{"namespaces": []}')
      _remove(lab, listed['namespaces'])
      print(f'{lab} is removed', file=sys.stderr)


def _make(lab: str, links: hosts.Links) -> None:
  require(_state(lab).exists(), lab, 'no --clean meanwhile', 'one')
  _hosts_file(lab).write_text(hosts.hosts_file(links))
  for line in hosts.commands(lab, links):
    _call(line)


@contextlib.contextmanager
def _delays(lab: str, links: hosts.Links) -> Iterator[None]:
  """Starts the processes that delay frames of groups; the context ends them."""
  commands = [
    Command(words[-2], words, folder=_ROOT)
    for words in hosts.delays(lab, links)
  ]
  if not commands:
    yield
    return
  with (
    tempfile.TemporaryDirectory() as folder,
    processes.start(commands, pathlib.Path(folder)) as group,
  ):
    try:
      for command in commands:
        group.wait_for_line(command.name, delayed_link.READY, _LIMIT_S)
    except ProcessError as error:
      raise ValueError(f'links: a delay has not started: {error}') from error
    yield


def _remove(lab: str, names: Sequence[str]) -> None:
  """Removes the listed namespaces of a lab that exist, and its files."""
  are_of_lab = _NAME.fullmatch(lab) and all(
    name.startswith(f'{lab}-') for name in names
  )
  require(bool(are_of_lab), str(_state(lab)), 'only names of the lab', names)
  existing = [name for name in names if (_NAMESPACES / name).exists()]
  _kill_processes(existing)
  for name in existing:
    _call(f'ip netns del {name}')
  _hosts_file(lab).unlink(missing_ok=True)
  _state(lab).unlink(missing_ok=True)


def _kill_processes(namespaces: Sequence[str]) -> None:
  """Sends SIGTERM to all processes of namespaces, and SIGKILL if they stay."""
  start = time.monotonic()
  number: int = signal.SIGTERM
  while pids := [
    int(pid)
    for name in namespaces
    for pid in _call(f'ip netns pids {name}').split()
  ]:
    duration_s = time.monotonic() - start
    require(duration_s < _LIMIT_S, 'processes', 'none after SIGKILL', pids)
    if duration_s > _GRACE_S:
      number = signal.SIGKILL
    for pid in pids:
      with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    number = 0  # Many programs exit at once on a second SIGTERM.
    time.sleep(0.1)


def _call(line: str) -> str:
  """Returns the output of a command, which must succeed."""
  done = subprocess.run(line.split(), capture_output=True, text=True)
  error = done.stderr.strip()
  require(done.returncode == 0, line, 'success', error)
  return done.stdout


def _state(lab: str) -> pathlib.Path:
  return _STATES / f'syncopate-lab-{lab}.json'


def _hosts_file(lab: str) -> pathlib.Path:
  return _state(lab).with_suffix('.hosts')


def _exit(number: int, frame: object) -> NoReturn:
  del frame
  sys.exit(128 + number)
