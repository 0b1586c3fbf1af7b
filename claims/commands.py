"""Commands of reproduce.py: run entries, store results, write the page."""

import datetime
import os
import pathlib
import platform
import subprocess
import sys
import time
from importlib import metadata
from typing import Any

from claims import catalog, page, running, statistics, store
from claims.published import Entry
from configs.checks import require
from outputs import atomic
from sweeps import child

_PACKAGES = ('jax', 'numpy')
_UNFINISHED = 1  # Exit code if any run failed.


def list_entries(out: str) -> str:
  """Returns the name, title and verdict counts of each entry, as text.

  Args:
    out: Folder of results.
  """
  lines = []
  for name, (entry, _, judgements) in page.judge_all(pathlib.Path(out)).items():
    verdicts = [each.verdict for each in judgements.values()]
    counts = [f'{verdicts.count(v)} {v}' for v in dict.fromkeys(verdicts)]
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
    ValueError: If an argument is wrong, before any run starts.
    OSError: If a file cannot be written.
  """
  entry = catalog.find(name)
  folder = pathlib.Path(out)
  if not _has_runs(entry, scale):
    print(f'{name}: nothing to run at --scale={scale}. {entry.missing_reason}')
    return _write_page(folder)
  count = seeds or entry.seeds[scale]
  require(
    1 <= count <= statistics.MOST_SEEDS,
    '--seeds',
    f'1 to {statistics.MOST_SEEDS}',
    count,
  )
  folder.mkdir(parents=True, exist_ok=True)
  start = time.monotonic()
  records = running.run_entry(
    name, entry, scale=scale, seeds=count, out=folder / 'runs'
  )
  about = provenance(
    f'python reproduce.py {name} --scale={scale} --seeds={count}'
  )
  about |= {'wall_s': time.monotonic() - start}
  results = store.Results(scale, about, catalog.rules(entry), records)
  path = store.write(folder, name, results)
  judged = page.judge_all(folder)[name]
  print(page.table(judged.entry, judged.judgements))
  print(f'Results are in {path}')
  _write_page(folder)
  failed = [each for each in records if each['status'] == 'failed']
  for each in failed:
    print(f'Failed: {each}', file=sys.stderr)
  return _UNFINISHED if failed else 0


def reproduce_all(*, scale: str, seeds: int, out: str) -> int:
  """Runs every entry, each in a new process; returns the exit code.

  A failed entry does not stop the next ones; failures are listed at the end.
  """
  failed = []
  for name in catalog.find_all():
    print(f'== {name}', flush=True)
    words = [name, f'--scale={scale}', f'--seeds={seeds}', f'--out={out}']
    if child.run_module('reproduce', *words).returncode:
      failed.append(name)
  if failed:
    print(f'Entries with unfinished runs: {", ".join(failed)}')
  return _UNFINISHED if failed else 0


def write_page(out: str) -> int:
  """Writes the page of the stored results; returns the exit code.

  Raises:
    ValueError: If there is no such folder.
  """
  folder = pathlib.Path(out)
  require(folder.is_dir(), '--out', 'a folder of results', out)
  return _write_page(folder)


def provenance(command: str) -> dict[str, Any]:
  """Returns command, date, machine, versions and code of this process.

  Args:
    command: Command that repeats the results.
  """
  git = ['git', '-C', str(catalog.ROOT), 'rev-parse', 'HEAD']
  revision = subprocess.run(git, capture_output=True, text=True, check=False)
  return {
    'command': command,
    'date': datetime.datetime.now(datetime.UTC).strftime('%d %B %Y'),
    'cores': len(os.sched_getaffinity(0)),
    'python': platform.python_version(),
    'versions': {each: metadata.version(each) for each in _PACKAGES},
    'git_revision': revision.stdout.strip() or None,
  }


def _write_page(folder: pathlib.Path) -> int:
  folder.mkdir(parents=True, exist_ok=True)
  atomic.write(folder / page.NAME, page.render(folder))
  return 0


def _has_runs(entry: Entry, scale: str) -> bool:
  """Returns whether an entry has anything to run at a scale."""
  has_runs = scale in entry.grids or bool(entry.measurement)
  return has_runs and scale in entry.seeds
