"""Runs jobs in separate processes, and gives their rows verdicts.

A job appends each value to a file as a line of JSON as soon as it is measured.
This process turns lines into rows with verdicts.  At the limit of a job its
whole process group is killed; values that were reported before count.
"""

import json
import math
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from analysis.benchmarks import MISSED, UNMEASURED, verdict
from analysis.runs import Follower, decode_object
from bench.gpu.rows import Job, Row
from launch import processes

_POLL_S = 0.1
_TAIL = 3  # Lines of a log that explain a failure.


class Report:
  """Writer of the values of a running job.

  Attributes:
    path: File of the values.
  """

  def __init__(self, path: pathlib.Path):
    self.path = path

  def __call__(self, row: str, value: float | None, detail: str = '') -> None:
    """Reports the value of a row.

    Args:
      value: Measured value; None if the row cannot be measured here.
      detail: Further information, such as both times of a ratio, or the reason
        why there is no value.
    """
    if value is not None and not math.isfinite(value):
      value, detail = None, f'{value}; {detail}'
      line = {'row': row, 'value': value, 'failed': detail}
    else:
      line = {'row': row, 'value': value, 'detail': detail}
    with self.path.open('a', encoding='utf-8') as file:
      file.write(f'{json.dumps(line)}\n')


def skip(job: Job, reason: str) -> Iterator[dict[str, Any]]:
  """Yields the rows of a job that is not run."""
  for row in job.rows:
    yield _row(job, row, None, UNMEASURED, reason)


def measure(
  job: Job,
  words: list[str],
  log: pathlib.Path,
  *,
  limit_s: float,
  is_dry: bool,
) -> Iterator[dict[str, Any]]:
  """Runs a job and yields each of its rows once, as soon as it is measured.

  Args:
    words: Arguments of `python -m bench.gpu` that run it; the file of values is
      added.
    limit_s: Time after which it is killed.
  """
  values = log.with_suffix('.jsonl')
  values.unlink(missing_ok=True)
  missing = {row.name: row for row in job.rows}
  start = time.monotonic()
  reason = ''
  for line in _lines(words, values, log, start + limit_s):
    if isinstance(line, str):
      reason = line
    elif row := missing.pop(line['row'], None):
      yield _with_verdict(job, row, line, is_dry=is_dry)
  values.unlink(missing_ok=True)
  for row in missing.values():
    yield _row(job, row, None, MISSED, reason)


def _lines(
  words: list[str], values: pathlib.Path, log: pathlib.Path, deadline: float
) -> Iterator[Mapping[str, Any] | str]:
  """Yields the values of a process, and finally the way in which it ended."""
  follower, start = Follower(values), time.monotonic()
  words = [*words, f'--values={values}']
  command = processes.module_command(log.stem, 'bench.gpu', *words)
  with processes.start([command], log.parent) as group:
    ended = ''
    while not ended:
      for exit in group.next_ends(_POLL_S):
        ended = f'the job gave no value: exit code {exit.code}, {_end(log)}'
      if not ended and time.monotonic() > deadline:
        ended = f'not within its {deadline - start:.0f} s'
      yield from follower.read(decode_object)[0]
  yield from follower.read(decode_object)[0]
  yield ended


def _with_verdict(
  job: Job, row: Row, line: Mapping[str, Any], *, is_dry: bool
) -> dict[str, Any]:
  value = line['value']
  if 'failed' in line:
    return _row(job, row, value, MISSED, line['failed'])
  if is_dry and row.sized and value is not None:
    reason = f'sizes of a dry run say nothing; {line["detail"]}'
    return _row(job, row, value, UNMEASURED, reason.rstrip('; '))
  return _row(job, row, value, verdict(value, row.aim), line['detail'])


def _row(
  job: Job, row: Row, value: float | None, row_verdict: str, detail: str
) -> dict[str, Any]:
  return {
    'job': job.name,
    'row': row.name,
    'quantity': row.quantity,
    'aim': row.aim.ends,
    'value': value,
    'verdict': row_verdict,
    'detail': detail,
  }


def _end(log: pathlib.Path) -> str:
  """Returns the last lines of a log."""
  lines = log.read_text(errors='replace').splitlines()
  return ' | '.join(filter(None, map(str.strip, lines[-_TAIL:]))) or 'no output'
