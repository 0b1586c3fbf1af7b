"""Plans of many runs: their flags, their identities and their folders."""

import re
import runpy
import shlex
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from configs import config_file, sections
from configs.checks import check_uri, require
from sweeps.grid import Point

MLFLOW = 'outputs.mlflow'  # Field of a URI.
_LONGEST = 80  # Characters of the values in the name of a folder.


class SharedConfig(NamedTuple):
  """Part of the config that all runs share.

  Attributes:
    file: Path of the config file, with its variant.
    overrides: Values of flags that change it, by field.
  """

  file: str
  overrides: Mapping[str, str]


class ResolvedConfig(NamedTuple):
  """Config of a run that has passed all checks.

  Attributes:
    fields: Values of all fields, by dotted name.
    identity: Fingerprint that no other run of the plan has.
    files: Path and digest of each file that the run reads, by field: see
      `outputs.inputs.digests`.
  """

  fields: Mapping[str, Any]
  identity: str
  files: Mapping[str, Mapping[str, Any]]


class PlannedRun(NamedTuple):
  """A run of a plan.

  Attributes:
    name: Name of its folder.
    flags: Flags of main.py, without --workdir.
    resolved: Its config after the checks.
  """

  name: str
  flags: tuple[str, ...]
  resolved: ResolvedConfig

  def arguments(self, out: str) -> tuple[str, ...]:
    """Returns all flags of main.py for a sweep in the folder `out`."""
    return (*self.flags, f'--workdir={out}/{self.name}')

  def command(self, out: str) -> str:
    """Returns the shell command of the run for a sweep in the folder `out`."""
    return shlex.join(('python', 'main.py', *self.arguments(out)))


def shared_config(values: flags.FlagValues) -> SharedConfig:
  """Returns the config file and the overrides of parsed flags."""
  flag = values['config']
  found = config_flags.get_override_values(flag)
  overrides = {field: str(value) for field, value in found.items()}
  return SharedConfig(config_flags.get_config_filename(flag), overrides)


def read_grid(file: str) -> str:
  """Returns GRID of a config file, as those of configs/sweeps/ have one.

  Args:
    file: Path of the file, with or without a variant.

  Raises:
    ValueError: If the file has no GRID.
  """
  path = file.partition(':')[0]
  found = runpy.run_path(path).get('GRID')
  expected = f'some, or GRID in {path}'
  require(isinstance(found, str), '--grid', expected, found)
  return str(found)


def plan_runs(
  shared: SharedConfig,
  points: Sequence[Point],
  resolve: Callable[[Sequence[tuple[str, ...]]], Sequence[ResolvedConfig]],
  names: Sequence[str] | None = None,
) -> list[PlannedRun]:
  """Returns the runs of a plan, in the order of their points.

  Args:
    resolve: Checks the configs of runs, given the flags of each.
    names: Names of their folders; None for names of values and identity.

  Raises:
    ValueError: If a config is refused, or if two runs are the same.
  """
  for values in (shared.overrides, *points):
    check_uri(MLFLOW, values.get(MLFLOW, ''))
  for field in points[0]:
    expected = f'either --config.{field} or {field} in the grid'
    require(field not in shared.overrides, 'grid', expected, 'both')
  lines = [
    (f'--config={shared.file}', *_flags(shared.overrides), *_flags(point))
    for point in points
  ]
  found = resolve(lines)
  if names is None:
    names = [
      f'{_values_in_name(point)}-{resolved.identity}'
      for point, resolved in zip(points, found, strict=True)
    ]
  runs = list(map(PlannedRun, names, lines, found))
  first: dict[str, Point] = {}
  for run, point in zip(runs, points, strict=True):
    before = first.setdefault(run.resolved.identity, point)
    expected = f'runs that differ, but {dict(before)} is the same run as'
    require(before is point, 'grid', expected, dict(point))
  return runs


def parse_config(arguments: Sequence[str]) -> ConfigDict:
  """Returns the config that flags describe, exactly as main.py reads it.

  Raises:
    ValueError: If the flags cannot be parsed.
  """
  values = flags.FlagValues()
  argv = ['main.py', *arguments]
  config_file.define_flag(None, '', flag_values=values, argv=argv)
  try:
    with warnings.catch_warnings(), sections.reject_unknown_flags(argv):
      # ml_collections loads the file by a deprecated function.
      warnings.filterwarnings('ignore', 'the load_module', DeprecationWarning)
      values(argv)
  except (flags.Error, SystemExit) as error:
    reason = str(error).removeprefix('Refused: ')
    raise ValueError(f'{" ".join(arguments)}: {reason}') from error
  config: ConfigDict = values.config
  return config


def differing_fields(runs: Sequence[PlannedRun]) -> list[str]:
  """Returns the fields in which runs differ, in the order of the config."""
  return [
    field
    for field in runs[0].resolved.fields
    if len({repr(run.resolved.fields[field]) for run in runs}) > 1
  ]


def _flags(values: Mapping[str, str]) -> list[str]:
  return [f'--config.{field}={value}' for field, value in values.items()]


def _values_in_name(point: Point) -> str:
  """Returns the values of a point in a form that suits a folder's name."""
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
