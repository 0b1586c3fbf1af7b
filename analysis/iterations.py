"""Iterations of workers, from the folder of a run or a CSV file."""

import csv
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.runs import Run, Table
from analysis.sentences import Cluster
from cluster.speed import driving
from configs.checks import require
from diagnosis.costs import Iterations
from diagnosis.rounds import Rounds

_CSV = ('worker', 'iteration', 'compute_s', 'sync_s')
_EQUAL = 0.05  # Difference of workers' sums up to which they are at a barrier.


def read_run(run: Run) -> tuple[Iterations, Cluster]:
  """Returns the iterations of a run, also of a running or broken one.

  Seconds of computing are those of events.jsonl, and transfers those of
  trace.json; 0 if the run writes none.

  Raises:
    ValueError: If it has no events or no other worker, or if a file is broken;
      names file and field.
    OSError: If a file cannot be read.
  """
  path, count = run.path, run.config['cluster']['workers']
  require(count > 1, f'{path}: workers', 'at least 2 to compare', count)
  if run.has_events and not (path / 'events.jsonl').exists():
    raise ValueError(
      f'{path}: expected a run with events.jsonl, got one without it: it has '
      'not begun, or the file was removed.'
    )
  _check(run.events, count, f'{path}/events.jsonl: ')
  pushes = run.events.select(run.events['event'] == 'push')
  transfers = _transfers(run.spans)
  transfer_s = np.zeros(len(pushes))
  for worker, seconds in transfers.items():
    own = np.flatnonzero(pushes['worker'] == worker)[: len(seconds)]
    transfer_s[own] = seconds[: len(own)]
  iterations = Iterations(
    rounds=_rounds(run, count),
    workers=pushes['worker'],
    compute_s=pushes['compute_s'],
    transfer_s=transfer_s,
    examples=pushes['examples'],
    times=pushes['time'],
  )
  summary = run.summary or {}
  done = summary.get('iterations')
  bytes_each = summary['bytes'] / done if done and transfers else None
  return iterations, Cluster(
    names=[str(k) for k in range(count)],
    hosts=_find_hosts(run, count),
    factors=_find_factors(pushes),
    push_bytes=bytes_each or None,
    has_links=run.config['route']['name'] == 'server',
  )


def read_csv(file: pathlib.Path) -> tuple[Iterations, Cluster]:
  """Returns the iterations of a CSV file.

  It has the columns worker (text), iteration, compute_s and sync_s, seconds,
  and perhaps host, examples, cpu and memory.  `sync_s` may contain the wait for
  slower workers: if the sums of all workers are equal, the least of an
  iteration is the transfer.

  Args:
    file: The file, with a header.

  Raises:
    ValueError: If a column is missing or a number is wrong; names the line.
    OSError: If the file cannot be read.
  """
  with file.open(newline='', encoding='utf-8-sig', errors='replace') as lines:
    reader = csv.DictReader(lines)
    names = reader.fieldnames or ()
    for name in _CSV:
      expected = f'the columns {", ".join(_CSV)}'
      require(name in names, f'{file}', expected, ', '.join(names) or 'none')
    rows = [
      _parse_row(row, f'{file}, line {reader.line_num}') for row in reader
    ]
  require(bool(rows), f'{file}', 'at least one row', 'none')
  _check_order(rows, file)
  workers = list(dict.fromkeys(row['worker'] for row in rows))
  require(len(workers) > 1, f'{file}: workers', 'at least 2', len(workers))
  numbers = sorted({row['iteration'] for row in rows})
  round_of = {number: k for k, number in enumerate(numbers)}
  rows.sort(key=lambda row: row['iteration'])
  place = {worker: k for k, worker in enumerate(workers)}
  iterations = Iterations(
    rounds=np.array([round_of[row['iteration']] for row in rows], int),
    workers=np.array([place[row['worker']] for row in rows], int),
    compute_s=np.array([row['compute_s'] for row in rows]),
    transfer_s=np.array([row['sync_s'] for row in rows]),
    examples=np.array([int(row.get('examples', 0)) for row in rows], int),
    times=np.zeros(len(rows)),
  )
  hosts = {row['worker']: row['host'] for row in rows}
  factors = {
    name: _shift(
      np.array([row.get(name, math.nan) for row in rows]), iterations.workers
    )
    for name in driving.NAMES
    if name in names
  }
  return _without_waits(iterations, len(workers)), Cluster(
    names=workers, hosts=[hosts[worker] for worker in workers], factors=factors
  )


def _check(events: Table, count: int, field: str) -> None:
  """Checks what a broken or foreign file may have wrong."""
  times = events['time']
  for place in np.flatnonzero(np.diff(times) < 0)[:1].tolist():
    expected = f'times that never decrease, as {times[place]}'
    require(False, f'{field}time', expected, times[place + 1])
  pushes = events.select(events['event'] == 'push')
  is_known = (pushes['worker'] >= 0) & (pushes['worker'] < count)
  for name, expected, is_valid in (
    ('worker', f'one of {count} workers', is_known),
    ('compute_s', 'finite seconds >= 0', pushes['compute_s'] >= 0),
  ):
    for wrong in pushes[name][~is_valid].tolist()[:1]:
      require(False, field + name, expected, wrong)


def _rounds(run: Run, count: int) -> np.ndarray:
  """Returns the number of the round of each push."""
  rounds, number, numbers = Rounds(count), 0, []
  events, releases = run.events, run.releases
  for place, (event, worker, compute_s) in enumerate(
    zip(
      events['event'].tolist(),
      events['worker'].tolist(),
      events['compute_s'].tolist(),
      strict=True,
    )
  ):
    if event == 'start':
      rounds.start(releases['worker'][releases['event'] == place].tolist())
    elif event == 'leave':
      rounds.leave(worker)
    elif event == 'push':
      numbers.append(number)
      number += rounds.add(worker, compute_s) is not None
  return np.array(numbers, int)


def _transfers(spans: Table) -> dict[int, np.ndarray]:
  """Returns the seconds of pull and push of each iteration, by worker."""
  found = {}
  for worker in np.unique(spans['worker']).tolist():
    own = spans.select(spans['worker'] == worker)
    phase = own['phase']
    after_pull = np.append(False, phase[:-1] == 'pull')
    begins = (phase == 'pull') | ((phase == 'compute') & ~after_pull)
    number = np.cumsum(begins) - begins[0]
    moves = np.isin(phase, ('pull', 'push'))
    seconds = np.where(moves, own['end'] - own['start'], 0.0)
    found[worker] = np.bincount(number, seconds)
  return found


def _find_factors(pushes: Table) -> dict[str, np.ndarray]:
  """Returns the driving factors that were read before each iteration."""
  rows = pushes['factors'].tolist()
  width = max(map(len, rows), default=0)
  names = driving.NAMES if width == len(driving.NAMES) else ()
  return {
    names[k] if names else f'factor {k}': _shift(
      np.array([row[k] if k < len(row) else math.nan for row in rows], float),
      pushes['worker'],
    )
    for k in range(width)
  }


def _shift(values: np.ndarray, workers: np.ndarray) -> np.ndarray:
  """Returns for each iteration the value after the worker's one before."""
  found = np.full(len(values), np.nan)
  for worker in np.unique(workers):
    places = np.flatnonzero(workers == worker)
    found[places[1:]] = values[places[:-1]]
  return found


def _find_hosts(run: Run, count: int) -> list[str]:
  """Returns the host of each worker, from live.json; '' if unknown."""
  hosts = [''] * count
  try:
    for each in (run.live or {'workers': ()})['workers'][:count]:
      hosts[each['worker']] = each['host']
  except (KeyError, TypeError, IndexError) as error:
    raise ValueError(
      f'{run.path}/live.json: expected workers with their hosts, got {error!r}.'
    ) from error
  return hosts


def _parse_row(row: Mapping[str, Any], where: str) -> dict[str, Any]:
  found: dict[str, Any] = {
    'worker': row['worker'],
    'host': row.get('host') or '',
  }
  require(bool(row['worker']), f'{where}: worker', 'a name', row['worker'])
  for name in (*_CSV[1:], 'examples', *driving.NAMES):
    text = row.get(name)
    if text is None and name not in _CSV:
      continue
    try:
      number = float(text or '')
    except ValueError:
      number = math.nan
    is_valid = math.isfinite(number) and number >= 0
    require(is_valid, f'{where}: {name}', 'a finite number >= 0', text)
    found[name] = number
  return found


def _check_order(rows: Sequence[Mapping[str, Any]], file: pathlib.Path) -> None:
  """Checks that the iterations of each worker go up, each once."""
  last: dict[str, float] = {}
  for row in rows:
    worker, number = row['worker'], row['iteration']
    before = last.get(worker, -1.0)
    expected = f'numbers that go up, after {before:g} of worker {worker}'
    require(number > before, f'{file}: iteration', expected, number)
    last[worker] = number


def _without_waits(iterations: Iterations, count: int) -> Iterations:
  """Returns the iterations with the transfers of `read_csv`."""
  sums = iterations.table(iterations.compute_s + iterations.transfer_s, count)
  usual = np.nanmedian(sums, axis=1, keepdims=True)
  with np.errstate(invalid='ignore', divide='ignore'):
    differences = np.nan_to_num(np.abs(sums / usual - 1))
  if np.median(differences.max(axis=1)) > _EQUAL:
    return iterations
  least = np.nanmin(iterations.table(iterations.transfer_s, count), axis=1)
  return iterations._replace(transfer_s=least[iterations.rounds])
