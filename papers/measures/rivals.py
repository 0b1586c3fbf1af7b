"""Measures sums and steps beside those of PyTorch on the same hosts of a lab.

Labs need root.  The environment variable SYNCOPATE_PEERS names an interpreter
that has torch.  Seeds are repetitions; those of odd seeds measure PyTorch
first.
"""

import contextlib
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence

from bench import hosts
from bench.lab import running, tables
from bench.lab.conditions import Condition, Lab
from bench.lab.tables import Setting
from configs.checks import require
from outputs import atomic

CASES = {'equal4': 'equal links', 'slow4': 'one of four hosts at a quarter'}
_SIZES = {'quick': '5', 'full': '25'}  # MB.
_ROUNDS, _STEPS = 5, 6
# Rows of the tables of bench.lab, by their names here; DDP has two sizes of
# buckets, of which the faster one counts.
_OURS = {
  'sum, forest': ('allreduce', 'forest'),
  'sum, ring': ('allreduce', 'ring'),
  'sum, psum': ('allreduce', 'psum'),
  'step, forest': ('ladder', 'forest-overlap'),
  'lowrank': ('ladder', 'lowrank'),
}
_TORCH = {
  'sum, gloo': ('allreduce', 'gloo'),
  'step, ddp': ('ladder', 'ddp-bfloat16-1MiB'),
  'step, ddp, default': ('ladder', 'ddp-bfloat16-default'),
  'powersgd': ('ladder', 'powersgd'),
}
_FACTORS = 'lowrank', 'powersgd'
_WITH_FACTORS = 'slow4'


def measure(
  *, seed: int, scale: str, folder: pathlib.Path
) -> list[Mapping[str, object]]:
  """Returns seconds of sums, of steps and of steps with low-rank gradients.

  DDP's step is that of its faster size of buckets.

  Args:
    seed: Number of the repetition.
    scale: 'quick' or 'full'.
    folder: Folder of the records of each case, which is measured once.

  Raises:
    ValueError: If SYNCOPATE_PEERS names no interpreter.
    RuntimeError: If a run fails.
  """
  python = os.environ.get('SYNCOPATE_PEERS', '')
  require(bool(python), 'SYNCOPATE_PEERS', 'an interpreter', python)
  is_ours_first = seed % 2 == 0
  return [
    record
    for case in CASES
    for record in _read_case(python, case, scale, is_ours_first, folder)
  ]


def _read_case(
  python: str, case: str, scale: str, is_ours_first: bool, folder: pathlib.Path
) -> Sequence[Mapping[str, object]]:
  """Returns the records of a case, which is measured once."""
  path = folder / f'{case}.json'
  if not path.exists():
    out = pathlib.Path(tempfile.mkdtemp(dir=folder))
    lab = Lab(case, hosts.cases()[case])
    records: list[Mapping[str, object]] = []
    for rows in (_OURS, _TORCH) if is_ours_first else (_TORCH, _OURS):
      wanted = make_conditions(lab, rows, scale)
      with contextlib.redirect_stdout(sys.stderr):
        results = running.measure(out, lab, wanted, python=python)
      took = {
        name: running.require_finished(name, results[name])['median_s']
        for name in results
      }
      if default_s := took.pop('step, ddp, default', None):
        took['step, ddp'] = min(took['step, ddp'], default_s)
      records += [
        {'links': case, 'system': name, 'took_s': seconds}
        for name, seconds in took.items()
      ]
    atomic.write(path, json.dumps(records))
  stored: Sequence[Mapping[str, object]] = json.loads(path.read_text())
  return stored


def make_conditions(
  lab: Lab, rows: Mapping[str, tuple[str, str]], scale: str
) -> list[Condition]:
  """Returns the conditions of rows of bench.lab on hosts.

  Args:
    lab: The hosts; low-rank gradients are measured on one of them.
    rows: Table and row by name.
    scale: 'quick' or 'full'.
  """
  conditions = []
  for name, (table, row) in rows.items():
    if name in _FACTORS and lab.name != _WITH_FACTORS:
      continue
    rounds = _ROUNDS if table == 'allreduce' else _STEPS
    setting = Setting(lab, hosts.BASE_MBIT, _SIZES[scale], rounds)
    scheme = tables.TABLES[table].schemes[row]
    conditions.append(tables.make_condition(name, scheme, setting))
  return conditions
