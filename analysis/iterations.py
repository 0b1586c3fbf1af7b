"""Iterations of workers, from the folder of a run or a CSV file."""

import csv
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from analysis import records
from cluster.speed import driving
from configs.checks import require
from diagnosis.costs import Iterations
from diagnosis.rounds import Rounds
from diagnosis.verdicts import Cluster

_CSV = ('worker', 'iteration', 'compute_s', 'sync_s')
_EQUAL = 0.05  # Difference of workers' sums up to which they are at a barrier.
_Transfers = Mapping[int, Sequence[float]]


def read_run(path: pathlib.Path) -> tuple[Iterations, Cluster]:
  """Returns the iterations of a run, also of a running or broken one.

  Seconds of computing are those of events.jsonl, and transfers those of
  trace.json; 0 if the run writes none.

  Args:
    path: Folder of the run.

  Raises:
    ValueError: If there is no run, if it has no events or no other worker, or
      if a file is broken; names file and field.
    OSError: If a file cannot be read.
  """
  config = records.read_config(path)
  count = config['cluster']['workers']
  require(count > 1, f'{path}: workers', 'at least 2 to compare', count)
  file = path / 'events.jsonl'
  if not file.exists() and config['outputs']['events']:
    raise ValueError(
      f'{path}: expected a run with events.jsonl, got one without it: it has '
      'not begun, or the file was removed.'
    )
  spans: _Transfers = {}
  if config['outputs']['timeline'] and (path / 'trace.json').exists():
    spans = _read_transfers(path)
  rows = list(_read_pushes(path, count))
  known: dict[int, Iterator[float]] = {
    worker: iter(seconds) for worker, seconds in spans.items()
  }
  pushes = [push for push, _ in rows]
  iterations = Iterations(
    rounds=np.array([number for _, number in rows], int),
    workers=np.array([push['worker'] for push in pushes], int),
    compute_s=np.array([push['compute_s'] for push in pushes], float),
    transfer_s=np.array(
      [next(known.get(push['worker'], iter(())), 0.0) for push in pushes],
      float,
    ),
    examples=np.array([push['examples'] for push in pushes], int),
    times=np.array([push['time'] for push in pushes], float),
  )
  summary = records.read_summary(path) or {}
  done = summary.get('iterations')
  bytes_each = summary['bytes'] / done if done and spans else None
  factors = _read_factors(pushes, iterations.workers)
  return iterations, Cluster(
    names=[str(k) for k in range(count)],
    hosts=_read_hosts(path, count),
    factors=factors,
    push_bytes=bytes_each or None,
    has_links=config['route']['name'] == 'server',
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


def _read_pushes(
  path: pathlib.Path, count: int
) -> Iterator[tuple[dict[str, Any], int]]:
  """Yields the pushes of a run, each with the number of its round."""
  rounds, number, last = Rounds(count), 0, -math.inf
  for row in records.read_all_events(path):
    event = row['event']
    if event not in ('start', 'push', 'leave', 'join', 'wake'):
      continue
    field = f'{path}/events.jsonl: time'
    got = row.get('time')
    time = float(got) if isinstance(got, (int, float)) else math.nan
    require(math.isfinite(time), field, 'finite seconds', got)
    require(time >= last, field, f'times that never decrease, as {last}', time)
    last = time
    if event == 'start':
      rounds.start(row['decision'].get('release', ()))
    elif event == 'leave':
      rounds.leave(row['worker'])
    elif event == 'push':
      _check_push(row, count, path)
      yield row, number
      if rounds.add(row['worker'], row['compute_s']) is not None:
        number += 1


def _check_push(row: Mapping[str, Any], count: int, path: pathlib.Path) -> None:
  worker, seconds = row.get('worker'), row.get('compute_s')
  field = f'{path}/events.jsonl: '
  is_worker = isinstance(worker, int) and 0 <= worker < count
  require(is_worker, f'{field}worker', f'one of {count} workers', worker)
  is_time = isinstance(seconds, (int, float)) and 0 <= seconds < math.inf
  require(is_time, f'{field}compute_s', 'finite seconds >= 0', seconds)
  examples = row.get('examples')
  require(isinstance(examples, int), f'{field}examples', 'a number', examples)


def _read_transfers(path: pathlib.Path) -> dict[int, list[float]]:
  """Returns the seconds of pull and push of each iteration, by worker."""
  seconds: dict[int, list[float]] = {}
  before: dict[int, str] = {}
  for span in records.read_spans(path):
    own = seconds.setdefault(span.worker, [])
    last = before.get(span.worker)
    begins = span.phase == 'pull' or (
      span.phase == 'compute' and last != 'pull'
    )
    if begins or not own:
      own.append(0.0)
    before[span.worker] = span.phase
    if span.phase in ('pull', 'push'):
      own[-1] += span.end - span.start
  return seconds


def _read_factors(
  pushes: Sequence[Mapping[str, Any]], workers: np.ndarray
) -> dict[str, np.ndarray]:
  """Returns the driving factors that were read before each iteration."""
  rows = [push.get('factors', ()) for push in pushes]
  width = max(map(len, rows), default=0)
  if not width:
    return {}
  names = driving.NAMES if width == len(driving.NAMES) else ()
  return {
    names[k] if names else f'factor {k}': _shift(
      np.array([row[k] if k < len(row) else math.nan for row in rows]), workers
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


def _read_hosts(path: pathlib.Path, count: int) -> list[str]:
  """Returns the host of each worker, from live.json; '' if unknown."""
  file, hosts = path / 'live.json', [''] * count
  if file.exists():
    try:
      workers = json.loads(file.read_text(encoding='utf-8'))['workers']
      for each in workers[:count]:
        hosts[each['worker']] = each['host']
    except (ValueError, KeyError, TypeError, IndexError) as error:
      raise ValueError(
        f'{file}: expected workers with their hosts, got {error!r}.'
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
