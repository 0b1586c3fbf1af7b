"""Executes the runs of entries, and creates the records of their claims."""

import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from claims import catalog, derived
from claims.published import IN_BITS, Entry
from outputs import atomic
from sweeps import child, driver, grid, outcomes, plan
from sweeps.folder import SweepFolder

# Fields of a run's summary in every record, beside those that its entry needs.
_SUMMARY_FIELDS = (
  *('final_accuracy', 'final_bits_per_byte'),
  *('time_s', 'iterations', 'updates', 'examples', 'bytes'),
  *('waiting_share', 'goodput', 'staleness_mean', 'staleness_max'),
)
_LINES = 5  # Last lines of a failed measurement's errors in its record.


def run_entry(
  name: str, entry: Entry, *, scale: str, seeds: int, out: pathlib.Path
) -> list[dict[str, Any]]:
  """Trains and measures an entry; returns the records, also of failed runs.

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
  records: list[dict[str, Any]] = []
  if scale in entry.grids:
    records += _sweep(name, entry, scale, seeds, out / f'{name}-{scale}')
  if entry.measurement:
    records += _measure(name, entry, scale, seeds, out / f'{name}-{scale}-own')
  return records


def entry_points(
  entry: Entry, scale: str, seeds: Sequence[int]
) -> list[grid.Point]:
  """Returns fields and values of each virtual run of an entry."""
  values = ','.join(map(str, seeds))
  return grid.points(f'{entry.grids[scale]}; seed={values}')


def config_file(name: str) -> str:
  """Returns the config file of an entry, as flags name it."""
  return os.path.relpath(catalog.path_of(name))


def varied_fields(points: Sequence[grid.Point]) -> list[str]:
  """Returns the fields in which the runs of a grid differ."""
  return [*dict.fromkeys(field for point in points for field in point)]


def read_records(
  entry: Entry, fields: Sequence[str], out: pathlib.Path
) -> list[dict[str, Any]]:
  """Returns the records of the runs in a sweep's folder.

  Args:
    entry: Entry whose claims are judged.
    fields: Config fields in which the runs differ.
    out: Folder of the sweep.

  Raises:
    ValueError: If there is no sweep.
  """
  folder = SweepFolder(str(out))
  return [
    _read_record(entry, fields, folder, name)
    for name in folder.read_run_names()
  ]


def make_record(
  entry: Entry,
  fields: Sequence[str],
  folder: pathlib.Path,
  status: str,
) -> dict[str, Any]:
  """Returns the record of a run that has a manifest and a summary.

  Args:
    entry: Entry whose claims are judged.
    fields: Config fields in which the runs differ.
    folder: Folder of the run.
    status: 'finished' or 'diverged'.

  Raises:
    ValueError: If one of the two files is missing, or cannot be read.
  """
  manifest = atomic.read_object(folder / 'manifest.json')
  summary = outcomes.read_summary(folder)
  if manifest is None or summary is None:
    raise ValueError(
      f'{folder}: expected a manifest.json and a summary.json that can be read.'
    )
  config = manifest['config']
  needed = [c.measure.field for c in entry.claims if c.measure]
  needed += entry.ranked
  record: dict[str, Any] = {'status': status}
  record |= {field: _config_value(config, field) for field in fields}
  record |= {f: summary[f] for f in (*_SUMMARY_FIELDS, *needed) if f in summary}
  iteration_s = (
    summary['time_s'] * config['cluster']['workers'] / summary['iterations']
  )
  examples_per_s = summary['examples'] / summary['time_s']
  rates = {'time': 1, 'iterations': 1 / iteration_s, 'examples': examples_per_s}
  record |= {
    f'{quantity}_to.{level}': time_s and time_s * rate
    for level, time_s in summary.get('time_to', {}).items()
    for quantity, rate in rates.items()
    if f'{quantity}_to.{level}' in needed
  }
  in_bits = summary.get('to_bits_per_byte', {})
  times = {f'{IN_BITS}{level}': at['time_s'] for level, at in in_bits.items()}
  record |= {field: times[field] for field in times if field in needed}
  record['iteration_s'] = iteration_s
  record['examples_per_s'] = examples_per_s
  record['bytes_per_s'] = summary['bytes'] / summary['time_s']
  if entry.derived and status == 'finished':
    record |= getattr(derived, entry.derived)(folder, config)
  return record


def _sweep(
  name: str, entry: Entry, scale: str, seeds: int, out: pathlib.Path
) -> list[dict[str, Any]]:
  """Trains the grid of an entry; returns its records."""
  points = entry_points(entry, scale, range(seeds))
  shared = plan.SharedConfig(config_file(name), {})
  config = plan.parse_config([f'--config={shared.file}'])
  uses_model = config.model.name != 'none' or 'model.name' in points[0]
  code = driver.run_points(
    shared,
    points,
    driver.Options(str(out)),
    uses_model=uses_model,
    programs=out.parent / 'compiled' if uses_model else None,
  )
  if code > 1:
    raise KeyboardInterrupt
  return read_records(entry, varied_fields(points), out)


def _read_record(
  entry: Entry, fields: Sequence[str], folder: SweepFolder, name: str
) -> dict[str, Any]:
  summary = folder.read(name, 'summary.json')
  manifest = folder.read(name, 'manifest.json')
  outcome = outcomes.outcome_of_summary(summary)
  path = folder.file(name)
  if manifest and outcome.is_final:
    return {'run': name, **make_record(entry, fields, path, outcome.status)}
  if summary is None:
    error = ' / '.join(folder.last_lines(name, 0))
  elif manifest is None:
    error = f'{path}/manifest.json cannot be read; move the folder away'
  else:
    error = summary['ended']
  values: dict[str, Any] = {}
  if manifest:
    values = {
      field: _config_value(manifest['config'], field) for field in fields
    }
  return {'run': name, 'status': 'failed', **values, 'error': error}


def _config_value(config: Mapping[str, Any], field: str) -> Any:
  value: Any = config
  for part in field.split('.'):
    value = value[part]
  return value


def _measure(
  name: str, entry: Entry, scale: str, seeds: int, out: pathlib.Path
) -> Iterator[dict[str, Any]]:
  """Yields the records of measurements, with a new process for each seed.

  Measurements that are complete are read from their files.
  """
  out.mkdir(parents=True, exist_ok=True)
  for seed in range(seeds):
    words = [f'claims.measures.{entry.measurement}', f'--seed={seed}']
    words.append(f'--scale={scale}')
    path = out / f'{hashlib.sha256(" ".join(words).encode()).hexdigest()}.json'
    rows = _read_measurements(path)
    if rows is None:
      print(f'{name}: {" ".join(words)}', flush=True)
      folder = path.with_suffix('')
      folder.mkdir(exist_ok=True)
      process = child.run_module(
        *words, f'--folder={folder.absolute()}', capture_output=True
      )
      if process.returncode:
        errors = process.stderr
        print(f'{name}: failed\n{errors}', file=sys.stderr, flush=True)
        error = ' / '.join(errors.splitlines()[-_LINES:])
        yield {'seed': seed, 'status': 'failed', 'error': error}
        continue
      rows = json.loads(process.stdout)
      atomic.write(path, process.stdout)
    for record in rows:
      yield {'seed': seed, 'status': 'finished', **record}


def _read_measurements(path: pathlib.Path) -> Any:
  """Returns the content of a file of measurements; None if it is incomplete."""
  try:
    return json.loads(path.read_bytes())
  except FileNotFoundError:
    return None
  except ValueError as error:
    logging.warning('%s is measured again: %s', path, error)
    return None
