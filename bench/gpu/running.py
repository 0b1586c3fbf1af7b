"""Runs jobs, each in a process of its own, and judges their rows.

A job appends a line of JSON for each value to a file as soon as it has it.
This process turns lines into rows with verdicts.  At the job's limit its whole
process group is killed; values that it has reported by then count.
"""

import contextlib
import json
import math
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import Any

from bench.gpu.rows import Job, Row
from bench.launched import Lines
from sweeps import child
from tools.reading.benchmarks import MISSED, UNMEASURED, verdict

_LOOK_S = 0.1
_TAIL = 3  # Lines of a log that explain a failure.


class Report:
  """Values of a running job, as the job writes them.

  Attributes:
    path: File of the values.
  """

  def __init__(self, path: pathlib.Path):
    self.path = path

  def __call__(self, row: str, value: float | None, detail: str = '') -> None:
    """Reports the value of a row.

    Args:
      row: Name of the row.
      value: Measured value; None if the row cannot be measured here.
      detail: What a reader needs beside the value, such as both times of a
        ratio, or why there is none.
    """
    if value is not None and not math.isfinite(value):
      value, detail = None, f'{value}; {detail}'
      line = {'row': row, 'value': value, 'failed': detail}
    else:
      line = {'row': row, 'value': value, 'detail': detail}
    with self.path.open('a', encoding='utf-8') as file:
      file.write(f'{json.dumps(line)}\n')


def unmeasured(job: Job, why: str) -> Iterator[dict[str, Any]]:
  """Yields the rows of a job that is not run.

  Args:
    job: The job.
    why: Reason.
  """
  for row in job.rows:
    yield _row(job, row, None, UNMEASURED, why)


def measure(
  job: Job,
  words: list[str],
  log: pathlib.Path,
  *,
  limit_s: float,
  is_dry: bool,
) -> Iterator[dict[str, Any]]:
  """Runs a job and yields its rows as they are measured.

  Args:
    job: The job.
    words: Arguments of `python -m bench.gpu` that run it; the file of values is
      added.
    log: File for its output.
    limit_s: Seconds after which it is killed.
    is_dry: True for the sizes of a dry run.

  Yields:
    Each row of the job once.
  """
  values = log.with_suffix('.jsonl')
  values.unlink(missing_ok=True)
  left = {row.name: row for row in job.rows}
  start = time.monotonic()
  ended = ''
  for line in _lines(words, values, log, start + limit_s):
    if isinstance(line, str):
      ended = line
    elif row := left.pop(line['row'], None):
      yield _judged(job, row, line, is_dry=is_dry)
  values.unlink(missing_ok=True)
  for row in left.values():
    yield _row(job, row, None, MISSED, ended)


def _lines(
  words: list[str], values: pathlib.Path, log: pathlib.Path, deadline: float
) -> Iterator[Mapping[str, Any] | str]:
  """Yields the values of a process, and at last how it has ended."""
  lines, begun = Lines(values), time.monotonic()
  with log.open('wb') as output:
    process = subprocess.Popen(
      child.bound_command('bench.gpu', *words, f'--values={values}'),
      env=os.environ | {'PYTHONPATH': child.python_path()},
      stdin=subprocess.DEVNULL,
      stdout=output,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )
  try:
    ended = ''
    while not ended:
      try:
        code = process.wait(_LOOK_S)
        ended = f'the job gave no value: exit code {code}, {_end(log)}'
      except subprocess.TimeoutExpired:
        if time.monotonic() > deadline:
          ended = f'not within its {deadline - begun:.0f} s'
      for line in lines.more():
        yield json.loads(line)
  finally:
    # What the job has started is in its group, and may outlive it.
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.wait()
  for line in lines.more():
    yield json.loads(line)
  yield ended


def _judged(
  job: Job, row: Row, line: Mapping[str, Any], *, is_dry: bool
) -> dict[str, Any]:
  value = line['value']
  if 'failed' in line:
    return _row(job, row, value, MISSED, line['failed'])
  if is_dry and row.sized and value is not None:
    why = f'sizes of a dry run say nothing; {line["detail"]}'.rstrip('; ')
    return _row(job, row, value, UNMEASURED, why)
  return _row(job, row, value, verdict(value, row.aim), line['detail'])


def _row(
  job: Job, row: Row, value: float | None, judged: str, detail: str
) -> dict[str, Any]:
  return {
    'job': job.name,
    'row': row.name,
    'quantity': row.quantity,
    'aim': row.aim.ends,
    'value': value,
    'verdict': judged,
    'detail': detail,
  }


def _end(log: pathlib.Path) -> str:
  """Returns the last lines of a log."""
  lines = log.read_text(errors='replace').splitlines()
  return ' | '.join(filter(None, map(str.strip, lines[-_TAIL:]))) or 'no output'
