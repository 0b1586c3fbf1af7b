"""Carries out the runs of an entry, and makes records of what they come to."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from claims import catalog, derived
from claims.published import Entry
from outputs import atomic, compiled
from sweeps import grid, plan, whole
from sweeps.child import bound_command, python_path
from sweeps.folder import Folder

# What is kept of each run's summary, beside what claims ask for.
_KEPT = (
  *('final_accuracy', 'time_s', 'iterations', 'updates', 'examples', 'bytes'),
  *('waiting_share', 'goodput', 'staleness_mean', 'staleness_max'),
)
_DIVERGED = 'FloatingPointError'
_LINES = 5  # Of what a failed measurement has said.


def records_of(
  name: str, entry: Entry, *, scale: str, seeds: int, out: pathlib.Path
) -> list[dict[str, Any]]:
  """Returns the records of all runs, those that failed among them.

  The same call goes on where it was.

  Args:
    name: Of the entry.
    entry: As it is.
    scale: 'quick' or 'full'.
    seeds: How many, from 0 on.
    out: Folder for the runs.

  Raises:
    ValueError: If a run is refused, before any starts.
    OSError: If a file cannot be written.
    KeyboardInterrupt: If a signal has stopped them.
  """
  found: list[dict[str, Any]] = []
  if scale in entry.grids:
    found += _swept(name, entry, scale, seeds, out / f'{name}-{scale}')
  if entry.measured:
    found += _measured(name, entry, scale, seeds, out / f'{name}-{scale}-own')
  return found


def points_of(
  entry: Entry, scale: str, seeds: Sequence[int]
) -> list[grid.Point]:
  """Returns what each virtual run has of its own."""
  said = ','.join(map(str, seeds))
  return grid.points(f'{entry.grids[scale]}; seed={said}')


def file_of(name: str) -> str:
  """Returns the config file of an entry, as commands say it."""
  return os.path.relpath(catalog.path_of(name))


def fields_of(points: Sequence[grid.Point]) -> list[str]:
  """Returns the fields that runs have of their own."""
  return [*dict.fromkeys(field for point in points for field in point)]


def of_folder(
  entry: Entry, fields: Sequence[str], out: pathlib.Path
) -> list[dict[str, Any]]:
  """Returns the records of a sweep's runs, as its folder has them.

  Args:
    entry: Whose claims are to be judged.
    fields: Of the config, that runs differ in.
    out: Folder of the sweep.

  Raises:
    ValueError: If there is no sweep.
  """
  folder = Folder(str(out))
  made = atomic.read_object(folder.file('sweep.json'))
  if made is None:
    raise ValueError(f'{out}: expected a sweep with sweep.json, got none.')
  return [_of_run(entry, fields, folder, run) for run in made['runs'].values()]


def record(
  entry: Entry,
  fields: Sequence[str],
  folder: pathlib.Path,
  ended: str,
) -> dict[str, Any]:
  """Returns what a run that has a manifest and a summary has come to.

  Args:
    entry: Whose claims are to be judged.
    fields: Of the config, that runs differ in.
    folder: Of the run.
    ended: 'finished', 'diverged' or 'failed'.

  Raises:
    ValueError: If one of the two is not there, or cannot be read.
  """
  made = atomic.read_object(folder / 'manifest.json')
  summary = atomic.read_object(folder / 'summary.json')
  if made is None or summary is None:
    raise ValueError(
      f'{folder}: expected a manifest.json and a summary.json that can be read.'
    )
  config = made['config']
  asked = [c.measure.field for c in entry.claims if c.measure]
  asked += entry.ranked
  kept = {name: summary[name] for name in _KEPT if name in summary}
  kept |= {
    f'time_to.{level}': time_s
    for level, time_s in summary.get('time_to', {}).items()
    if f'time_to.{level}' in asked
  }
  iteration_s = (
    summary['time_s'] * config['cluster']['workers'] / summary['iterations']
  )
  paces = {'iterations': 1 / iteration_s}
  paces['examples'] = summary['examples'] / summary['time_s']
  kept |= {
    f'{what}_to.{level}': time_s and time_s * pace
    for level, time_s in summary.get('time_to', {}).items()
    for what, pace in paces.items()
    if f'{what}_to.{level}' in asked
  }
  kept['iteration_s'] = iteration_s
  kept['examples_per_s'] = summary['examples'] / summary['time_s']
  kept['bytes_per_s'] = summary['bytes'] / summary['time_s']
  if entry.derived and ended == 'finished':
    kept |= getattr(derived, entry.derived)(folder, config)
  own = {field: _at(config, field) for field in fields}
  return {'status': ended, **own, **kept}


def _swept(
  name: str, entry: Entry, scale: str, seeds: int, out: pathlib.Path
) -> list[dict[str, Any]]:
  """Runs a grid by the machinery of sweeps; returns its records."""
  points = points_of(entry, scale, range(seeds))
  base = plan.Base(file_of(name), {})
  learn = plan.config([f'--config={base.file}']).model.name != 'none'
  learn = learn or 'model.name' in points[0]
  if learn:  # Runs share what they compile.
    cache = out.parent / 'compiled'
    os.environ.update(compiled.variables(os.environ, cache))
  wanted = whole.Wanted(None, str(out), 0, False, None, None, ())
  code = whole.swept(base, points, wanted, learn=learn)
  if code > 1:
    raise KeyboardInterrupt
  return of_folder(entry, fields_of(points), out)


def _of_run(
  entry: Entry, fields: Sequence[str], folder: Folder, name: str
) -> dict[str, Any]:
  path = folder.file(name)
  run = plan.Run(name, (), plan.Checked({}, ''))
  summary = folder.read(run, 'summary.json')
  made = folder.read(run, 'manifest.json')
  ended = summary['ended'] if summary else 'failed'
  if made and (ended == 'finished' or ended.startswith(_DIVERGED)):
    status = 'finished' if ended == 'finished' else 'diverged'
    return {'run': name, **record(entry, fields, path, status)}
  said = ' / '.join(folder.last_lines(run, 0)) if not summary else ended
  if summary and not made:
    said = f'{path}/manifest.json cannot be read; move the folder away'
  own = {field: _at(made['config'], field) for field in fields} if made else {}
  return {'run': name, 'status': 'failed', **own, 'error': said}


def _at(config: Mapping[str, Any], field: str) -> Any:
  value: Any = config
  for part in field.split('.'):
    value = value[part]
  return value


def _measured(
  name: str, entry: Entry, scale: str, seeds: int, out: pathlib.Path
) -> Iterator[dict[str, Any]]:
  """Measures in a process for each seed; what was measured is not again."""
  out.mkdir(parents=True, exist_ok=True)
  for seed in range(seeds):
    words = [f'claims.measures.{entry.measured}', f'--seed={seed}']
    words.append(f'--scale={scale}')
    path = out / f'{hashlib.sha256(" ".join(words).encode()).hexdigest()}.json'
    found = _measurements(path)
    if found is None:
      print(f'{name}: {" ".join(words)}', flush=True)
      kept = path.with_suffix('')
      kept.mkdir(exist_ok=True)
      done = subprocess.run(
        bound_command(*words, f'--kept={kept.absolute()}'),
        cwd=catalog.ROOT,
        env=os.environ | {'PYTHONPATH': python_path()},
        capture_output=True,
        text=True,
        check=False,
      )
      if done.returncode:
        last = done.stderr.splitlines()[-_LINES:]
        print(f'{name}: failed\n{done.stderr}', file=sys.stderr, flush=True)
        said = ' / '.join(last)
        yield {'seed': seed, 'status': 'failed', 'error': said}
        continue
      found = json.loads(done.stdout)
      atomic.write(path, done.stdout)
    for each in found:
      yield {'seed': seed, 'status': 'finished', **each}


def _measurements(path: pathlib.Path) -> Any:
  """Returns what was measured before; None if that has to be done again."""
  try:
    return json.loads(path.read_bytes())
  except FileNotFoundError:
    return None
  except ValueError as error:
    logging.warning('%s is measured again: %s', path, error)
    return None
