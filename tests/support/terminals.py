"""Terminals of commands, which tests close as a lost connection does."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any


class Terminal:
  """Terminal whose session a command leads.

  Attributes:
    process: Process of the command.
  """

  def __init__(self, words: Sequence[str], **options: Any):
    """Starts a command.

    Args:
      words: Words of the command.
      **options: Options of `subprocess.Popen`.
    """
    self._controller, terminal = os.openpty()
    self.process = subprocess.Popen(
      ['setsid', '--ctty', *words],
      stdin=terminal,
      stdout=terminal,
      stderr=terminal,
      **options,
    )
    os.close(terminal)
    os.set_blocking(self._controller, False)

  def read(self) -> bytes:
    """Returns the output since the last call, without waiting."""
    with contextlib.suppress(BlockingIOError):
      return os.read(self._controller, 2**16)
    return b''

  def close(self) -> None:
    """Closes the terminal: the kernel sends SIGHUP to the command."""
    os.close(self._controller)


@contextlib.contextmanager
def start(words: Sequence[str], **options: Any) -> Iterator[Terminal]:
  """Yields a terminal that runs a command; kills the command at the end."""
  terminal = Terminal(words, **options)
  try:
    yield terminal
  finally:
    terminal.process.kill()
    terminal.process.wait()
