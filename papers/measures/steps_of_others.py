"""Times of training steps that others measured, read from their CSV files.

A file has one row per step.  With H local steps every H-th step is an outer
step, which ends with an allreduce among the hosts; with DDP every step is one.
The columns are those of `diloco-measured`; see `SOURCE`.
"""

import csv
import math
import pathlib
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from configs.checks import require

SOURCE = {
  'repository': 'https://github.com/Adnan082/diloco-measured',
  'commit': '07b7885',
  'licence': 'Apache-2.0',
}
ALGORITHMS = 'ddp', 'localsgd', 'diloco'
UNSHAPED = 'unshaped'
_COUNTS = 'H', 'repeat', 'step'  # Columns of integers.
_FLAGS = 'warmup', 'outer_step'  # Columns of 0 or 1.
_TIMES = 'wall_ms', 'compute_ms', 'sync_ms', 'optimizer_ms'
_COLUMNS = ('algorithm', 'bandwidth', *_COUNTS, *_FLAGS, *_TIMES)
_RATE = re.compile(r'(\d+(?:\.\d+)?)([mg])')
_PER_UNIT_BPS = {'m': 1e6 / 8, 'g': 1e9 / 8}


class Setting(NamedTuple):
  """Algorithm, local steps and links that several measured steps share.

  Attributes:
    algorithm: One of ALGORITHMS.
    local_steps: Steps between two allreduces (H).
    bandwidth: Rate of each host's shaped link, such as '1g', or UNSHAPED.
  """

  algorithm: str
  local_steps: int
  bandwidth: str


class Medians(NamedTuple):
  """Median times of the steps of a setting, seconds; None without such steps.

  Warm-up steps are left out, except where stated.

  Attributes:
    local_s: Steps without an allreduce.
    outer_s: Outer steps, without the first one of each repetition.
    outer_count: Number of these outer steps.
    sync_s: Allreduces of these outer steps.
    compute_s: Computing in them.
    optimizer_s: Their optimizer.
    first_s: First outer steps of the repetitions, also in warm-up; None if they
      are the first steps of all, which compile.
    first_count: Number of these first outer steps.
    first_sync_s: Allreduces of the first outer steps, whether they compile or
      not.
  """

  local_s: float | None
  outer_s: float | None
  outer_count: int
  sync_s: float | None
  compute_s: float | None
  optimizer_s: float | None
  first_s: float | None
  first_count: int
  first_sync_s: float | None


class _Step(NamedTuple):
  """Row of the file: see the module."""

  repeat: int
  number: int
  is_warmup: bool
  is_outer: bool
  wall_s: float
  compute_s: float
  sync_s: float
  optimizer_s: float


def read(path: pathlib.Path) -> dict[Setting, Medians]:
  """Returns the medians of a CSV file of measured steps, by setting.

  Raises:
    ValueError: If the file cannot be read, lacks a column, or has a value that
      is no time or count; names file, line and column.
  """
  try:
    with path.open(newline='', encoding='utf-8-sig') as file:
      reader = csv.DictReader(file)
      header = reader.fieldnames or ()
      missing = [name for name in _COLUMNS if name not in header]
      expected = f'a CSV file with the columns {list(_COLUMNS)}'
      require(not missing, str(path), expected, f'none of {missing}')
      steps: dict[Setting, list[_Step]] = {}
      for row in reader:
        setting, step = _parse(f'{path}:{reader.line_num}', row)
        steps.setdefault(setting, []).append(step)
  except (OSError, UnicodeDecodeError, csv.Error) as error:
    raise ValueError(
      f'--data: expected a CSV file of measured steps, got {path}: {error}'
    ) from error
  require(bool(steps), str(path), 'a row for each step', 'no rows')
  return {setting: _summarize(found) for setting, found in steps.items()}


def nominal_Bps(bandwidth: str) -> float | None:
  """Returns the rate of a shaped link, bytes per second; None if unshaped.

  Raises:
    ValueError: If it is no such rate.
  """
  if bandwidth == UNSHAPED:
    return None
  match = _RATE.fullmatch(bandwidth)
  expected = f"{UNSHAPED!r}, or a rate such as '200m' or '5g'"
  if match is None or not float(match[1]):
    raise ValueError(f'bandwidth: expected {expected}, got {bandwidth!r}.')
  return float(match[1]) * _PER_UNIT_BPS[match[2]]


def _parse(place: str, row: Mapping[str, str | None]) -> tuple[Setting, _Step]:
  """Returns a row's setting and step; `place` is its file and line."""
  text = {name: row[name] or '' for name in _COLUMNS}
  known = text['algorithm'] in ALGORITHMS
  expected = f'one of {ALGORITHMS}'
  require(known, f'{place}: algorithm', expected, text['algorithm'])
  try:
    nominal_Bps(text['bandwidth'])
  except ValueError as error:
    raise ValueError(f'{place}: {error}') from error
  counts = {}
  for name in (*_COUNTS, *_FLAGS):
    valid = text[name].isdecimal() and (
      name not in _FLAGS or text[name] in '01'
    )
    expected = '0 or 1' if name in _FLAGS else 'a whole number'
    require(valid, f'{place}: {name}', expected, text[name])
    counts[name] = int(text[name])
  require(counts['H'] >= 1, f'{place}: H', 'at least 1', counts['H'])
  times = [_seconds(f'{place}: {name}', text[name]) for name in _TIMES]
  setting = Setting(text['algorithm'], counts['H'], text['bandwidth'])
  step = _Step(
    counts['repeat'],
    counts['step'],
    bool(counts['warmup']),
    bool(counts['outer_step']),
    *times,
  )
  return setting, step


def _seconds(field: str, text: str) -> float:
  try:
    found = float(text) / 1e3
  except ValueError:
    found = math.nan
  require(0 <= found < math.inf, field, 'milliseconds, at least 0', text)
  return found


def _summarize(steps: Sequence[_Step]) -> Medians:
  firsts: dict[int, _Step] = {}
  for step in sorted(steps, key=lambda each: each.number):
    if step.is_outer:
      firsts.setdefault(step.repeat, step)
  counted = [step for step in steps if not step.is_warmup]
  outer = [
    step
    for step in counted
    if step.is_outer and step is not firsts[step.repeat]
  ]
  running = [step for step in firsts.values() if step.number]
  return Medians(
    _median(step.wall_s for step in counted if not step.is_outer),
    _median(step.wall_s for step in outer),
    len(outer),
    _median(step.sync_s for step in outer),
    _median(step.compute_s for step in outer),
    _median(step.optimizer_s for step in outer),
    _median(step.wall_s for step in running),
    len(running),
    _median(step.sync_s for step in firsts.values()),
  )


def _median(times_s: Iterable[float]) -> float | None:
  found = [*times_s]
  return statistics.median(found) if found else None
