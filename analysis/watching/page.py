"""Terminal page of a run, from its files."""

import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import analysis
from analysis import runs
from analysis.watching.memory import find_memory
from analysis.watching.progress import LEFT, Progress
from outputs import figures

_MOST_WORKERS = 64  # Rows of the table of workers.
_MOST_LINKS = 5
_RECENT = 32  # Rows of metrics.jsonl that the rate of examples is of.


class Page:
  """Page of one run, which follows its files."""

  def __init__(self, folder: pathlib.Path):
    """Reads the manifest; rows follow with each call of `render`.

    Args:
      folder: Folder of the run.

    Raises:
      ValueError: If there is no run, or one without events.
      OSError: If its files cannot be read.
    """
    self._folder = folder
    self._run = analysis.read(folder)
    self._config = self._run.config
    self._measures = ('loss', *self._run.measures)
    if not self._run.has_events:
      raise ValueError(
        f'{folder}: expected a run with events.jsonl, got one with '
        'config.outputs.events=False.'
      )
    self._events = runs.Follower(folder / 'events.jsonl')
    self._is_allreduce = self._config['route']['name'] != 'server'
    self._progress = Progress(self._is_allreduce)
    self._rows: Sequence[Mapping[str, Any]] = ()

  @property
  def has_ended(self) -> bool:
    """True once the run has its summary."""
    return (self._folder / 'summary.json').exists()

  def render(self) -> RenderableType:
    """Reads the rows that are new, and returns the page.

    Raises:
      ValueError: If a file is broken; names it.
      OSError: If a file cannot be read.
    """
    self._run.refresh()
    rows, is_new = self._events.read(runs.decode_object)
    if is_new:
      self._progress = Progress(self._is_allreduce)
    for row in rows:
      self._progress.take(row)
    self._rows = self._run.rows
    parts = [self._describe_run(), self._describe_workers()]
    if self._progress.link_rates:
      parts.append(_describe_links(self._progress.link_rates))
    return Group(*(each for part in parts for each in (part, '')))

  def _describe_run(self) -> Table:
    config, last = self._config, self._rows[-1] if self._rows else None
    table = Table.grid(padding=(0, 2))
    table.add_row('run', str(self._folder))
    names = (config[each]['name'] for each in ('sync', 'batching', 'wire'))
    route = config['route']['name']
    table.add_row('config', ', '.join((*names, route)))
    table.add_row('phase', self._describe_phase())
    if last is None:
      return table
    table.add_row(
      'progress',
      f'epoch {last["epoch"]:.2f} of {config["epochs"]:g}, '
      f'{last["updates"]} updates, {last["iterations"]} iterations',
    )
    unused = {
      'dropped pushes': self._progress.dropped,
      'lost iterations': self._progress.lost,
    }
    if any(unused.values()):
      text = ', '.join(f'{number} {name}' for name, number in unused.items())
      table.add_row('not applied', text)
    table.add_row('time', self._describe_time(last))
    results = []
    for name in self._measures:
      known = [row[name] for row in self._rows if row.get(name) is not None]
      if known:
        value = figures.text(name, known[-1])
        results.append(f'{figures.label(name)} {value}')
    table.add_row('results', ', '.join(results) or '-')
    table.add_row(
      'workers',
      f'{last["waiting_share"]:.1%} of the time waiting, mean staleness '
      f'{last["staleness_mean"]:.2f}',
    )
    if slow := self._progress.stragglers:
      text = ', '.join(f'{name} since {at:.4g} s' for name, at in slow.items())
      table.add_row('slow', text)
    memory = find_memory(self._folder)
    if memory:
      text = ', '.join(f'{role} {mib:.0f}' for role, mib in memory.items())
      table.add_row('memory', f'{text} MiB')
    return table

  def _describe_phase(self) -> str:
    if self._run.ended is not None:
      return self._run.ended
    if self._events.changed_at is None:
      return 'starting'
    silent_s = time.time() - self._events.changed_at
    text = 'running' if self._progress.workers else 'starting'
    return f'{text}, last event {max(silent_s, 0.0):.0f} s ago'

  def _describe_time(self, last: Mapping[str, Any]) -> str:
    clock = self._config['cluster']['runtime']
    kind = 'virtual' if clock == 'virtual' else 'real'
    text = f'{last["time"]:.1f} {kind} s, {last["wall_s"]:.1f} s of work'
    left_s = self._find_time_left(last)
    if left_s is not None and not self.has_ended:
      text += f', about {left_s:.0f} s left'
    return text

  def _find_time_left(self, last: Mapping[str, Any]) -> float | None:
    """Returns real seconds to the end, at the rate of the last rows."""
    first = self._rows[-_RECENT:][0]
    passed_s = last['wall_s'] - first['wall_s']
    done = last['epoch'] - first['epoch']
    if passed_s <= 0 or done <= 0:
      return None
    left = max(self._config['epochs'] - last['epoch'], 0.0)
    return float(left / done * passed_s)

  def _describe_workers(self) -> Table:
    table = _make_table('worker', 'phase')
    counts = ('pushes', 'lead', 'stale-\nness', 'batch')
    times = ('compute\ns', 'examples\nper s', 'trans-\nfers', 'waits')
    for name in (*counts, *times):
      table.add_column(name, justify='right')
    progress = self._progress
    ranks = sorted(progress.workers)
    for rank in ranks[:_MOST_WORKERS]:
      worker = progress.workers[rank]
      moved, waited = worker.shares or (None, None)
      table.add_row(
        str(rank),
        Text(worker.phase, style='red' if worker.phase == LEFT else ''),
        str(worker.pushes),
        '-' if worker.phase == LEFT else str(progress.lead(rank)),
        _text(worker.staleness, 'd'),
        _text(worker.batch, 'd'),
        _text(worker.compute_s, '.3f'),
        _text(worker.speed, '.1f'),
        _text(moved, '.0%'),
        _text(waited, '.0%'),
      )
    if len(ranks) > _MOST_WORKERS:
      table.caption = f'and {len(ranks) - _MOST_WORKERS} more'
    return table


def _describe_links(rates: Sequence[Mapping[str, Any]]) -> Table:
  """Returns the table of the links that are the furthest below plan."""
  measured = [each for each in rates if each.get('Bps') is not None]
  measured.sort(key=lambda each: each['Bps'] / max(each['planned_Bps'], 1e-9))
  table = _make_table('slowest links')
  for name in ('MB/s', 'planned', 'share'):
    table.add_column(name, justify='right')
  for each in measured[:_MOST_LINKS]:
    planned = each['planned_Bps']
    table.add_row(
      f'{each["src"]} to {each["dst"]}',
      f'{each["Bps"] / 1e6:.2f}',
      f'{planned / 1e6:.2f}',
      f'{each["Bps"] / planned:.0%}' if planned else '-',
    )
  return table


def _make_table(*names: str) -> Table:
  """Returns a table of 80 characters at most, with its columns of text."""
  table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
  for name in names:
    table.add_column(name)
  return table


def _text(value: float | None, form: str) -> str:
  return '-' if value is None else f'{value:{form}}'
