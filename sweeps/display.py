"""What a sweep shows: one line that changes on a terminal, lines elsewhere."""

import shutil
import sys
import time
from collections.abc import Sequence

from sweeps.folder import LOG, Folder, State
from sweeps.plan import Run
from sweeps.results import Results

_ERASE = '\r\x1b[2K'


class Display:
  """Follows a sweep, and keeps its results."""

  def __init__(
    self, runs: Sequence[Run], left: int, folder: Folder, results: Results
  ):
    """Shows nothing yet.

    Args:
      runs: Of the sweep.
      left: How many of them are not over.
      folder: Of the sweep.
      results: Is told what runs have come to.
    """
    self._count, self._left, self._begun_with = len(runs), left, left
    self._folder, self._results = folder, results
    self._running: dict[str, float] = {}
    self._terminal = sys.stdout.isatty()
    self._start = time.monotonic()
    self.failed: list[tuple[Run, State]] = []

  def started(self, run: Run) -> None:
    """A run has started."""
    self._running[run.name] = time.monotonic()
    self.look()

  def ended(self, run: Run, state: State) -> None:
    """A run has ended; its row is written."""
    took_s = time.monotonic() - self._running.pop(run.name)
    self._results.update(run, state)
    if state.status == 'unfinished':
      return  # Stopped, and nothing more is to be said.
    self._left -= 1
    if state.status != 'finished':
      self.failed.append((run, state))
    if not self._terminal or state.status != 'finished':
      said = f'{run.name}: {state.status} after {duration(took_s)}'
      self.say(f'[{self._count - self._left}/{self._count}] {said}{self._eta}')
    self.look()

  def look(self) -> None:
    """Draws the line anew, if it is drawn."""
    if self._terminal:
      over = self._count - self._left
      failed = f', {len(self.failed)} failed' if self.failed else ''
      line = (
        f'{over} of {self._count} over{failed}, {len(self._running)} running'
      )
      past = duration(time.monotonic() - self._start)
      width = shutil.get_terminal_size().columns - 1
      print(_ERASE + f'{line}, {past}{self._eta}'[:width], end='', flush=True)

  def say(self, text: str) -> None:
    """Shows a line that stays."""
    print((_ERASE if self._terminal else '') + text, flush=True)

  def close(self) -> None:
    """Ends the line, and lists the runs that failed."""
    if self._terminal:
      print(_ERASE, end='')
    for run, state in self.failed:
      print(f'\n{run.name}: {state.status}')
      for line in state.error.splitlines():
        print(f'  {line}')
      print(f'  {self._folder.file(run.name, LOG)}')

  @property
  def _eta(self) -> str:
    """How long it takes still, if runs to come take as long as those before."""
    done = self._begun_with - self._left
    if not (done and self._left):
      return ''
    past_s = time.monotonic() - self._start
    return f', about {duration(past_s / done * self._left)} left'


def duration(seconds: float) -> str:
  """Returns seconds as text such as 1:02:03.

  Example:
    >>> duration(3723.4), duration(62), duration(3.21)
    ('1:02:03', '1:02', '3.2 s')
  """
  if seconds < 60:
    return f'{seconds:.1f} s'
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours}:{minutes:02}:{rest:02}' if hours else f'{minutes}:{rest:02}'
