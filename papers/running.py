"""Executes the runs of an entry, and returns their records.

  python -m papers.running MODULE:NAME --seed=N --scale=SCALE --folder=DIR

calls a function of `seed` and `scale` that returns records, and prints them as
JSON.  If it also takes `folder`, it stores parts there, and resumes from them.
"""

import hashlib
import importlib
import inspect
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import app, flags, logging

from analysis import pacing
from configs.checks import require
from outputs import atomic
from papers import schema
from sweeps import child, driver, grid, outcomes, plan
from sweeps.folder import SweepFolder

_IN_BITS = 'time_to_bits_per_byte.'
_LINES = 5  # Last lines of a failed function's errors in its record.


def run(
  name: str, entry: schema.Entry, *, scale: str, seeds: int, out: pathlib.Path
) -> list[dict[str, Any]]:
  """Runs an entry; returns the records, also of failed runs.

  The same call resumes an interrupted one.

  Args:
    name: Name of the entry.
    entry: The entry.
    scale: 'quick' or 'full'.
    seeds: Number of seeds, from 0 on.
    out: Folder for the runs.

  Raises:
    ValueError: If a run is rejected, before any starts.
    OSError: If a file cannot be written.
    KeyboardInterrupt: If a signal has stopped the runs.
  """
  folder = out / f'{name}-{scale}'
  if entry.runs.function:
    return [*_call(name, entry.runs.function, scale, seeds, folder)]
  points = grid_points(entry.runs, scale, range(seeds))
  shared = shared_config(entry.runs)
  values = [f'--config.{k}={v}' for k, v in shared.overrides.items()]
  config = plan.parse_config([f'--config={shared.file}', *values])
  uses_model = config.model.name != 'none' or 'model.name' in points[0]
  code = driver.run_points(
    shared,
    points,
    driver.Options(str(folder)),
    uses_model=uses_model,
    programs=out / 'compiled' if uses_model else None,
  )
  if code > 1:
    raise KeyboardInterrupt
  return read_records(entry, points, folder)


def grid_points(
  runs: schema.Runs, scale: str, seeds: Sequence[int]
) -> list[grid.Point]:
  """Returns a grid's points: fields and values of each virtual run."""
  further = runs.full if scale == 'full' else runs.quick
  axes = (runs.grid, further, f'seed={",".join(map(str, seeds))}')
  return grid.points('; '.join(filter(None, (axis.strip() for axis in axes))))


def shared_config(runs: schema.Runs) -> plan.SharedConfig:
  """Returns the config that virtual runs share, as flags have it."""
  overrides = {field: _text(value) for field, value in runs.set.items()}
  return plan.SharedConfig(runs.config, overrides)


def find_function(path: str) -> Callable[..., Any]:
  """Returns the function that MODULE:NAME names.

  Raises:
    ValueError: If there is none.
  """
  module, _, name = path.partition(':')
  try:
    found = getattr(importlib.import_module(module), name)
  except (ImportError, AttributeError, ValueError) as error:
    raise ValueError(
      f'function: expected MODULE:NAME, got {path!r}.'
    ) from error
  return found  # type: ignore[no-any-return]


def read_records(
  entry: schema.Entry, points: Sequence[grid.Point], out: pathlib.Path
) -> list[dict[str, Any]]:
  """Returns the records of the runs in a sweep's folder.

  Raises:
    ValueError: If there is no sweep.
  """
  folder = SweepFolder(str(out))
  varied = [*dict.fromkeys(field for point in points for field in point)]
  needed = schema.fields(entry)
  return [
    _read_record(entry, varied, needed, folder, name)
    for name in folder.read_run_names()
  ]


def make_record(
  manifest: Mapping[str, Any],
  summary: Mapping[str, Any],
  varied: Sequence[str],
  needed: Sequence[str],
) -> dict[str, Any]:
  """Returns the record of a run: config fields and figures of its summary.

  Args:
    manifest: Content of its manifest.json.
    summary: Content of its summary.json.
    varied: Config fields in which the runs differ.
    needed: Fields of the record that cells need.
  """
  config = manifest['config']
  record = {field: _config_value(config, field) for field in varied}
  record |= {field: summary[field] for field in needed if field in summary}
  iteration_s = pacing.whole_pace_s(
    summary['time_s'], summary['iterations'], config['cluster']['workers']
  )
  examples_per_s = summary['examples'] / summary['time_s']
  rates = {'time': 1, 'iterations': 1 / iteration_s, 'examples': examples_per_s}
  times = {
    f'{quantity}_to.{level}': time_s and time_s * rate
    for level, time_s in summary.get('time_to', {}).items()
    for quantity, rate in rates.items()
  }
  times |= {
    f'{_IN_BITS}{level}': at['time_s']
    for level, at in summary.get('to_bits_per_byte', {}).items()
  }
  times |= {
    'iteration_s': iteration_s,
    'examples_per_s': examples_per_s,
    'bytes_per_s': summary['bytes'] / summary['time_s'],
  }
  return record | {field: times[field] for field in needed if field in times}


def _read_record(
  entry: schema.Entry,
  varied: Sequence[str],
  needed: Sequence[str],
  folder: SweepFolder,
  name: str,
) -> dict[str, Any]:
  summary = folder.read(name, 'summary.json')
  manifest = folder.read(name, 'manifest.json')
  outcome = outcomes.outcome_of_summary(summary)
  path = folder.file(name)
  if manifest and summary and outcome.is_final:
    record = make_record(manifest, summary, varied, needed)
    if entry.runs.add and outcome.status == 'finished':
      record |= find_function(entry.runs.add)(path, manifest['config'])
    return {'status': outcome.status, **record}
  if summary is None:
    error = ' / '.join(folder.last_lines(name, 0))
  elif manifest is None:
    error = f'{path}/manifest.json cannot be read; move the folder away'
  else:
    error = summary['ended']
  values: dict[str, Any] = {}
  if manifest:
    values = {f: _config_value(manifest['config'], f) for f in varied}
  return {'status': 'failed', **values, 'error': f'{name}: {error}'}


def _config_value(config: Mapping[str, Any], field: str) -> Any:
  value: Any = config
  for part in field.split('.'):
    value = value[part]
  return value


def _text(value: Any) -> str:
  """Returns a value as flags have it; lists of TOML are tuples."""
  if isinstance(value, list):
    return str(tuple(value))
  return str(value)


def _call(
  name: str, function: str, scale: str, seeds: int, out: pathlib.Path
) -> Iterator[dict[str, Any]]:
  """Yields the records of a function, with a new process for each seed."""
  # Seeds that are complete are read from their files.
  find_function(function)
  out.mkdir(parents=True, exist_ok=True)
  for seed in range(seeds):
    words = [function, f'--seed={seed}', f'--scale={scale}']
    path = out / f'{hashlib.sha256(" ".join(words).encode()).hexdigest()}.json'
    rows = _read_rows(path)
    if rows is None:
      print(f'{name}: seed {seed + 1} of {seeds}', flush=True)
      folder = path.with_suffix('')
      folder.mkdir(exist_ok=True)
      process = child.run_module(
        'papers.running',
        *words,
        f'--folder={folder.absolute()}',
        capture_output=True,
      )
      if process.returncode:
        errors = process.stderr
        print(f'{name}: failed\n{errors}', file=sys.stderr, flush=True)
        error = ' / '.join(errors.splitlines()[-_LINES:])
        yield {'seed': seed, 'status': 'failed', 'error': error}
        continue
      rows = json.loads(process.stdout.splitlines()[-1])
      atomic.write(path, json.dumps(rows))
    for record in rows:
      yield {'seed': seed, 'status': 'finished', **record}


def _read_rows(path: pathlib.Path) -> Any:
  """Returns the content of a file of records; None if it is incomplete."""
  try:
    return json.loads(path.read_bytes())
  except FileNotFoundError:
    return None
  except ValueError as error:
    logging.warning('%s is measured again: %s', path, error)
    return None


def main(argv: list[str]) -> None:
  """Prints the records of the function that the flags name."""
  values = flags.FLAGS
  require(len(argv) == 2, 'argument', 'MODULE:NAME', argv[1:])
  function = find_function(argv[1])
  options = {'seed': values.seed, 'scale': values.scale}
  if 'folder' in inspect.signature(function).parameters:
    options['folder'] = pathlib.Path(values.folder)
  records = function(**options)
  print(json.dumps([*records]))


if __name__ == '__main__':
  flags.DEFINE_integer('seed', 0, 'Number of the repetition.')
  flags.DEFINE_enum('scale', 'quick', schema.SCALES, 'Size of the measurement.')
  flags.DEFINE_string('folder', os.curdir, 'Folder for parts and logs.')
  app.run(main)
