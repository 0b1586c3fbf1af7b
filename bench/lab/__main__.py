"""Measures a table of conditions on hosts of a lab, and stores its rows.

  python -m bench.lab --table=allreduce
  python -m bench.lab --table=routes --cases=equal4,slow4 --schemes=forest,ring
  python -m bench.lab --table=ladder --sizes=5 --peers=.venv-peers/bin/python
  python -m bench.lab --table=local_steps --show
  python -m bench.lab --table=routes --page=docs/benchmarks.md

Needs root, for network namespaces (tools.lab).  All hosts share the processors
of this machine.  Times are medians; an optimum has nominal rates, of which
frames and their headers leave 95.6 %.  Rows go to lab-TABLE.json in --out, in
place of rows of the same links and size.  --show prints what is stored; --page
writes it into a page, between the lines <!-- lab-TABLE --> and <!-- end -->.
"""

import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from bench import hosts
from bench.lab import conditions, running, tables
from bench.lab.conditions import RUN, TORCH, Lab
from bench.lab.tables import Setting, Table
from configs import paths
from configs.checks import require
from outputs import atomic

_KEY = ('case', 'mbit', 'size', 'scheme')
_FORMAT = 1
_END = '<!-- end -->'


def main(argv: list[str]) -> None:
  """Measures and prints the chosen rows."""
  require(len(argv) == 1, 'arguments', 'flags alone', argv[1:])
  values = flags.FLAGS
  name, table = values.table, tables.TABLES[values.table]
  path = pathlib.Path(values.out or 'results', f'lab-{name}.json')
  stored = read(path)
  if values.show:
    print(tables.render(name, stored))
    return
  if values.page:
    page = pathlib.Path(values.page)
    atomic.write(page, fill_page(page.read_text(), name, stored))
    return
  python = values.peers or ''
  known = [*hosts.cases()]
  cases = _choose('cases', values.cases, table.cases, known)
  with_peers = [
    each
    for each, scheme in table.schemes.items()
    if python or scheme.system != TORCH
  ]
  schemes = _choose('schemes', values.schemes, with_peers, with_peers)
  sizes = values.sizes or table.sizes
  rounds = values.rounds or table.rounds
  if python:
    print(f'Compared with torch {read_torch_version(python)}.', flush=True)
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Removes the lab.
  out = pathlib.Path(tempfile.mkdtemp())
  print(f'runs are in {out}', flush=True)
  for case in cases:
    lab = Lab(case, hosts.scaled_cases(values.mbit)[case])
    for size in sizes:
      setting = Setting(lab, values.mbit, size, rounds)
      rows = measure(out / size, table, setting, schemes, python)
      print(f'\n{tables.render(name, rows)}', flush=True)
      for row in rows:
        if 'error' in row:
          print(f'{row["scheme"]}: {row["error"]}', file=sys.stderr, flush=True)
      stored = merge(stored, [row for row in rows if 'error' not in row])
      write(path, stored)


def measure(
  out: pathlib.Path,
  table: Table,
  setting: Setting,
  schemes: Sequence[str],
  python: str,
) -> list[dict[str, Any]]:
  """Returns measured rows of a table.

  Args:
    python: Path of an interpreter that has torch; '' to leave out its rows.
  """
  chosen = [(name, table.schemes[name]) for name in schemes]
  wanted = [tables.make_condition(*each, setting) for each in chosen]
  results = running.measure(out, setting.lab, wanted, python=python)
  about = {
    'date': datetime.datetime.now(datetime.UTC).strftime('%d %B %Y'),
    'cores': len(os.sched_getaffinity(0)),
    'load': round(os.getloadavg()[0], 1),
    'rounds': setting.rounds,
  }
  rows = []
  for (name, scheme), condition in zip(chosen, wanted, strict=True):
    figures = results[name] | tables.find_bounds(scheme, setting)
    can_predict = scheme.system == RUN and not (
      condition.servers and setting.lab.workers.pairs
    )
    if table.is_predicted and can_predict:
      figures['virtual_s'] = conditions.predict(setting.lab, condition).median_s
    for field in ('median_s', 'compute_s', 'virtual_s'):
      if figures.get(field) is not None:
        figures[field] *= scheme.fragments
    key = (setting.lab.name, setting.mbit, setting.size, name)
    rows.append({**dict(zip(_KEY, key, strict=True)), **figures, **about})
  return rows


def merge(
  stored: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
  """Returns rows with new ones in place of those with the same key."""
  merged = {tuple(row[f] for f in _KEY): row for row in (*stored, *rows)}
  return [*merged.values()]


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the rows of a file; none if there is no file.

  Raises:
    ValueError: If the file has another format; names the file.
  """
  if not path.exists():
    return []
  content = json.loads(path.read_text())
  version = content.get('format')
  require(version == _FORMAT, str(path), f'format {_FORMAT}', version)
  rows: list[dict[str, Any]] = content['rows']
  return rows


def write(path: pathlib.Path, rows: Sequence[dict[str, Any]]) -> None:
  """Writes rows of a table to a JSON file, one row a line."""
  path.parent.mkdir(parents=True, exist_ok=True)
  lines = ',\n'.join(f'  {json.dumps(row)}' for row in rows)
  text = f'{{\n "format": {_FORMAT},\n "rows": [\n{lines}\n ]\n}}\n'
  atomic.write(path, text)


def fill_page(text: str, name: str, rows: Sequence[dict[str, Any]]) -> str:
  """Returns a page in which the rows replace those of the table `name`.

  Raises:
    ValueError: If the page has no place for the table.
  """
  start = f'<!-- lab-{name} -->\n'
  before, found, after = text.partition(start)
  _, end, rest = after.partition(_END)
  places = f'{start.strip()} and then {_END}'
  require(bool(found and end), '--page', f'a page with {places}', 'none')
  loads = [row['load'] for row in rows]
  when = dict.fromkeys(f'{row["date"]}, {row["cores"]} cores' for row in rows)
  load = ' to '.join(dict.fromkeys(f'{f(loads):g}' for f in (min, max)))
  about = f'Measured: {"; ".join(when)}, load {load}.'
  table = tables.render(name, rows)
  return f'{before}{start}\n{table}\n\n{about}\n\n{_END}{rest}'


def read_torch_version(python: str) -> str:
  """Returns the version of an interpreter's torch.

  Raises:
    ValueError: If there is no such interpreter, or it has no torch with gloo.
  """
  words = 'import torch, torch.distributed as d; '
  words += 'print(torch.__version__ if d.is_gloo_available() else "")'
  try:
    done = subprocess.run([python, '-c', words], capture_output=True, text=True)
    lines = done.stderr.strip().splitlines()[-1:] or ['torch without gloo']
    result = done.stdout.strip()
  except OSError as error:
    result, lines = '', [str(error)]
  if not result:
    raise ValueError(
      '--peers: expected an interpreter that has torch with gloo (make peers), '
      f'got {python}: {lines[0]}'
    )
  return result


def _choose(
  flag: str,
  chosen: Sequence[str],
  defaults: Sequence[str],
  known: Sequence[str],
) -> Sequence[str]:
  """Returns the values of a flag, or its defaults."""
  unknown = [each for each in chosen if each not in known]
  require(not unknown, f'--{flag}', f'some of {[*known]}', unknown)
  return chosen or defaults


def _parse(argv: list[str]) -> list[str]:
  flags.DEFINE_enum(
    'table', None, [*tables.TABLES], 'Table to measure.', required=True
  )
  flags.DEFINE_list(
    'cases',
    [],
    f'Hosts, some of {", ".join(hosts.cases())}; the default is in the table.',
  )
  flags.DEFINE_list(
    'sizes',
    [],
    'MB of the summed vector, or models of the table steps (vgg8, vgg4, mlp); '
    'those of the table by default.',
  )
  flags.DEFINE_list(
    'schemes',
    [],
    'Rows of the table; all by default, those of PyTorch only with --peers.',
  )
  flags.DEFINE_integer(
    'rounds',
    None,
    'Measured iterations of each row; the default is in the table.',
    lower_bound=1,
  )
  flags.DEFINE_integer(
    'mbit',
    hosts.BASE_MBIT,
    'Base rate of the links, Mbit/s; all rates of a case are in proportion.',
    lower_bound=1,
  )
  paths.define_path(
    'peers', 'Interpreter that has PyTorch (make peers), for its rows.'
  )
  paths.define_path('out', 'Folder of the stored rows; results by default.')
  flags.DEFINE_bool('show', False, 'Print the stored rows, measure nothing.')
  paths.define_path('page', 'Page of Markdown to fill with the stored rows.')
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  try:
    app.run(main, flags_parser=_parse)
  except ValueError as error:
    sys.exit(f'Refused: {error}')
