"""Progress of a sweep: one line that changes on a terminal, lines elsewhere."""

import shutil
import sys
import time
from collections.abc import Sequence

from outputs import terminal
from sweeps.folder import LOG, SweepFolder
from sweeps.outcomes import Outcome
from sweeps.plan import PlannedRun
from sweeps.results import ResultsTable

_ERASE = '\r\x1b[2K'


class Display:
  """Observer of a sweep that shows its progress and updates its results.

  Args:
    runs: All runs of the sweep.
    remaining: Number of runs without a final outcome.
    folder: Folder of the sweep.

  Attributes:
    failed: Runs that failed or diverged, and their outcomes.
  """

  def __init__(
    self,
    runs: Sequence[PlannedRun],
    remaining: int,
    folder: SweepFolder,
    results: ResultsTable,
  ):
    self._count, self._remaining, self._remaining_at_start = (
      len(runs),
      remaining,
      remaining,
    )
    self._folder, self._results = folder, results
    self._started_s: dict[str, float] = {}  # Start of running runs, by name.
    self._terminal = sys.stdout.isatty()
    self._start_s = time.monotonic()
    self.failed: list[tuple[PlannedRun, Outcome]] = []

  def run_started(self, run: PlannedRun) -> None:
    self._started_s[run.name] = time.monotonic()
    self.refresh()

  def run_ended(self, run: PlannedRun, outcome: Outcome) -> None:
    duration_s = time.monotonic() - self._started_s.pop(run.name)
    self._results.update(run, outcome)
    if outcome.status == 'unfinished':
      return  # The sweep was stopped, and shows this once for all runs.
    self._remaining -= 1
    if outcome.status != 'finished':
      self.failed.append((run, outcome))
    if not self._terminal or outcome.status != 'finished':
      duration = format_duration(duration_s)
      text = f'{run.name}: {outcome.status} after {duration}'
      over = self._count - self._remaining
      self.print_line(f'[{over}/{self._count}] {text}{self._time_left}')
    self.refresh()

  def refresh(self) -> None:
    if self._terminal:
      over = self._count - self._remaining
      failed = f', {len(self.failed)} failed' if self.failed else ''
      line = (
        f'{over} of {self._count} over{failed}, {len(self._started_s)} running'
      )
      past = format_duration(time.monotonic() - self._start_s)
      width = shutil.get_terminal_size().columns - 1
      text = f'{line}, {past}{self._time_left}'[:width]
      with terminal.may_be_lost():
        print(_ERASE + text, end='', flush=True)

  def print_line(self, text: str) -> None:
    with terminal.may_be_lost():
      print((_ERASE if self._terminal else '') + text, flush=True)

  def close(self) -> None:
    """Erases the line of a terminal, and lists the runs that failed."""
    lines = [_ERASE if self._terminal else '']
    for run, outcome in self.failed:
      lines.append(f'\n{run.name}: {outcome.status}\n')
      lines += [f'  {line}\n' for line in outcome.error.splitlines()]
      lines.append(f'  {self._folder.file(run.name, LOG)}\n')
    with terminal.may_be_lost():
      print(''.join(lines), end='', flush=True)

  @property
  def _time_left(self) -> str:
    """Text of the time left if the next runs take as long as those before."""
    done = self._remaining_at_start - self._remaining
    if not (done and self._remaining):
      return ''
    past_s = time.monotonic() - self._start_s
    return f', about {format_duration(past_s / done * self._remaining)} left'


def format_duration(seconds: float) -> str:
  """Returns seconds as text such as 1:02:03.

  Example:
    >>> format_duration(3723.4), format_duration(62), format_duration(3.21)
    ('1:02:03', '1:02', '3.2 s')
  """
  if seconds < 60:
    return f'{seconds:.1f} s'
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours}:{minutes:02}:{rest:02}' if hours else f'{minutes}:{rest:02}'
