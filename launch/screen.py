"""The display of the output of the processes of one run."""

import os
import re
import shutil
import sys
from collections.abc import Sequence

_LONGEST = 2**20  # Bytes after which a line is shown without its end.
# Control sequences of progress bars: to move or hide the cursor, and to erase.
_CONTROL = re.compile(rb'\x1b\[[0-9;?]*[A-HJKSTfhl]')
_ERASE = b'\r\x1b[2K'
# Without a terminal each state of a progress bar is a line.
_ENDS = re.compile(rb'\r*\n|\r+(?=[^\r\n])')
_COLOURS = (36, 32, 33, 35, 34, 31)


class Screen:
  """Display of the output of all children, in whole lines with their names.

  One child may redraw a line of progress: on a terminal it stays below the
  other lines, elsewhere each state of it is a line.

  Args:
    drawing: Name of the child that draws progress.

  Attributes:
    terminal: True if standard output is a terminal.
    lost: True if standard output is closed; lines are then dropped.
  """

  def __init__(self, names: Sequence[str], drawing: str):
    self._names = list(names)
    self._drawing = drawing
    self._pending = b''
    self.lost = False
    self.terminal = sys.stdout.isatty()
    self._coloured = self.terminal and not os.environ.get('NO_COLOR')
    self._rest = dict.fromkeys(names, b'')
    self._status = b''

  def environ(self, name: str) -> dict[str, str]:
    """Returns environment variables for a child whose output is shown here."""
    shown = {'PYTHONUNBUFFERED': '1'}
    if name == self._drawing and self.terminal:
      width = shutil.get_terminal_size().columns - len(f'[{name}] ')
      shown |= {'TTY_COMPATIBLE': '1', 'COLUMNS': str(max(width, 20))}
    return shown

  def print_line(self, text: str) -> None:
    """Writes a line of the launcher itself."""
    self._write(self._prefix('launch') + text.encode())
    self._flush()

  def feed(self, name: str, data: bytes) -> None:
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
    """Shows an unfinished last line; progress is not drawn again."""
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


def _visible(line: bytes) -> bytes:
  """Returns the final text of a line, without control sequences."""
  states = [_CONTROL.sub(b'', state) for state in line.split(b'\r')]
  return next((state for state in reversed(states) if state), b'')
