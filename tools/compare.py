"""Compares schemes on one cluster: runs, a table and pictures.

  python -m tools.compare --out=DIR [--config=configs/compare.py] [--seeds=3]
    [--schemes=bsp,asp,ssp,dssp,elastic,r2sp]

Only scheme, reduction, learning rate and seed differ between the runs, which
are those of a sweep (`sweeps.driver`), one at a time.  The same command resumes
an interrupted comparison: runs that have ended are not trained again.
"""

import math
import pathlib
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags, logging
from ml_collections import ConfigDict

import analysis
from analysis import printing, report
from configs import config_file, default, paths, sections, user_parts
from outputs import atomic, figures
from sweeps import driver, outcomes, plan
from sweeps.grid import Point
from sweeps.plan import SharedConfig


class Variant(NamedTuple):
  """Scheme, reduction and learning-rate rule of a row of the table.

  Attributes:
    name: Name of the row.
    scheme: Value of config.sync.name.
    reduction: Value of config.optimizer.reduction.
    scales_rate: True if the learning rate is multiplied by the number of
      workers.
  """

  name: str
  scheme: str
  reduction: str = 'sum'
  scales_rate: bool = False


# 'bsp mean, n x rate' takes the steps of 'bsp', rounded differently at most
# (with plain SGD even n times the rate is the same number if n is a power of
# two): equal rows of both show that nothing else differs.
VARIANTS = (
  Variant('bsp', 'bsp'),
  Variant('bsp mean', 'bsp', 'mean'),
  Variant('bsp mean, n x rate', 'bsp', 'mean', scales_rate=True),
  Variant('bsp, n x rate', 'bsp', scales_rate=True),
  *(Variant(name, name) for name in ('asp', 'ssp', 'dssp', 'elastic', 'r2sp')),
  Variant('quorum', 'quorum'),
)
SCHEMES = tuple(dict.fromkeys(variant.scheme for variant in VARIANTS))
# Those of the tables in docs/choosing.md.
_DEFAULT = [scheme for scheme in SCHEMES if scheme != 'quorum']


class ComparedRun(NamedTuple):
  """A run of a comparison.

  Attributes:
    variant: Name of its variant.
    seed: Value of config.seed.
    point: Values of the fields that differ from the config file.
  """

  variant: str
  seed: int
  point: Point

  @property
  def name(self) -> str:
    """Name of its folder."""
    return f'{report.file_name(self.variant)}-seed{self.seed}'


def main(argv: list[str]) -> None:
  """Runs the comparison that the flags describe."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  values = flags.FLAGS
  shared = plan.shared_config(values)
  try:
    runs = plan_comparison(
      values.config,
      shared.overrides,
      variants=find_variants(values.schemes),
      seeds=values.seeds,
    )
    code = compare(values.config, shared.file, runs, values.out)
  except ValueError as error:
    sys.exit(f'Refused: {error}')
  except KeyboardInterrupt:
    sys.exit(130)
  sys.exit(code)


def find_variants(schemes: Sequence[str]) -> list[Variant]:
  """Returns the rows for some schemes; BSP has four, which differ in steps.

  Args:
    schemes: Values of config.sync.name; a user's own scheme has a row.

  Raises:
    ValueError: If there is no scheme, or an unknown one.
  """
  own = [name for name in schemes if user_parts.is_own(name)]
  if not schemes or set(schemes) - {*SCHEMES, *own}:
    raise ValueError(
      f'schemes: expected some of {SCHEMES}, or modules of your own, got '
      f'{schemes}.'
    )
  found = [variant for variant in VARIANTS if variant.scheme in schemes]
  return found + [Variant(name, name) for name in dict.fromkeys(own)]


def plan_comparison(
  config: ConfigDict,
  overrides: Mapping[str, str],
  *,
  variants: Sequence[Variant],
  seeds: int,
) -> list[ComparedRun]:
  """Returns the runs, seed by seed, so that early results have all variants.

  Args:
    config: Config that the runs share.  Settings of a scheme apply to its own
      runs.
    overrides: Values of the flags that changed the config, by field.
    variants: Rows of the table.
    seeds: Number of seeds, from config.seed on.

  Raises:
    ValueError: If `seeds` is below 1, or if the config sets a field that
      variants set, or settings of a scheme that no variant uses.
  """
  if seeds < 1:
    raise ValueError(f'seeds: expected at least 1, got {seeds}.')
  _check_shared(config, {variant.scheme for variant in variants})
  own = f'sync.{user_parts.SECTION}.'
  others = {k: v for k, v in overrides.items() if not k.startswith(own)}
  return [
    ComparedRun(
      variant.name,
      seed,
      {
        **(overrides if user_parts.is_own(variant.scheme) else others),
        **_own_fields(config, variant, seed),
      },
    )
    for seed in range(config.seed, config.seed + seeds)
    for variant in variants
  ]


def compare(
  config: ConfigDict, file: str, runs: Sequence[ComparedRun], out: str
) -> int:
  """Trains the runs that are left, then writes table.md and pictures.

  Args:
    config: Config that the runs share.
    file: Its file, with the variant.
    runs: Runs of the comparison.
    out: Folder of the runs, the table and the pictures.

  Returns:
    The exit code: 0 if all runs have finished or diverged.

  Raises:
    ValueError: If a config or the folder is refused.
    OSError: If the table or a picture cannot be written.
  """
  # All cores train one run at a time: the last bits of results depend on them.
  options = driver.Options(out, jobs=1)
  print(
    f'{len(runs)} runs, one at a time.  How long they take depends on this '
    'machine: the first run measures it, and the end of each run shows the '
    'time that is left.',
    flush=True,
  )
  with tempfile.TemporaryDirectory() as programs:
    code = driver.run_points(
      SharedConfig(file, {}),
      [run.point for run in runs],
      options,
      uses_model=config.model.name != 'none',
      names=[run.name for run in runs],
      programs=pathlib.Path(programs),
    )
  folders = [pathlib.Path(out, run.name) for run in runs]
  if not all(outcomes.read_outcome(folder).is_final for folder in folders):
    return code
  summaries: dict[str, list[Mapping[str, Any]]] = {}
  groups: dict[str, list[analysis.Run]] = {}
  for run, folder in zip(runs, folders, strict=True):
    found = analysis.read(folder)
    summaries.setdefault(run.variant, []).append(found.summary or {})
    groups.setdefault(run.variant, []).append(found)
  measures = analysis.read(folders[0]).measures or ('accuracy',)
  table = markdown(
    {name: row(each, measures) for name, each in summaries.items()}
  )
  text = f'{_caption(config, runs)}\n\n{table}'
  print(text)
  atomic.write(pathlib.Path(out) / 'table.md', text)
  report.write_pictures(groups, out, of_each=1)
  logging.info('Table and pictures are in %s', out)
  return 0


def row(
  summaries: Sequence[Mapping[str, Any]], measures: Iterable[str]
) -> dict[str, str]:
  """Returns the cells of a variant by the names of the columns.

  Args:
    summaries: Summary of each seed's run.  Times to a threshold count all of
      them, and are infinite where it was not reached; other columns omit runs
      that diverged, and the first one has their number.
    measures: Names of the measures, in the order of their columns.
  """
  finished = [
    each
    for each in summaries
    if outcomes.outcome_of_summary(each).status == 'finished'
  ]

  def spread(field: str, form: str, scale: int = 1) -> str:
    values = [each[field] for each in finished]
    return cell([v if v is None else scale * v for v in values], form)

  diverged = len(summaries) - len(finished)
  note = f'; {diverged} of {len(summaries)} diverged' if diverged else ''
  cells = {}
  for name in measures:
    if figures.is_share(name):
      column, form, scale = f'{figures.label(name)} (%)', '.1f', 100
    else:
      column, form, scale = figures.label(name), figures.number_format(name), 1
    cells[column] = spread(f'final_{name}', form, scale) + note
    note = ''
  times = [figures.times(each) for each in summaries]
  for wanted in times[0]:
    column = f'to {wanted.replace("%", " %")} (s)'
    cells[column] = _time_cell([each[wanted] for each in times])
  cells['in all (s)'] = spread('virtual_s', '.1f')
  cells['waiting (%)'] = spread('waiting_share', '.1f', 100)
  cells['mean staleness'] = spread('staleness_mean', '.2f')
  cells['updates'] = spread('updates', '.0f')
  return cells


def cell(values: Sequence[float | None], form: str) -> str:
  """Returns a median, with its range if they differ; a dash for infinity.

  Args:
    values: Value of each seed; None counts as infinite, but not in the range.
    form: Format of the numbers.
  """
  known = [value for value in values if value is not None]
  if 2 * len(known) <= len(values):
    return '-'
  every = known + [math.inf] * (len(values) - len(known))
  spread = np.median(every), min(known), max(known)
  texts = [format(value, form) for value in spread]
  return texts[0] if len(set(texts)) == 1 else '{} ({}–{})'.format(*texts)


def markdown(rows: Mapping[str, Mapping[str, str]]) -> str:
  """Returns the table as Markdown, a line per variant.

  Args:
    rows: Cells by variant and column.
  """
  lines = [['', *next(iter(rows.values()))]]
  lines += [[name, *cells.values()] for name, cells in rows.items()]
  return f'{printing.markdown(lines)}\n'


def _check_shared(config: ConfigDict, schemes: set[str]) -> None:
  """Refuses fields that the variants would ignore or overwrite."""
  if config.optimizer.reduction != 'sum':
    raise ValueError(
      "config.optimizer.reduction: expected 'sum', the variants change it, got "
      f'{config.optimizer.reduction!r}.'
    )
  defaults = default.get_config().sync
  if any(map(user_parts.is_own, schemes)):
    schemes = schemes | {user_parts.SECTION}
  for scheme in sorted(set(defaults) - {'name', *schemes}):
    if config.sync[scheme] != defaults[scheme]:
      raise ValueError(
        f'config.sync.{scheme}: expected {defaults[scheme].to_dict()}, because '
        f'no run uses {scheme}, got {config.sync[scheme].to_dict()}.'
      )


def _own_fields(
  config: ConfigDict, variant: Variant, seed: int
) -> dict[str, str]:
  """Returns the fields of a variant's run, as flags take them.

  Settings of other schemes return to their defaults.
  """
  fields = {
    'sync.name': variant.scheme,
    'optimizer.reduction': variant.reduction,
    'seed': str(seed),
  }
  if variant.scales_rate:
    rate = config.optimizer.learning_rate * config.cluster.workers
    fields['optimizer.learning_rate'] = repr(rate)
  for scheme, defaults in default.get_config().sync.items():
    if scheme not in ('name', variant.scheme):
      fields |= dict(_changes(config.sync[scheme], defaults, f'sync.{scheme}'))
  return fields


def _changes(
  section: ConfigDict, defaults: ConfigDict, above: str
) -> Iterator[tuple[str, str]]:
  """Yields names and defaults of the fields that a section has changed."""
  for field, value in defaults.items():
    name = f'{above}.{field}'
    if isinstance(value, ConfigDict):
      yield from _changes(section[field], value, name)
    elif section[field] != value:
      yield name, str(value)


def _time_cell(times: list[float | None]) -> str:
  """Returns the cell of times to a threshold."""
  reached = len(times) - times.count(None)
  note = f'; {reached} of {len(times)}' if None in times else ''
  return cell(times, '.1f') + note


def _caption(config: ConfigDict, runs: Sequence[ComparedRun]) -> str:
  seeds = sorted({run.seed for run in runs})
  return (
    f'{config.model.name} on {config.data.name}, {config.epochs:g} epochs, '
    f'{config.cluster.workers} workers: median and range over seeds '
    f'{", ".join(map(str, seeds))}; times are virtual.  "2 of 3": so many '
    'seeds got there; a dash: the median did not.'
  )


def _parse(argv: list[str]) -> list[str]:
  paths.define_path('out', 'Folder for all outputs.', required=True)
  flags.DEFINE_integer('seeds', 3, 'Runs of each variant.')
  flags.DEFINE_list('schemes', _DEFAULT, 'Schemes to compare.')
  shared = (
    'Config that the runs share; --config.SECTION.FIELD=VALUE changes a field.'
  )
  with sections.reject_unknown_flags(argv):
    # The default takes the changes of --config here.
    config_file.define_flag('configs/compare.py', shared)
    return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
