"""Child processes of one run, and the display of their output.

Every child has a session of its own, so that its descendants end with it.  No
child outlives this process, even if this one is killed: the kernel then kills
the children (PR_SET_PDEATHSIG), and a guard process, which reads a pipe until
this process ends, kills their sessions.  Needs Linux.
"""

import contextlib
import ctypes
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, AnyStr, NamedTuple, Protocol

_PDEATHSIG = 1  # PR_SET_PDEATHSIG, in <sys/prctl.h>.
_PRCTL = ctypes.CDLL(None, use_errno=True).prctl
_LIMIT_S = 10.0
_CHUNK = 2**20  # Bytes that a pipe holds at most.
_LONGEST = 2**20  # Bytes after which a line is shown without its end.
# Reads ids of sessions, each once at its start and once at its end.  Ignores
# signals, because those sent to all processes of a host are for the children.
_GUARD = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
  signal.signal(number, signal.SIG_IGN)
live = set()
for line in sys.stdin:
  live ^= {int(line)}
for session in live:
  try:
    os.killpg(session, signal.SIGKILL)
  except ProcessLookupError:
    pass
"""
# Control sequences of progress bars: to move or hide the cursor, and to erase.
_CONTROL = re.compile(rb'\x1b\[[0-9;?]*[A-HJKSTfhl]')
_ERASE = b'\r\x1b[2K'
# Without a terminal each state of a progress bar is a line.
_ENDS = re.compile(rb'\r*\n|\r+(?=[^\r\n])')
_COLOURS = (36, 32, 33, 35, 34, 31)


class Exit(NamedTuple):
  """End of a child process.

  Attributes:
    name: Name of the child.
    pid: Process id.
    code: Exit code; the negative number of a signal that ended it.
    lived_s: Seconds between its start and its end.
  """

  name: str
  pid: int
  code: int
  lived_s: float


class Screen:
  """Display of the output of all children, in whole lines with their names.

  One child may redraw a line of progress: on a terminal it stays below the
  other lines, elsewhere each state of it is a line.

  Attributes:
    terminal: True if standard output is a terminal.
    lost: True if standard output is closed; lines are then dropped.
  """

  def __init__(self, names: Sequence[str], drawing: str):
    """Initializes the display, and writes nothing.

    Args:
      names: Names of all children.
      drawing: Name of the child that draws progress.
    """
    self._names = list(names)
    self._drawing = drawing
    self._pending = b''
    self.lost = False
    self.terminal = sys.stdout.isatty()
    self._coloured = self.terminal and not os.environ.get('NO_COLOR')
    self._rest = dict.fromkeys(names, b'')
    self._status = b''

  def environ(self, name: str) -> dict[str, str]:
    """Returns environment variables for the output of a child."""
    shown = {'PYTHONUNBUFFERED': '1'}
    if name == self._drawing and self.terminal:
      width = shutil.get_terminal_size().columns - len(f'[{name}] ')
      shown |= {'TTY_COMPATIBLE': '1', 'COLUMNS': str(max(width, 20))}
    return shown

  def print_line(self, text: str) -> None:
    """Writes a line of the launcher."""
    self._write(self._prefix('launch') + text.encode())
    self._flush()

  def feed(self, name: str, data: bytes) -> None:
    """Writes complete lines of a child's output, and holds back the rest."""
    data = self._rest[name] + data
    if self.terminal:
      *lines, rest = data.split(b'\n')
      rest = b'\r'.join(rest.split(b'\r')[-2:])  # The visible states.
    else:
      *lines, rest = _ENDS.split(data.lstrip(b'\r'))
    if len(rest) > _LONGEST:
      lines, rest = [*lines, rest], b''
    self._rest[name] = rest
    if name == self._drawing and self.terminal:
      text = _visible(rest)
      self._status = self._prefix(name) + text if text else b''
      self._pending += _ERASE + self._status
    for line in lines:
      self._show(name, line)
    self._flush()

  def finish(self, name: str) -> None:
    """Writes the rest of an ended child's output, which has no line end."""
    rest, self._rest[name] = self._rest[name], b''
    if name == self._drawing:
      self._status = b''
    if rest:
      self._show(name, rest)
      self._flush()

  def _show(self, name: str, line: bytes) -> None:
    text = _visible(line)
    if text or not _CONTROL.search(line):
      self._write(self._prefix(name) + text)

  def _write(self, line: bytes) -> None:
    if self.terminal:
      line = _ERASE + line
    self._pending += line + b'\n' + self._status

  def _flush(self) -> None:
    data, self._pending = memoryview(self._pending), b''
    try:
      while data and not self.lost:
        data = data[os.write(sys.stdout.fileno(), data) :]
    except OSError:  # The reader of the pipe, or the terminal, has closed.
      self.lost = True

  def _prefix(self, name: str) -> bytes:
    if not self._coloured or name not in self._names:
      return f'[{name}] '.encode()
    colour = _COLOURS[self._names.index(name) % len(_COLOURS)]
    return f'\x1b[{colour}m[{name}]\x1b[0m '.encode()


class Output(Protocol):
  """Receiver of the output of children, such as a `Screen`.

  Attributes:
    lost: True if nothing receives it any more.
  """

  lost: bool

  def feed(self, name: str, data: bytes) -> None:
    """Takes output of a child, in pieces of any size."""

  def finish(self, name: str) -> None:
    """Notes that a child has ended."""


class _Child(NamedTuple):
  popen: subprocess.Popen[bytes]
  output: IO[bytes]
  start: float


class Processes:
  """Running children; a context that ends them all."""

  def __init__(self, screen: Output):
    """Initializes the object, and starts no child.

    Args:
      screen: Receiver of the output of the children.
    """
    self._screen = screen
    self._children: dict[str, _Child] = {}

  def __enter__(self) -> 'Processes':
    self._guard = _start_guard()
    self._selector = selectors.DefaultSelector()
    # Any signal, such as SIGCHLD, ends the wait for output.
    self._woken, self._wake = os.pipe()
    for end in (self._woken, self._wake):
      os.set_blocking(end, False)
    self._selector.register(self._woken, selectors.EVENT_READ)
    signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
    self._before = signal.signal(signal.SIGCHLD, lambda *_: None)
    return self

  def __exit__(self, *exception: object) -> None:
    for child in self._children.values():
      os.killpg(child.popen.pid, signal.SIGKILL)
    for child in self._children.values():
      child.popen.wait(_LIMIT_S)
      child.output.close()
    self._selector.close()
    signal.signal(signal.SIGCHLD, self._before)
    signal.set_wakeup_fd(-1)
    os.close(self._woken)
    os.close(self._wake)
    self._guard.communicate(timeout=_LIMIT_S)

  def names(self) -> list[str]:
    """Returns the names of the running children."""
    return list(self._children)

  def start(
    self, name: str, argv: Sequence[str], environ: Mapping[str, str]
  ) -> int:
    """Starts a child and returns its process id.

    Args:
      name: Name of the child; no running child has it.
      argv: Command.
      environ: Environment of the child.

    Raises:
      OSError: If the command cannot be run.
    """
    popen = subprocess.Popen(
      argv,
      env=dict(environ),
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      bufsize=0,
      start_new_session=True,
      preexec_fn=_die_with(os.getpid()),  # Takes no lock of other threads.
    )
    output = _pipe(popen.stdout)
    self._children[name] = _Child(popen, output, time.monotonic())
    self._notify_guard(popen.pid)
    os.set_blocking(output.fileno(), False)
    self._selector.register(output, selectors.EVENT_READ, name)
    return popen.pid

  def wait(self, timeout_s: float) -> list[Exit]:
    """Shows output until a child ends, a signal arrives or the time is over.

    Also returns when standard output closes.

    Returns:
      The ends of children, after all their output.
    """
    deadline = time.monotonic() + timeout_s
    signalled, lost = False, self._screen.lost
    while not (ended := [n for n in self.names() if self._has_ended(n)]):
      remaining_s = deadline - time.monotonic()
      if signalled or remaining_s <= 0 or self._screen.lost != lost:
        break
      for key, _ in self._selector.select(remaining_s):
        if key.data is None:
          signalled = bool(os.read(self._woken, _CHUNK))
        else:
          self._read(key.data)
    return [self._remove(name) for name in ended]

  def signal(self, name: str, number: int) -> None:
    """Sends a signal to a running child, but not to its descendants."""
    os.kill(self._children[name].popen.pid, number)

  def kill(self, names: Sequence[str]) -> list[Exit]:
    """Kills children and their descendants.

    Args:
      names: Names of children; those that are not running are ignored.

    Returns:
      The ends of the children.

    Raises:
      TimeoutError: If the kernel does not end one.
    """
    names = [name for name in names if name in self._children]
    for name in names:
      os.killpg(self._children[name].popen.pid, signal.SIGKILL)
    deadline = time.monotonic() + _LIMIT_S
    while not all(map(self._has_ended, names)):
      if time.monotonic() > deadline:
        raise TimeoutError(f'Expected {names} to end when killed.')
      time.sleep(0.01)
    return [self._remove(name) for name in names]

  def _has_ended(self, name: str) -> bool:
    # The child stays a zombie, so that its session id is not used again.
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    pid = self._children[name].popen.pid
    return os.waitid(os.P_PID, pid, options) is not None

  def _remove(self, name: str) -> Exit:
    """Removes a child that has ended, and kills its descendants."""
    popen, output, start = self._children[name]
    os.killpg(popen.pid, signal.SIGKILL)
    self._read(name)  # Only once: a descendant may keep writing to the pipe.
    self._screen.finish(name)
    if not output.closed:
      self._selector.unregister(output)
      output.close()
    code = popen.wait()
    del self._children[name]
    self._notify_guard(popen.pid)
    return Exit(name, popen.pid, code, time.monotonic() - start)

  def _read(self, name: str) -> None:
    output = self._children[name].output
    if output.closed:
      return
    try:
      data = os.read(output.fileno(), _CHUNK)
    except BlockingIOError:
      return
    if data:
      self._screen.feed(name, data)
    else:
      self._selector.unregister(output)
      output.close()

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
      self._guard = _start_guard()
      sessions = [child.popen.pid for child in self._children.values()]


def _pipe(stream: IO[AnyStr] | None) -> IO[AnyStr]:
  """Returns a pipe of a process that was started with one."""
  if stream is None:
    raise ValueError('stream: expected a pipe, got None.')
  return stream


def _start_guard() -> subprocess.Popen[str]:
  return subprocess.Popen(
    [sys.executable, '-I', '-S', '-c', _GUARD],
    stdin=subprocess.PIPE,
    stdout=subprocess.DEVNULL,
    text=True,
    start_new_session=True,
  )


def _die_with(parent: int) -> Callable[[], None]:
  """Returns a function that binds a new child to its parent's life."""

  def bind() -> None:
    _PRCTL(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # The parent has ended before.
      os.kill(os.getpid(), signal.SIGKILL)

  return bind


def _visible(line: bytes) -> bytes:
  """Returns the final text of a line, without control sequences."""
  states = [_CONTROL.sub(b'', state) for state in line.split(b'\r')]
  return next((state for state in reversed(states) if state), b'')
