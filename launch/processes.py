"""Starts processes, waits for them with a deadline, and ends all of them.

  commands = [
    Command('server', [sys.executable, 'server.py']),
    Command('client', lab.command('host1', [sys.executable, 'client.py'])),
  ]
  with processes.start(commands, folder) as group:
    group.wait_for_line('server', 'listening', timeout_s=10.0)
    group.start(Command('joiner', ...))
    group.finish(timeout_s=60.0)

Each process writes its output to NAME.log in the folder.  It has a session of
its own, so that its descendants end with it.  No process outlives the context,
nor this process, even if this one is killed: a guard process, which reads a
pipe until this process ends, then ends the others.  Needs Linux.
"""

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import re
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, AnyStr, NamedTuple, Protocol

_ROOT = pathlib.Path(__file__).parents[1]
_PDEATHSIG = 1  # PR_SET_PDEATHSIG, in <sys/prctl.h>.
_PRCTL = ctypes.CDLL(None, use_errno=True).prctl
_LIMIT_S = 10.0  # For the kernel, to end a process that is killed.
_POLL_S = 0.02
_CHUNK = 2**20  # Bytes that a pipe holds at most.
_CLOSED = -1  # Instead of a file descriptor.
_TAIL = 20  # Last lines of a log that an error shows.
# Reads ids of sessions, each once at its start and once at its end.  Ignores
# signals, because those sent to all processes of a host are for the others.
_GUARD = """
import os, signal, sys, time
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
  signal.signal(number, signal.SIG_IGN)
live = set()
for line in sys.stdin:
  live ^= {int(line)}
deadline = time.monotonic() + float(sys.argv[1])
def send(function, session, number):
  try:
    function(session, number)
    return True
  except ProcessLookupError:
    return False
if time.monotonic() < deadline:
  for session in live:
    send(os.kill, session, signal.SIGTERM)
while live and time.monotonic() < deadline:
  for session in list(live):
    if not send(os.kill, session, 0):
      send(os.killpg, session, signal.SIGKILL)
      live.remove(session)
  time.sleep(0.05)
for session in live:
  send(os.killpg, session, signal.SIGKILL)
"""


@dataclasses.dataclass(frozen=True)
class Command:
  """A process to start.

  Attributes:
    name: Name in its group, and of its log.
    argv: Command; `lab.command` returns one that runs on a host of a lab.
    env: Changes to the environment of this process; None removes a variable.
    folder: Working directory; None for that of this process.
    answers: True to connect standard input and output with `Group.send` and
      `Group.receive`; the log then has standard error alone.
  """

  name: str
  argv: Sequence[str]
  env: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
  folder: pathlib.Path | None = None
  answers: bool = False


def python_path() -> str:
  """Returns the PYTHONPATH with which other processes find these modules."""
  return os.pathsep.join(
    filter(None, [str(_ROOT), os.environ.get('PYTHONPATH')])
  )


def module_command(
  name: str,
  module: str,
  *words: str,
  env: Mapping[str, str | None] | None = None,
  answers: bool = False,
) -> Command:
  """Returns a command that runs a module of the repository, in any folder.

  `env` and `answers` are those of `Command`.
  """
  argv = [sys.executable, '-m', module, *words]
  env = {'PYTHONPATH': python_path()} | dict(env or {})
  return Command(name, argv, env, answers=answers)


class ProcessError(RuntimeError):
  """A process has failed or takes too long; the message has its last lines."""


class Exit(NamedTuple):
  """End of a process.

  Attributes:
    name: Name of the process.
    pid: Process id.
    code: Exit code; the negative number of a signal that ended it.
    lived_s: Seconds between its start and its end.
  """

  name: str
  pid: int
  code: int
  lived_s: float


class Output(Protocol):
  """Receiver of the output of processes, instead of logs.

  Attributes:
    lost: True if nothing receives it any more.
  """

  lost: bool

  def feed(self, name: str, data: bytes) -> None:
    """Takes output of a process, in pieces of any size.

    Args:
      name: Name of the process.
      data: Bytes of its output, which may end within a line or a character.
    """

  def finish(self, name: str) -> None:
    """Ends the output of a process that has ended.

    `feed` has had all of it; a later process may have the same name.
    """


@contextlib.contextmanager
def start(
  commands: Iterable[Command], folder: pathlib.Path, *, grace_s: float = 0.0
) -> Iterator['Group']:
  """Starts processes, which end with the context.

  Args:
    folder: Folder of their logs, which is created if it is missing.
    grace_s: Seconds between SIGTERM and SIGKILL for processes that run when the
      context or this process ends; 0 for SIGKILL only.  A command that has to
      clean up needs some, such as a lab or the launcher of a run.

  Raises:
    OSError: If a command cannot be run.
  """
  with Group(folder, grace_s=grace_s) as group:
    for command in commands:
      group.start(command)
    yield group


class _Running(NamedTuple):
  popen: subprocess.Popen[bytes]
  descriptor: int  # Readable after the end of the process.
  output: IO[bytes] | None  # Pipe, for an `Output`.
  start: float


class Group:
  """Named processes; a context that ends them all.

  Several threads may wait for processes and signal them.

  Args:
    folder: Folder of the logs; None if there is a receiver of the output.
    grace_s: Time between SIGTERM and SIGKILL at the end.
    output: Receiver of the output, in `next_ends`; None to write logs.
    is_bound: True if the kernel, too, ends each process with this thread, even
      if the guard was killed.  This process must not have loaded JAX, which
      warns of the fork.
  """

  def __init__(
    self,
    folder: pathlib.Path | None,
    *,
    grace_s: float = 0.0,
    output: Output | None = None,
    is_bound: bool = False,
  ):
    self._folder, self._grace_s = folder, grace_s
    self._output, self._is_bound = output, is_bound
    self._running: dict[str, _Running] = {}
    self._codes: dict[str, int] = {}
    self._received: dict[str, bytes] = {}  # Parts of lines.
    self._changing = threading.RLock()
    self._waker = _CLOSED

  def __enter__(self) -> 'Group':
    self._guard = self._start_guard()
    self._selector = selectors.DefaultSelector()
    self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    self._selector.register(self._waker, selectors.EVENT_READ)
    return self

  def __exit__(self, *exception: object) -> None:
    try:
      self.end()
    finally:
      self._selector.close()
      waker, self._waker = self._waker, _CLOSED  # A late signal may wake.
      os.close(waker)
      self._guard.communicate(timeout=_LIMIT_S)

  def start(self, command: Command) -> int:
    """Starts a process and returns its process id.

    Args:
      command: The process; no running process has its name.

    Raises:
      OSError: If the command cannot be run.
      ValueError: If a process with this name runs.
    """
    name = command.name
    if name in self._running:
      raise ValueError(f'name: expected no running process, got {name!r}.')
    with contextlib.ExitStack() as files:
      kept = subprocess.PIPE
      if self._output is None:
        path = self.log_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        log = files.enter_context(path.open('ab'))
      popen = subprocess.Popen(
        command.argv,
        cwd=command.folder,
        env={
          variable: value
          for variable, value in (os.environ | command.env).items()
          if value is not None
        },
        stdin=kept if command.answers else subprocess.DEVNULL,
        stdout=kept if self._output or command.answers else log,
        stderr=log if self._output is None else subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,
        # Takes no lock of other threads.
        preexec_fn=_die_with(os.getpid()) if self._is_bound else None,
      )
    with self._changing:
      output = _pipe(popen.stdout) if self._output else None
      descriptor = os.pidfd_open(popen.pid)
      self._running[name] = _Running(
        popen, descriptor, output, time.monotonic()
      )
      self._notify_guard(popen.pid)
      self._codes.pop(name, None)
      self._received[name] = b''
      self._selector.register(descriptor, selectors.EVENT_READ, name)
      if output:
        os.set_blocking(output.fileno(), False)
        self._selector.register(output, selectors.EVENT_READ, name)
    return popen.pid

  def names(self) -> list[str]:
    """Returns the names of processes whose end is not known yet."""
    return list(self._running)

  def pid(self, name: str) -> int:
    """Returns the process id of a process whose end is not known yet."""
    return self._running[name].popen.pid

  def code(self, name: str) -> int | None:
    """Returns the exit code of a process; None if it runs.

    Also receives output and ends of other processes, as `next_ends` does.
    """
    if name in self._running:
      self.next_ends(0.0)
    return None if name in self._running else self._codes[name]

  def log_path(self, name: str) -> pathlib.Path:
    """Returns the file of a process's output."""
    if self._folder is None:
      raise ValueError('folder: expected one for logs, got None.')
    return self._folder / f'{name}.log'

  def log(self, name: str) -> str:
    """Returns the output of a process so far.

    Output of an earlier process of this name in the folder precedes it.
    """
    return self.log_path(name).read_text(errors='replace')

  def tail(self, name: str, lines: int = _TAIL) -> str:
    """Returns the last lines of the output of a process so far."""
    return '\n'.join(self.log(name).splitlines()[-lines:])

  def wait(self, timeout_s: float, *names: str) -> dict[str, int]:
    """Waits until processes have ended; returns their exit codes by name.

    Args:
      timeout_s: Limit, seconds.
      *names: Processes; all by default.

    Raises:
      ProcessError: If some still run after the limit.
    """
    self._wait(timeout_s, names, lambda: False)
    return {name: self._codes[name] for name in names or self._codes}

  def finish(self, timeout_s: float, *names: str) -> None:
    """Waits until processes have ended, all with exit code 0.

    Args:
      timeout_s: Limit, seconds.
      *names: Processes; all by default.

    Raises:
      ProcessError: As soon as one fails, or if some run after the limit.
    """

    def failed() -> list[str]:
      return [name for name in names or self._codes if self._codes.get(name)]

    self._wait(timeout_s, names, lambda: bool(failed()))
    if failed():
      codes = {name: self._codes[name] for name in failed()}
      raise self._error(f'expected exit code 0, got {codes}', failed())

  def wait_for_line(
    self, name: str, pattern: str, timeout_s: float, *, count: int = 1
  ) -> re.Match[str]:
    """Waits until `count` lines of a log match; returns the last match.

    Args:
      name: Name of the process, whose log is read from its beginning.
      pattern: Regular expression, searched in each whole line.
      timeout_s: Limit, seconds.
      count: Number of lines that must match.

    Raises:
      ProcessError: If the process ends before, or after the time limit.
    """
    deadline = time.monotonic() + timeout_s
    while True:
      has_ended = self.code(name) is not None
      lines = self.log(name).rpartition('\n')[0].splitlines()
      matches = [match for line in lines if (match := re.search(pattern, line))]
      if len(matches) >= count:
        return matches[count - 1]
      wanted = f'expected {count} lines with {pattern!r}, got {len(matches)}'
      if has_ended:
        raise self._error(f'{wanted} before it ended', [name])
      if time.monotonic() > deadline:
        raise self._error(f'{wanted} within {timeout_s:g} s', [name])
      time.sleep(_POLL_S)

  def send(self, name: str, line: str) -> None:
    """Writes a line to a process whose command `answers`.

    Raises:
      ProcessError: If it has ended.
    """
    try:
      if name in self._running:
        _pipe(self._running[name].popen.stdin).write(f'{line}\n'.encode())
        return
    except BrokenPipeError:
      pass
    raise self._error(f'it has ended before {line!r}', [name])

  def receive(self, name: str, timeout_s: float) -> str:
    """Returns the next line of a process whose command `answers`.

    Raises:
      ProcessError: If it ends without one, or after the time limit.
    """
    deadline = time.monotonic() + timeout_s
    while b'\n' not in self._received[name]:
      if name not in self._running:
        raise self._error('it has ended without an answer', [name])
      output = _pipe(self._running[name].popen.stdout)
      if not _is_readable(output.fileno(), deadline - time.monotonic()):
        raise self._error(f'no answer within {timeout_s:g} s', [name])
      data = os.read(output.fileno(), _CHUNK)
      if not data:
        raise self._error('it has closed its output without an answer', [name])
      self._received[name] += data
    line, _, self._received[name] = self._received[name].partition(b'\n')
    return line.decode()

  def signal(self, name: str, number: int) -> None:
    """Sends a signal to a process, but not to its descendants.

    Does nothing if it has ended.
    """
    if name in self._running:
      signal.pidfd_send_signal(self._running[name].descriptor, number)

  def kill(self, *names: str) -> list[Exit]:
    """Kills processes and their descendants, and returns their ends.

    Args:
      *names: Processes, of which those that have ended are ignored; all by
        default.

    Raises:
      TimeoutError: If the kernel does not end one.
    """
    killed = [name for name in names or self.names() if name in self._running]
    for name in killed:
      os.killpg(self.pid(name), signal.SIGKILL)
    deadline = time.monotonic() + _LIMIT_S
    for name in killed:
      limit_s = deadline - time.monotonic()
      if not _is_readable(self._running[name].descriptor, limit_s):
        raise TimeoutError(f'Expected {killed} to end when killed.')
    return self._remove(killed)

  def end(self, *names: str) -> dict[str, int]:
    """Ends processes and their descendants; returns the exit codes by name.

    With a grace time, the processes get SIGTERM, and those that still run after
    it are killed.  Without one (`grace_s` 0, the default) all are killed at
    once.  Descendants of a process are killed when it ends.

    Args:
      *names: Processes, which may have ended already; all by default.

    Raises:
      TimeoutError: If the kernel does not end one within 10 s.
    """
    names = names or (*self._codes, *self._running)
    if self._grace_s:
      for name in names:
        self.signal(name, signal.SIGTERM)
      with contextlib.suppress(ProcessError):
        self._wait(self._grace_s, names, lambda: False)
    self.kill(*names)
    return {name: self._codes[name] for name in names}

  def next_ends(self, timeout_s: float) -> list[Exit]:
    """Waits until a process ends, `wake` is called or the time is over.

    Also returns when the receiver of the output is lost.

    Args:
      timeout_s: Longest time to wait; 0 to look only.

    Returns:
      The ends of processes, once all their output has been received.
    """
    deadline = time.monotonic() + timeout_s
    was_lost, is_woken = self._is_lost(), False
    while True:
      limit_s = max(deadline - time.monotonic(), 0.0)
      ended = []
      for key, _ in self._selector.select(limit_s):
        if key.data is None:
          is_woken = bool(os.eventfd_read(self._waker))
        elif isinstance(key.fileobj, int):
          ended.append(key.data)
        else:
          self._read(key.data)
      is_over = time.monotonic() >= deadline
      if ended or is_woken or is_over or self._is_lost() != was_lost:
        return self._remove(ended)

  def wake(self) -> None:
    """Makes `next_ends` return; for signal handlers and other threads."""
    if self._waker != _CLOSED:
      os.eventfd_write(self._waker, 1)

  def _wait(
    self, timeout_s: float, names: Sequence[str], is_over: Callable[[], bool]
  ) -> None:
    """Waits until processes have ended, or `is_over` returns True."""
    deadline = time.monotonic() + timeout_s
    while not is_over() and self._left(names):
      limit_s = deadline - time.monotonic()
      ended = self.next_ends(max(limit_s, 0.0))
      if limit_s <= 0 and not ended:
        codes = f'; ended with {self._codes}' if self._codes else ''
        wanted = f'expected an end within {timeout_s:g} s{codes}'
        raise self._error(wanted, self._left(names))

  def _left(self, names: Sequence[str]) -> list[str]:
    return [name for name in names or self.names() if name in self._running]

  def _error(self, problem: str, names: Sequence[str]) -> ProcessError:
    parts = [f'{", ".join(names)}: {problem}.']
    for name in names:
      parts += [f'{self.log_path(name)} ends:', self.tail(name)]
    return ProcessError('\n'.join(parts))

  def _is_lost(self) -> bool:
    return self._output is not None and self._output.lost

  def _remove(self, names: Sequence[str]) -> list[Exit]:
    """Removes processes that have ended, and kills their descendants."""
    with self._changing:  # Another thread may have removed some.
      return [self._remove_one(name) for name in names if name in self._running]

  def _remove_one(self, name: str) -> Exit:
    popen, descriptor, output, start = self._running[name]
    # It stays a zombie until then, so that its id is not used again.
    os.killpg(popen.pid, signal.SIGKILL)
    if output and self._output:
      self._read(name)  # Only once: a descendant may keep writing to the pipe.
      self._output.finish(name)
      if not output.closed:
        self._selector.unregister(output)
    elif popen.stdout:  # Answers that were not read.
      os.set_blocking(popen.stdout.fileno(), False)
      self._received[name] += popen.stdout.read() or b''
    self._selector.unregister(descriptor)
    os.close(descriptor)
    code = popen.wait()
    for stream in (popen.stdin, popen.stdout):
      if stream:
        stream.close()
    del self._running[name]
    self._codes[name] = code
    self._notify_guard(popen.pid)
    return Exit(name, popen.pid, code, time.monotonic() - start)

  def _read(self, name: str) -> None:
    output = _pipe(self._running[name].output)
    if output.closed or self._output is None:
      return
    try:
      data = os.read(output.fileno(), _CHUNK)
    except BlockingIOError:
      return
    if data:
      self._output.feed(name, data)
    else:
      self._selector.unregister(output)
      output.close()

  def _start_guard(self) -> subprocess.Popen[str]:
    return subprocess.Popen(
      [sys.executable, '-I', '-S', '-c', _GUARD, str(self._grace_s)],
      stdin=subprocess.PIPE,
      stdout=subprocess.DEVNULL,
      text=True,
      start_new_session=True,
    )

  def _notify_guard(self, session: int) -> None:
    sessions = [session]
    while sessions:
      orders = _pipe(self._guard.stdin)
      try:
        orders.write(''.join(f'{each}\n' for each in sessions))
        orders.flush()
        return
      except BrokenPipeError:  # The guard was killed.
        with contextlib.suppress(BrokenPipeError):
          orders.close()
        self._guard.wait(_LIMIT_S)
      self._guard = self._start_guard()
      sessions = [running.popen.pid for running in self._running.values()]


def _pipe(stream: IO[AnyStr] | None) -> IO[AnyStr]:
  """Returns a pipe of a process that was started with one."""
  if stream is None:
    raise ValueError('process: expected one with a pipe, got none.')
  return stream


def _is_readable(descriptor: int, timeout_s: float) -> bool:
  poll = select.poll()
  poll.register(descriptor, select.POLLIN)
  return bool(poll.poll(max(timeout_s, 0.0) * 1e3))


def _die_with(parent: int) -> Callable[[], None]:
  """Returns a function that binds a new process to its parent's life."""

  def bind() -> None:
    _PRCTL(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # The parent has ended before.
      os.kill(os.getpid(), signal.SIGKILL)

  return bind
