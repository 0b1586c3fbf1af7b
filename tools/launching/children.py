"""Child processes of one run: started, shown line by line, and ended.

Every child has a session of its own, so that what it starts is ended with it.
None outlives this process, even if this one is killed: the kernel then kills
the children (PR_SET_PDEATHSIG), and a guard, which reads a pipe until this
process is gone, what they have started.  Needs Linux.
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
from typing import NamedTuple

_PDEATHSIG = 1  # PR_SET_PDEATHSIG, in <sys/prctl.h>.
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIMIT_S = 10.0
_CHUNK = 2**20  # Bytes that a pipe holds at most.
_LONGEST = 2**20  # Bytes after which a line is shown though it has no end.
# Reads the numbers of sessions, each once when it begins and once when it ends.
# Signals that go to all processes of a host are for those that it guards.
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
# What progress bars send beside text: to move, to erase, to hide the cursor.
_CONTROL = re.compile(rb'\x1b\[[0-9;?]*[A-HJKSTfhl]')
_ERASE = b'\r\x1b[2K'
# Where there is no terminal, what a bar overwrites is a line as well.
_ENDS = re.compile(rb'\r*\n|\r+(?=[^\r\n])')
_COLOURS = (36, 32, 33, 35, 34, 31)


class Exit(NamedTuple):
  """The end of a child.

  Attributes:
    name: Whose.
    pid: Its number.
    code: Exit code, or minus the number of the signal that has ended it.
    lived_s: Seconds since its start.
  """

  name: str
  pid: int
  code: int
  lived_s: float


class Screen:
  """Writes the lines of all children, whole, each behind its child's name.

  One child may draw a line of progress, going back to where it began: on a
  terminal it stays below the others, elsewhere each state of it is a line.

  Attributes:
    terminal: Whether lines go to one.
    lost: Whether nobody takes lines any more; they are dropped.
  """

  def __init__(self, names: Sequence[str], drawing: str):
    """Writes nothing yet.

    Args:
      names: Of all children.
      drawing: The child that draws.
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
    """Returns the variables that tell a child what it may show."""
    shown = {'PYTHONUNBUFFERED': '1'}
    if name == self._drawing and self.terminal:
      width = shutil.get_terminal_size().columns - len(f'[{name}] ')
      shown |= {'TTY_COMPATIBLE': '1', 'COLUMNS': str(max(width, 20))}
    return shown

  def say(self, text: str) -> None:
    """Writes a line of this process's own."""
    self._write(self._prefix('launch') + text.encode())
    self._flush()

  def feed(self, name: str, data: bytes) -> None:
    """Takes output of a child and writes the lines that it completes."""
    data = self._rest[name] + data
    if self.terminal:
      *lines, rest = data.split(b'\n')
      rest = b'\r'.join(rest.split(b'\r')[-2:])  # All that is to be seen.
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
    """Writes what a child has left without the end of a line."""
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
    except OSError:  # The reader of a pipe is gone, or the terminal.
      self.lost = True

  def _prefix(self, name: str) -> bytes:
    if not self._coloured or name not in self._names:
      return f'[{name}] '.encode()
    colour = _COLOURS[self._names.index(name) % len(_COLOURS)]
    return f'\x1b[{colour}m[{name}]\x1b[0m '.encode()


class _Child(NamedTuple):
  popen: subprocess.Popen
  start: float


class Processes:
  """The children that run; use as a context, which ends them all."""

  def __init__(self, screen: Screen):
    """Starts nothing yet.

    Args:
      screen: Shows what the children write.
    """
    self._screen = screen
    self._children: dict[str, _Child] = {}

  def __enter__(self) -> 'Processes':
    self._guard = _started_guard()
    self._selector = selectors.DefaultSelector()
    # Any signal, such as that of a child's end, ends the wait for output.
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
      child.popen.stdout.close()
    self._selector.close()
    signal.signal(signal.SIGCHLD, self._before)
    signal.set_wakeup_fd(-1)
    os.close(self._woken)
    os.close(self._wake)
    self._guard.communicate(timeout=_LIMIT_S)

  def names(self) -> list[str]:
    """Returns the names of the children that run."""
    return list(self._children)

  def start(
    self, name: str, argv: Sequence[str], environ: Mapping[str, str]
  ) -> int:
    """Starts a child and returns its number.

    Args:
      name: Of none that runs.
      argv: Its command.
      environ: Its environment.

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
      preexec_fn=_bound_to(os.getpid()),  # Safe: there is one thread.
    )
    self._children[name] = _Child(popen, time.monotonic())
    self._tell_guard(popen.pid)
    os.set_blocking(popen.stdout.fileno(), False)
    self._selector.register(popen.stdout, selectors.EVENT_READ, name)
    return popen.pid

  def wait(self, timeout_s: float) -> list[Exit]:
    """Shows output until a child ends, a signal comes or time is over.

    It also ends when the screen has lost its reader.

    Returns:
      The children that have ended; all that they have written is shown.
    """
    deadline = time.monotonic() + timeout_s
    signalled, lost = False, self._screen.lost
    while not (ended := [n for n in self.names() if self._has_ended(n)]):
      left = deadline - time.monotonic()
      if signalled or left <= 0 or self._screen.lost != lost:
        break
      for key, _ in self._selector.select(left):
        if key.data is None:
          signalled = bool(os.read(self._woken, _CHUNK))
        else:
          self._read(key.data)
    return [self._bury(name) for name in ended]

  def signal(self, name: str, number: int) -> None:
    """Sends a signal to a child that runs, but not to what it has started."""
    os.kill(self._children[name].popen.pid, number)

  def kill(self, names: Sequence[str]) -> list[Exit]:
    """Ends children and what they have started at once.

    Args:
      names: Of children; those that do not run are passed over.

    Returns:
      Those that it has ended.

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
    return [self._bury(name) for name in names]

  def _has_ended(self, name: str) -> bool:
    # It is left a zombie, so that nobody else gets the number of its session.
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    pid = self._children[name].popen.pid
    return os.waitid(os.P_PID, pid, how) is not None

  def _bury(self, name: str) -> Exit:
    """Forgets a child that has ended, and ends what it has started."""
    popen, start = self._children[name]
    os.killpg(popen.pid, signal.SIGKILL)
    self._read(name)  # Once, as others may write to the same pipe for ever.
    self._screen.finish(name)
    if not popen.stdout.closed:
      self._selector.unregister(popen.stdout)
      popen.stdout.close()
    code = popen.wait()
    del self._children[name]
    self._tell_guard(popen.pid)
    return Exit(name, popen.pid, code, time.monotonic() - start)

  def _read(self, name: str) -> None:
    stdout = self._children[name].popen.stdout
    if stdout.closed:
      return
    try:
      data = os.read(stdout.fileno(), _CHUNK)
    except BlockingIOError:
      return
    if data:
      self._screen.feed(name, data)
    else:
      self._selector.unregister(stdout)
      stdout.close()

  def _tell_guard(self, session: int) -> None:
    sessions = [session]
    while sessions:
      try:
        self._guard.stdin.write(''.join(f'{each}\n' for each in sessions))
        self._guard.stdin.flush()
        return
      except BrokenPipeError:  # Something has killed it.
        with contextlib.suppress(BrokenPipeError):
          self._guard.stdin.close()
        self._guard.wait(_LIMIT_S)
      self._guard = _started_guard()
      sessions = [child.popen.pid for child in self._children.values()]


def _started_guard() -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, '-I', '-S', '-c', _GUARD],
    stdin=subprocess.PIPE,
    stdout=subprocess.DEVNULL,
    text=True,
    start_new_session=True,
  )


def _bound_to(parent: int) -> Callable[[], None]:
  """Returns what a new child calls to die with its parent."""

  def bind() -> None:
    _LIBC.prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It has died before.
      os.kill(os.getpid(), signal.SIGKILL)

  return bind


def _visible(line: bytes) -> bytes:
  """Returns what a terminal would show in the end, without cursor movements."""
  states = [_CONTROL.sub(b'', state) for state in line.split(b'\r')]
  return next((state for state in reversed(states) if state), b'')
