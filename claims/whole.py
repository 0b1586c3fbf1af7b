"""Runs the entries of reproduce.py, stores their results and makes the page."""

import datetime
import os
import pathlib
import platform
import subprocess
import sys
import time
from importlib import metadata

from claims import catalog, judging, page, running, store
from claims.published import Entry
from configs.checks import require
from outputs import atomic
from sweeps.child import bound_command, python_path

_PACKAGES = ('jax', 'numpy')
_UNFINISHED = 1  # Exit code if any run failed.


def listed(out: str) -> str:
  """Returns the name, title and verdict counts of each entry, as text."""
  lines = []
  for name, entry in catalog.every().items():
    _, rows = page.found(pathlib.Path(out), name, entry)
    found = [each.verdict for each in rows.values()]
    counts = [f'{found.count(v)} {v}' for v in dict.fromkeys(found)]
    lines.append(
      f'{name:24}{entry.family}: {entry.title}\n{"":24}{", ".join(counts)}'
    )
  return '\n'.join(lines)


def reproduce(name: str, *, scale: str, seeds: int, out: str) -> int:
  """Runs an entry, stores its results and rewrites the page of results.

  Args:
    name: Name of the entry.
    scale: 'quick' or 'full'.
    seeds: Number of seeds; 0 for the entry's own number.
    out: Folder of results; its subfolder `runs` holds the runs.

  Returns:
    The exit code: 1 if a run has failed.

  Raises:
    ValueError: If anything is wrong, before anything runs.
    OSError: If a file cannot be written.
  """
  entry = catalog.find(name)
  folder = pathlib.Path(out)
  if not _runs(entry, scale):
    print(f'{name}: nothing to run at --scale={scale}. {entry.absent}')
    return _paged(folder)
  count = seeds or entry.seeds[scale]
  require(1 <= count <= judging.MOST, '--seeds', f'1 to {judging.MOST}', count)
  folder.mkdir(parents=True, exist_ok=True)
  start = time.monotonic()
  records = running.records_of(
    name, entry, scale=scale, seeds=count, out=folder / 'runs'
  )
  about = _about(name, scale, count) | {'wall_s': time.monotonic() - start}
  stored = store.Stored(scale, about, catalog.rules(entry), records)
  path = store.write(folder, name, stored)
  print(page.table(entry, page.judged(entry, stored, '')))
  print(f'Results are in {path}')
  _paged(folder)
  failed = [each for each in records if each['status'] == 'failed']
  for each in failed:
    print(f'Failed: {each}', file=sys.stderr)
  return _UNFINISHED if failed else 0


def all_of(*, scale: str, seeds: int, out: str) -> int:
  """Runs every entry, each in a process of its own; returns the exit code.

  The others run even if one fails; the failed ones are listed at the end.
  """
  failed = []
  for name in catalog.every():
    print(f'== {name}', flush=True)
    words = [name, f'--scale={scale}', f'--seeds={seeds}', f'--out={out}']
    done = subprocess.run(
      bound_command('reproduce', *words),
      env=os.environ | {'PYTHONPATH': python_path()},
      check=False,
    )
    if done.returncode:
      failed.append(name)
  if failed:
    print(f'Not all runs have finished of: {", ".join(failed)}')
  return _UNFINISHED if failed else 0


def paged(out: str) -> int:
  """Writes the page of the stored results; returns the exit code.

  Raises:
    ValueError: If there is no such folder.
  """
  folder = pathlib.Path(out)
  require(folder.is_dir(), '--out', 'a folder of results', out)
  return _paged(folder)


def _paged(folder: pathlib.Path) -> int:
  folder.mkdir(parents=True, exist_ok=True)
  atomic.write(folder / page.NAME, page.made(folder))
  return 0


def _runs(entry: Entry, scale: str) -> bool:
  """Returns whether an entry has anything to run at a scale."""
  has = scale in entry.grids or bool(entry.measured)
  return has and scale in entry.seeds


def _about(name: str, scale: str, seeds: int) -> dict[str, object]:
  git = ['git', '-C', str(catalog.ROOT), 'rev-parse', 'HEAD']
  found = subprocess.run(git, capture_output=True, text=True, check=False)
  return {
    'command': f'python reproduce.py {name} --scale={scale} --seeds={seeds}',
    'date': datetime.datetime.now(datetime.UTC).strftime('%d %B %Y'),
    'cores': len(os.sched_getaffinity(0)),
    'python': platform.python_version(),
    'versions': {each: metadata.version(each) for each in _PACKAGES},
    'git_revision': found.stdout.strip() or None,
  }
