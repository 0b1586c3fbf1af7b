"""Display of a run: a progress bar on a terminal, log lines elsewhere."""

import contextlib
import io
from collections.abc import Iterator, Mapping
from typing import Any

import rich.console
import rich.progress
import rich.table
from absl import logging

from outputs import figures, terminal


class Console:
  """Display of a run's progress; use as a context.

  Args:
    target: Examples after which the run ends.
    clock: Kind of the run's seconds: 'virtual' or 'real'.
    primary: Name of the measure that is shown during the run.
  """

  def __init__(self, *, target: int, clock: str, primary: str = 'accuracy'):
    self._clock, self._primary = clock, primary
    self._console = rich.console.Console()
    self._is_drawn = self._console.is_terminal
    self._bar = rich.progress.Progress(
      rich.progress.BarColumn(),
      rich.progress.TaskProgressColumn(),
      rich.progress.TextColumn('{task.description}'),
      rich.progress.TimeRemainingColumn(),
      console=self._console,
    )
    self._task = self._bar.add_task('', total=target)

  def __enter__(self) -> 'Console':
    if self._is_drawn:
      with terminal.may_be_lost():
        self._bar.start()
    return self

  def __exit__(self, *exception: object) -> None:
    if self._is_drawn:
      with terminal.may_be_lost():
        self._bar.stop()

  def show(self, row: Mapping[str, Any], newest: Mapping[str, float]) -> None:
    """Shows a row of metrics.jsonl, and a measure of the newest evaluation.

    Rows of barriers are not logged.

    Args:
      row: Row of metrics.jsonl.
      newest: Measures of the newest evaluation, by name.
    """
    value = figures.text(self._primary, newest.get(self._primary))
    text = (
      f'{figures.label(self._primary)} {value}  '
      f'{self._clock} {row["time"]:.1f} s  '
      f'{row["wall_examples_per_s"]:.0f} examples/s  '
      f'waiting {_number(row["waiting_share"], ".1%")}'
    )
    if self._is_drawn:
      self._bar.update(self._task, completed=row['examples'], description=text)
    elif row['kind'] != 'barrier':
      loss = '' if row['loss'] is None else f'  loss {row["loss"]:.4f}'
      logging.info('epoch %6.2f  %s%s', row['epoch'], text, loss)

  def table(self, scheme: str, summary: Mapping[str, Any]) -> None:
    """Prints the table that ends a run."""
    table = rich.table.Table(
      show_header=False, title=f'Times are {self._clock} seconds', min_width=40
    )
    table.add_column()
    table.add_column(justify='right')
    measured = figures.final(summary)
    rows = {
      'scheme': scheme,
      **{
        figures.label(name): figures.text(name, measured[name])
        for name in sorted(measured, key=lambda name: name != self._primary)
      },
      **{
        f'time to {wanted}': _number(time_s, '.2f')
        for wanted, time_s in figures.times(summary).items()
      },
      'time in all': _number(summary['time_s'], '.2f'),
      'iterations': str(summary['iterations']),
      'updates': str(summary['updates']),
      **{
        label: str(len(summary[name]))
        for label, name in (
          ('dropped pushes', 'dropped'),
          ('lost iterations', 'lost'),
        )
        if summary[name]
      },
      'waiting share': _number(summary['waiting_share'], '.1%'),
      'transfer share': _number(_transfer_share(summary), '.1%'),
      'mean staleness': _number(summary['staleness_mean'], '.2f'),
      'largest staleness': _number(summary['staleness_max'], 'd'),
      'goodput': _number(summary['goodput'], '.1%'),
    }
    for row in rows.items():
      table.add_row(*row)
    with terminal.may_be_lost():
      self._console.print(table)


def _transfer_share(summary: Mapping[str, Any]) -> float | None:
  """Returns the share of the workers' time in transfers; None at the start."""
  seconds = summary['worker_seconds']
  whole_s = sum(seconds.values())
  return (seconds['pull'] + seconds['push']) / whole_s if whole_s else None


def _number(value: float | None, form: str) -> str:
  return '-' if value is None else format(value, form)


@contextlib.contextmanager
def hidden() -> Iterator[None]:
  """Hides the displays of runs, except for warnings."""
  logger = logging.get_absl_logger()
  before = logger.level  # The verbosity differs before flags are parsed.
  logger.setLevel('WARNING')
  try:
    with contextlib.redirect_stdout(io.StringIO()):
      yield
  finally:
    logger.setLevel(before)
