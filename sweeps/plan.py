"""The runs of a sweep: their flags, what tells them apart, their folders."""

import re
import runpy
import shlex
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from configs import sections
from configs.checks import require
from sweeps.grid import Point

_LONGEST = 80  # Letters of what a folder's name says of its run.


class Base(NamedTuple):
  """What the runs share.

  Attributes:
    file: Of the config, with its variant.
    changes: Flags that change it, by field.
  """

  file: str
  changes: Mapping[str, str]


class Checked(NamedTuple):
  """What is known of a run once its config was checked.

  Attributes:
    fields: The whole config, by path.
    identity: Tells it from others.
  """

  fields: Mapping[str, Any]
  identity: str


class Run(NamedTuple):
  """A run of a sweep.

  Attributes:
    name: Of its folder.
    flags: Of main.py, without its folder.
    checked: What is known of it.
  """

  name: str
  flags: tuple[str, ...]
  checked: Checked

  def arguments(self, out: str) -> tuple[str, ...]:
    """Returns the flags of main.py for a sweep in the folder `out`."""
    return (*self.flags, f'--workdir={out}/{self.name}')

  def command(self, out: str) -> str:
    """Returns the same as a line for a shell."""
    return shlex.join(('python', 'main.py', *self.arguments(out)))


def base(values: flags.FlagValues) -> Base:
  """Returns what flags that have been parsed say of the config."""
  flag = values['config']
  changed = config_flags.get_override_values(flag)
  changes = {field: str(value) for field, value in changed.items()}
  return Base(config_flags.get_config_filename(flag), changes)


def grid_of(file: str) -> str:
  """Returns the grid that a file of configs/sweeps/ has.

  Raises:
    ValueError: If it has none.
  """
  path = file.partition(':')[0]
  found = runpy.run_path(path).get('GRID')
  expected = f'some, or GRID in {path}'
  require(isinstance(found, str), '--grid', expected, found)
  return str(found)


def planned(
  base: Base,
  points: Sequence[Point],
  check: Callable[[Sequence[tuple[str, ...]]], Sequence[Checked]],
) -> list[Run]:
  """Returns the runs.

  Args:
    base: What they share.
    points: What each has of its own.
    check: Checks runs that flags describe.

  Raises:
    ValueError: If a config is refused, or if two runs are the same.
  """
  for field in points[0]:
    expected = f'either --config.{field} or {field} in the grid'
    require(field not in base.changes, 'grid', expected, 'both')
  lines = [
    (f'--config={base.file}', *_flags(base.changes), *_flags(point))
    for point in points
  ]
  found = check(lines)
  runs = [
    Run(f'{_named(point)}-{checked.identity}', line, checked)
    for point, line, checked in zip(points, lines, found, strict=True)
  ]
  first: dict[str, Point] = {}
  for run, point in zip(runs, points, strict=True):
    before = first.setdefault(run.checked.identity, point)
    expected = f'runs that differ, but {dict(before)} is the same run as'
    require(before is point, 'grid', expected, dict(point))
  return runs


def config(line: Sequence[str]) -> ConfigDict:
  """Returns the config that flags describe, exactly as main.py reads it.

  Raises:
    ValueError: If they cannot be read.
  """
  values = flags.FlagValues()
  argv = ['main.py', *line]
  config_flags.DEFINE_config_file(
    'config', None, '', flag_values=values, sys_argv=argv
  )
  try:
    with warnings.catch_warnings(), sections.reject_unknown_flags(argv):
      # Of ml_collections, which loads the file in an old way.
      warnings.filterwarnings('ignore', 'the load_module', DeprecationWarning)
      values(argv)
  except (flags.Error, SystemExit) as error:
    said = str(error).removeprefix('Refused: ')
    raise ValueError(f'{" ".join(line)}: {said}') from error
  return values.config


def differing(runs: Sequence[Run]) -> list[str]:
  """Returns the fields in which runs differ, in the order of the config."""
  fields = list(runs[0].checked.fields)
  return [
    field
    for field in fields
    if len({repr(run.checked.fields[field]) for run in runs}) > 1
  ]


def _flags(values: Mapping[str, str]) -> list[str]:
  return [f'--config.{field}={value}' for field, value in values.items()]


def _named(point: Point) -> str:
  """Returns the values of a point in a form that suits a folder."""
  leaves = Counter(field.rpartition('.')[2] for field in point)
  words = []
  for field, value in point.items():
    leaf = field.rpartition('.')[2]
    if leaf == 'name':
      words.append(value)
    else:
      words.append(f'{leaf if leaves[leaf] == 1 else field}{value}')
  text = '-'.join(re.sub('[^A-Za-z0-9.]+', '_', word) for word in words)
  return re.sub('_*-_*', '-', text).strip('_-.')[:_LONGEST]
