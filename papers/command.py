"""Command reproduce.py: runs published tables, and shows them beside ours."""

import os
import pathlib
import sys
import time
from collections.abc import Sequence

from analysis import printing
from configs.checks import require
from papers import page, rendering, running, schema, store
from papers.page import Section
from sweeps import child

MOST_SEEDS = 16  # The exact signed-rank test permutes 2 ** 16 signs.
_UNFINISHED = 1  # Exit code if any run failed.
_ENVIRONMENT = {'torch': 'SYNCOPATE_PEERS', 'data': 'SYNCOPATE_DATA'}
FORMATS = ('text', 'latex', 'csv')
_MEASURED = ('real links', 'timed')  # Evidence that another load would spoil.


def all_names() -> list[str]:
  """Returns all entries, those first whose runs need a machine of their own."""
  return sorted(
    schema.names(), key=lambda name: schema.read(name).evidence not in _MEASURED
  )


def list_entries() -> str:
  """Returns a line for each entry: tables, minutes, needs and evidence."""
  lines = [['command', 'paper', 'tables', 'minutes', 'needs', 'evidence']]
  for name in schema.names():
    entry = schema.read(name)
    lines.append(
      [
        name,
        entry.paper,
        '; '.join(table.name for table in entry.table),
        f'{entry.minutes:g}',
        ', '.join(entry.needs) or '-',
        entry.evidence,
      ]
    )
  total = sum(schema.read(name).minutes for name in schema.names())
  table = printing.text(lines, align='l')
  return f'{table}\n{total:.0f} minutes of two cores in all'


def reproduce(name: str, *, scale: str, seeds: int, out: str) -> Section:
  """Runs an entry and stores its results; returns it with its verdicts.

  Args:
    name: Name of the entry.
    scale: 'quick' or 'full'.
    seeds: Number of seeds; 0 for the entry's own number.
    out: Folder of results; its subfolder `runs` holds the runs.

  Raises:
    ValueError: If an argument is wrong, before any run starts.
    OSError: If a file cannot be written.
  """
  entry = schema.read(name)
  count = seeds or entry.seeds[scale]
  require(1 <= count <= MOST_SEEDS, '--seeds', f'1 to {MOST_SEEDS}', count)
  missing = missing_needs(entry)
  require(not missing, name, f'{", ".join(missing)}', 'a machine without')
  folder = pathlib.Path(out)
  start = time.monotonic()
  rules = store.rules_of(entry)
  records = running.run(
    name, entry, scale=scale, seeds=count, out=folder / 'runs'
  )
  flags = f'--scale={scale} --seeds={count}'
  about = store.provenance(f'python reproduce.py {name} {flags}')
  about |= {'wall_s': time.monotonic() - start, 'scale': scale}
  results = store.Results(about, rules, records)
  path = store.write(folder, name, results, schema.fields(entry))
  print(f'Results are in {path}')
  return page.read(folder, name)


def reproduce_many(
  chosen: Sequence[str],
  *,
  scale: str,
  seeds: int,
  out: str,
  against: str,
  kind: str,
) -> int:
  """Runs entries, each in a new process; returns the exit code.

  Entries that this machine cannot run are named.  A failed entry does not stop
  the next ones.

  Args:
    chosen: Names of entries.
    scale: 'quick' or 'full'.
    seeds: Number of seeds; 0 for that of each entry.
    out: Folder of results.
    against: Folder of other results to compare with; '' for none.
    kind: 'text', 'latex' or 'csv'.

  Returns:
    0 if all that ran have finished; entries that were left out do not count.
  """
  failed, left_out = [], []
  start = time.monotonic()
  for place, name in enumerate(chosen, start=1):
    missing = missing_needs(schema.read(name))
    spent = (time.monotonic() - start) / 60
    print(f'[{place}/{len(chosen)}, {spent:.0f} min] {name}', flush=True)
    if missing:
      left_out.append(f'{name} (needs {", ".join(missing)})')
      continue
    flags = [f'--scale={scale}', f'--seeds={seeds}', f'--out={out}']
    if against:
      flags.append(f'--against={against}')
    if kind != 'text':
      flags.append(f'--{kind}')
    if child.run_module('reproduce', name, *flags).returncode:
      failed.append(name)
  for title, found in (('Unfinished', failed), ('Left out', left_out)):
    if found:
      print(f'{title}: {", ".join(found)}')
  return _UNFINISHED if failed else 0


def show(section: Section, kind: str) -> str:
  """Returns the tables of an entry, and for text what to write about them."""
  parts = []
  for table, rows in section.tables:
    if kind == 'latex':
      parts.append(rendering.latex(section.entry, table, rows))
    elif kind == 'csv':
      parts.append(rendering.csv_text(table, rows))
    else:
      title = f'{section.entry.paper}, {table.name}: {table.title}'
      text = printing.text(rendering.grid(table, rows), align='l')
      parts.append(f'\n{title}\n\n{text}\n')
      parts += [
        f'  {one.cell.row}, {one.cell.column}: {one.verdict}: {one.reason}'
        for one in rows
        if one.reason
      ]
      if section.results:
        about = section.results.about
        said = rendering.sentence(section.entry, table, rows, about)
        parts.append(f'\n{said}')
      if table.name in page.changed_rules(section):
        parts.append('The rules of this table have changed since its runs.')
  return '\n'.join(parts)


def compare(section: Section, folder: str) -> str:
  """Returns how many cells have the verdict of other results, and which not.

  Args:
    folder: Folder of the other results.

  Raises:
    ValueError: If the folder has no results of the entry.
  """
  other = page.read(pathlib.Path(folder), section.name)
  require(other.results is not None, '--against', 'results', folder)
  total, lines = 0, []
  for (table, rows), (_, others) in zip(
    section.tables, other.tables, strict=True
  ):
    for one, before in zip(rows, others, strict=True):
      total += 1
      if one.verdict != before.verdict:
        lines.append(
          f'  {table.name}: {one.cell.row}, {one.cell.column}: '
          f'{rendering.ours(before)} {before.verdict}; now '
          f'{rendering.ours(one)} {one.verdict}'
        )
  head = f'{total - len(lines)} of {total} cells equal to {folder}'
  return '\n'.join([head, *lines])


def exit_code(section: Section) -> int:
  """Returns 1 if a run of the entry has failed; prints which."""
  records = section.results.records if section.results else ()
  failed = [each for each in records if each['status'] == 'failed']
  for each in failed:
    print(f'Failed: {each["error"]}', file=sys.stderr)
  return _UNFINISHED if failed else 0


def missing_needs(entry: schema.Entry) -> list[str]:
  """Returns what an entry needs and this machine lacks."""
  missing = []
  for need in entry.needs:
    if need == 'root':
      has = os.geteuid() == 0
    elif need == 'torch':
      has = bool(os.environ.get(_ENVIRONMENT['torch']))
    else:
      folder = os.environ.get(_ENVIRONMENT['data'], '')
      has = bool(folder) and pathlib.Path(folder, need).exists()
    if not has:
      missing.append(need)
  return missing
