"""Commands that tests start in the background, and end with a context."""

import contextlib
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

from launch import processes
from tests.support import accelerators

ROOT = pathlib.Path(__file__).parents[2]
LIMIT_S = 100.0  # Only a hang takes longer, on a busy machine, too.
_NAME = 'command'


class Running:
  """A command, and its output so far.

  Attributes:
    process_id: Id of its process.
    log_path: File of its output.
  """

  def __init__(self, group: processes.Group, name: str = _NAME):
    self._group, self._name = group, name
    self.process_id, self.log_path = group.pid(name), group.log_path(name)

  @property
  def text(self) -> str:
    """Output so far."""
    return self._group.log(self._name)

  @property
  def code(self) -> int | None:
    """Exit code; None while it runs."""
    return self._group.code(self._name)

  def signal(self, number: int) -> None:
    """Sends a signal to its process alone."""
    self._group.signal(self._name, number)

  def kill(self) -> None:
    """Kills it with its descendants."""
    self._group.kill(self._name)

  def until(self, pattern: str, count: int = 1) -> re.Match[str]:
    """Waits until a number of lines match; returns the last match."""
    wait = self._group.wait_for_line
    return wait(self._name, pattern, LIMIT_S, count=count)

  def wait(self, limit_s: float = LIMIT_S) -> int:
    """Waits for its end; returns its exit code."""
    return self._group.wait(limit_s, self._name)[self._name]

  def send(self, line: str) -> None:
    """Writes a line to a command that answers."""
    self._group.send(self._name, line)

  def receive(self) -> str:
    """Returns the next line of a command that answers."""
    return self._group.receive(self._name, LIMIT_S)


@contextlib.contextmanager
def start(
  argv: Sequence[str],
  *,
  env: Mapping[str, str | None] | None = None,
  folder: pathlib.Path = ROOT,
  grace_s: float = 0.0,
  answers: bool = False,
  make: Callable[[processes.Group], Running] = Running,
) -> Iterator[Running]:
  """Starts a command, and kills it with the context if it has not ended.

  Args:
    argv: The command.
    env: Changes to the environment of tests.
    folder: Working directory.
    grace_s: Seconds between SIGTERM and SIGKILL, for what has to clean up.
    answers: True to connect `send` and `receive`.
    make: Makes what is yielded.
  """
  env = accelerators.inherited() | dict(env or {})
  command = processes.Command(_NAME, argv, env, folder, answers)
  logs = pathlib.Path(tempfile.mkdtemp())
  with processes.start([command], logs, grace_s=grace_s) as group:
    yield make(group)


def python(code: str, *words: str) -> list[str]:
  """Returns the command of a program in Python."""
  return [sys.executable, '-c', code, *words]
