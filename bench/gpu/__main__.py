"""Measures a first run on a GPU in five minutes, by rows with aim and verdict.

  python -m bench.gpu [--out=DIR] [--jobs=vgg16,ring,...] [--dry_run]

The command writes to DIR, by default a new folder under runs/: manifest.json,
rows.jsonl with each row as soon as it is measured, the logs of all jobs, and
summary.json at the end.
Each job is a process with a share of the time.  A job that fails or takes
longer misses its aims, and the other jobs continue.  docs/benchmarks.md
explains every row.

Without a GPU the command prints the reason and does a dry run on the CPU: the
same rows with tiny sizes, to test the program.  A dry run is not a result: rows
that depend on sizes get no verdict.

The exit code is 1 if a row has missed its aim.
"""

import datetime
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import app, flags

from analysis import benchmarks
from analysis.benchmarks import Aim
from bench import flag_lists
from bench.gpu import machine, measuring, processes, running
from bench.gpu.rows import JOBS, MINUTES, Job
from cluster.process import devices
from configs import paths
from launch.processes import Group
from outputs import atomic

_DRY_S = 300.0  # Limit of a job in a dry run, which usually takes seconds.


def main(argv: list[str]) -> None:
  """Runs the chosen jobs and prints their rows."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  values = flags.FLAGS
  if values.job:
    _measure(
      values.job,
      pathlib.Path(values.out),
      pathlib.Path(values.values),
      limit_s=values.limit_s,
      is_dry=values.dry_run,
    )
    return
  now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
  out = pathlib.Path(values.out or f'runs/gpu-{now}').resolve()
  try:
    out.mkdir(parents=True)
  except FileExistsError:
    sys.exit(f'--out: expected a new folder, got {out}')
  jobs = [job for job in JOBS if job.name in values.jobs]
  try:
    description = machine.find()
  except RuntimeError as error:
    sys.exit(str(error))
  if machine.is_gpu(description):  # All jobs run on one GPU.
    names = devices.gpus(os.environ)
    os.environ.update(devices.mask(os.environ, names[:1]))
  elif not machine.is_accelerator(description):
    # Runs refuse a CPU where there are GPUs that JAX cannot use.
    os.environ['JAX_PLATFORMS'] = 'cpu'
  sys.exit(bench(jobs, out, description, is_dry=values.dry_run))


def bench(
  jobs: Sequence[Job],
  out: pathlib.Path,
  description: Mapping[str, Any],
  *,
  is_dry: bool,
) -> int:
  """Runs jobs and writes their rows; returns the exit code.

  Args:
    out: Folder of the result, a new one.
    description: Description of the machine, of `machine.find`.
  """
  start = time.monotonic()
  has_gpu = machine.is_gpu(description)
  is_dry = is_dry or not has_gpu
  _write(
    out / benchmarks.MANIFEST,
    {
      'benchmark': 'bench.gpu',
      'dry_run': is_dry,
      'jobs': [job.name for job in jobs],
      **description,
      'command': sys.argv,
    },
  )
  if not has_gpu:
    print(f'No GPU: {machine.without_gpu(description)}.')
  if is_dry:
    print('DRY RUN: tiny sizes; nothing here is a result.')
  print(
    f'{", ".join(description["devices"])}; rows and logs are in {out}\n\n'
    '| job | row | aim | value | verdict | |\n'
    '| --- | --- | --- | --- | --- | --- |',
    flush=True,
  )
  rows = []
  with (out / benchmarks.ROWS).open('a', encoding='utf-8') as file:
    for row in _rows(jobs, out, is_dry=is_dry):
      rows.append(row)
      file.write(f'{json.dumps(row)}\n')
      file.flush()
      os.fsync(file.fileno())
      print(_table_row(row), flush=True)
  counts = benchmarks.counts(rows)
  summary = {
    'ended': 'finished',
    'dry_run': is_dry,
    'wall_s': time.monotonic() - start,
    'verdicts': counts,
  }
  _write(out / benchmarks.SUMMARY, summary)
  verdicts = ', '.join(f'{count} {name}' for name, count in counts.items())
  print(f'\n{verdicts}; {summary["wall_s"]:.0f} s')
  if is_dry:
    print('DRY RUN: nothing here is a result.')
  return int(counts[benchmarks.MISSED] > 0)


def _rows(
  jobs: Sequence[Job], out: pathlib.Path, *, is_dry: bool
) -> Iterator[dict[str, Any]]:
  """Yields the rows of all jobs as they are measured."""
  deadline = time.monotonic() + 60 * MINUTES
  logs = out / 'logs'
  logs.mkdir()
  for job in jobs:
    remaining_s = deadline - time.monotonic()
    limit_s = _DRY_S if is_dry else min(job.share_s, remaining_s)
    if limit_s <= 0 and not is_dry:
      yield from running.skip(job, f'the {MINUTES:g} minutes are over')
    else:
      folder = out / benchmarks.SCRATCH / job.name
      folder.mkdir(parents=True)
      words = [f'--job={job.name}', f'--out={folder}', f'--limit_s={limit_s}']
      words += ['--dry_run'] * is_dry
      yield from running.measure(
        job,
        words,
        logs / f'{job.name}.log',
        limit_s=limit_s,
        is_dry=is_dry,
      )


def _measure(
  job: str,
  folder: pathlib.Path,
  values: pathlib.Path,
  *,
  limit_s: float,
  is_dry: bool,
) -> None:
  """Measures one job in this process, and reports its values to a file."""
  with Group(folder) as group:
    context = processes.Context(
      folder=folder,
      group=group,
      deadline=time.monotonic() + limit_s,
      is_dry=is_dry,
      report=running.Report(values),
    )
    try:
      measuring.measure(job, context)
    except RuntimeError as error:
      sys.exit(str(error))


def _table_row(row: Mapping[str, Any]) -> str:
  """Returns a row of the printed table."""
  value = '-' if row['value'] is None else f'{row["value"]:.4g}'
  words = [row['job'], row['row'], str(Aim.of(row['aim'])), value]
  return f'| {" | ".join([*words, row["verdict"], row["detail"]])} |'


def _write(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  atomic.write(path, f'{json.dumps(content, indent=1)}\n')


def _parse(argv: list[str]) -> list[str]:
  paths.define_path(
    'out', 'Folder of the result, a new one; one under runs/ by default.'
  )
  flag_lists.define_choices('jobs', [job.name for job in JOBS], 'Jobs to run.')
  flags.DEFINE_bool('dry_run', False, 'Tiny sizes, to test the program.')
  flags.DEFINE_string('job', '', 'For itself: the job of this process.')
  paths.define_path('values', 'For itself: file for the values of the job.')
  flags.DEFINE_float('limit_s', 0.0, 'For itself: limit of the job, seconds.')
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
