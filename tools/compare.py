"""Compares schemes on one cluster: runs, a table and pictures.

  python -m tools.compare --out=DIR [--config=configs/compare.py] [--seeds=3]
    [--schemes=bsp,asp,ssp,dssp,elastic,r2sp]

Only scheme, reduction, learning rate and seed differ between the runs.  The
same command goes on where it was: runs that have ended are not run again.
"""

import contextlib
import math
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

import train
from configs import default, sections
from outputs import atomic, compiled
from tools import report
from tools.reading import records


class Variant(NamedTuple):
  """Scheme, reduction and learning-rate rule of a row of the table.

  Attributes:
    name: Name of the row.
    scheme: As config.sync.name.
    reduction: As config.optimizer.reduction.
    scales_rate: True if the learning rate is multiplied by the number of
      workers.
  """

  name: str
  scheme: str
  reduction: str = 'sum'
  scales_rate: bool = False


# 'bsp mean, n x rate' takes the steps of 'bsp', rounded differently at most
# (with plain SGD even n times the rate is the same number if n is a power of
# two): that its row is the same shows that nothing else differs.
VARIANTS = (
  Variant('bsp', 'bsp'),
  Variant('bsp mean', 'bsp', 'mean'),
  Variant('bsp mean, n x rate', 'bsp', 'mean', scales_rate=True),
  Variant('bsp, n x rate', 'bsp', scales_rate=True),
  *(Variant(name, name) for name in ('asp', 'ssp', 'dssp', 'elastic', 'r2sp')),
)
SCHEMES = tuple(dict.fromkeys(variant.scheme for variant in VARIANTS))
_DIVERGED = 'FloatingPointError'  # How `ended` begins.


class Planned(NamedTuple):
  """A run of a comparison.

  Attributes:
    variant: The name of its variant.
    folder: For its outputs.
    config: Whole.
  """

  variant: str
  folder: pathlib.Path
  config: ConfigDict


class Refused(ValueError):
  """A comparison that flags, config or a folder do not allow."""


def main(argv: list[str]) -> None:
  """Runs the comparison that the flags describe."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  given = flags.FLAGS
  try:
    runs = plan(
      given.config,
      out=given.out,
      variants=variants(given.schemes),
      seeds=given.seeds,
    )
    with compiled_once():
      compare(runs, given.out)
  except Refused as error:
    sys.exit(f'Refused: {error}')
  except KeyboardInterrupt:
    sys.exit(130)


def variants(schemes: Sequence[str]) -> list[Variant]:
  """Returns the rows for some schemes; BSP has four, which differ in steps.

  Raises:
    Refused: If there is no scheme, or an unknown one.
  """
  if not schemes or set(schemes) - set(SCHEMES):
    raise Refused(f'schemes: expected some of {SCHEMES}, got {schemes}.')
  return [variant for variant in VARIANTS if variant.scheme in schemes]


def plan(
  config: ConfigDict,
  *,
  out: str | pathlib.Path,
  variants: Sequence[Variant],
  seeds: int,
) -> list[Planned]:
  """Returns the runs, seed by seed, so that an early look has all variants.

  Args:
    config: What the runs share.  Settings of a scheme are for its own runs.
    out: Folder for the folders of the runs.
    variants: Rows of the table.
    seeds: How many, from config.seed on.

  Raises:
    Refused: If `seeds` is below 1, or if the config sets what variants set, or
      settings of a scheme that none of them uses.
  """
  if seeds < 1:
    raise Refused(f'seeds: expected at least 1, got {seeds}.')
  _check_shared(config, {variant.scheme for variant in variants})
  runs = []
  for seed in range(config.seed, config.seed + seeds):
    for variant in variants:
      name = f'{report.file_name(variant.name)}-seed{seed}'
      own = _config(config, variant, seed)
      runs.append(Planned(variant.name, pathlib.Path(out) / name, own))
  return runs


def compare(runs: Sequence[Planned], out: str | pathlib.Path) -> None:
  """Runs what has not ended yet, then writes table.md and pictures.

  Args:
    runs: As `plan` gives them.
    out: Folder for the table and the pictures.

  Raises:
    Refused: If the config or the folder of a run is.
    OSError: If the table or a picture cannot be written.
  """
  summaries: dict[str, list[Mapping[str, Any]]] = {}
  groups: dict[str, list[records.RunRecord]] = {}
  for number, run in enumerate(runs, start=1):
    logging.info('Run %d of %d: %s', number, len(runs), run.folder.name)
    summaries.setdefault(run.variant, []).append(trained(run))
    groups.setdefault(run.variant, []).append(records.load(run.folder))
  table = markdown({name: row(each) for name, each in summaries.items()})
  text = f'{_caption(runs)}\n\n{table}'
  print(text)
  atomic.write(pathlib.Path(out) / 'table.md', text)
  report.draw(groups, out, timelines=1)
  logging.info('Table and pictures are in %s', out)


def trained(run: Planned) -> Mapping[str, Any]:
  """Returns the summary of a run, which is run unless it has ended.

  One that has diverged would diverge again.

  Raises:
    Refused: If its config or its folder is.
  """
  try:
    start = train.build(run.config, workdir=str(run.folder), own_process=True)
    before = records.read_summary(run.folder)
  except (OSError, ValueError) as error:
    raise Refused(f'{run.folder.name}: {error}') from error
  if before and _diverged(before):
    return before
  try:
    return start()
  except FloatingPointError as error:
    logging.warning('%s diverged: %s', run.folder, error)
  return records.read_summary(run.folder)


def row(summaries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
  """Returns the cells of a variant by the names of the columns.

  Args:
    summaries: One for each seed.  Times to an accuracy count all of them, and
      are infinite where it was not reached; other columns leave out runs that
      diverged, and the accuracy says how many.
  """
  whole = [each for each in summaries if not _diverged(each)]

  def over(field: str, form: str, scale: int = 1) -> str:
    return cell([scale * each[field] for each in whole], form)

  lost = len(summaries) - len(whole)
  note = f'; {lost} of {len(summaries)} diverged' if lost else ''
  cells = {'accuracy (%)': over('final_accuracy', '.1f', 100) + note}
  for level in summaries[0]['time_to']:
    times = [each['time_to'][level] for each in summaries]
    cells[f'to {100 * float(level):g} % (s)'] = _reached(times)
  cells['in all (s)'] = over('virtual_s', '.1f')
  cells['waiting (%)'] = over('waiting_share', '.1f', 100)
  cells['mean staleness'] = over('staleness_mean', '.2f')
  cells['updates'] = over('updates', '.0f')
  return cells


def cell(values: Sequence[float | None], form: str) -> str:
  """Returns a median, with its range if that shows; a dash if it is infinite.

  Args:
    values: One for each seed; None counts as infinite, but not in the range.
    form: How they are formatted.
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
  lines = [('', *next(iter(rows.values())))]
  lines += [(name, *cells.values()) for name, cells in rows.items()]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  lines.insert(1, ['-' * width for width in widths])
  lines = [map(str.ljust, line, widths) for line in lines]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


@contextlib.contextmanager
def compiled_once() -> Iterator[None]:
  """Shares compiled programs between runs, through a temporary folder.

  Enter the context before the first compilation.  It changes nothing if the
  user has configured a compilation cache.
  """
  if jax.config.jax_compilation_cache_dir:
    yield
    return
  with tempfile.TemporaryDirectory() as folder:
    compiled.use(pathlib.Path(folder), everything=True)
    yield


def _check_shared(config: ConfigDict, schemes: set[str]) -> None:
  """Refuses what the variants would ignore or overwrite."""
  if config.optimizer.reduction != 'sum':
    raise Refused(
      "config.optimizer.reduction: expected 'sum', the variants change it, got "
      f'{config.optimizer.reduction!r}.'
    )
  defaults = default.get_config().sync
  for scheme in sorted(set(defaults) - {'name', *schemes}):
    if config.sync[scheme] != defaults[scheme]:
      raise Refused(
        f'config.sync.{scheme}: expected {defaults[scheme].to_dict()}, because '
        f'no run uses {scheme}, got {config.sync[scheme].to_dict()}.'
      )


def _config(config: ConfigDict, variant: Variant, seed: int) -> ConfigDict:
  """Returns a variant's config: other schemes' settings are set back."""
  own = config.copy_and_resolve_references()
  for scheme, fields in default.get_config().sync.items():
    if scheme not in ('name', variant.scheme):
      own.sync[scheme] = fields
  own.sync.name = variant.scheme
  own.optimizer.reduction = variant.reduction
  if variant.scales_rate:
    own.optimizer.learning_rate *= own.cluster.workers
  own.seed = seed
  return own.lock()


def _diverged(summary: Mapping[str, Any]) -> bool:
  return summary['ended'].startswith(_DIVERGED)


def _reached(times: list[float | None]) -> str:
  """Returns the cell of times to an accuracy."""
  reached = len(times) - times.count(None)
  note = f'; {reached} of {len(times)}' if None in times else ''
  return cell(times, '.1f') + note


def _caption(runs: Sequence[Planned]) -> str:
  seeds = sorted({run.config.seed for run in runs})
  config = runs[0].config
  return (
    f'{config.model.name} on {config.data.name}, {config.epochs:g} epochs, '
    f'{config.cluster.workers} workers: median and range over seeds '
    f'{", ".join(map(str, seeds))}; times are virtual.  "2 of 3": so many '
    'seeds got there; a dash: the median did not.'
  )


def _parse(argv: list[str]) -> list[str]:
  flags.DEFINE_string('out', None, 'Folder for all outputs.', required=True)
  flags.DEFINE_integer('seeds', 3, 'Runs of each variant.')
  flags.DEFINE_list('schemes', list(SCHEMES), 'Schemes to compare.')
  shared = 'What the runs share; --config.SECTION.FIELD=VALUE changes a field.'
  with sections.reject_unknown_flags(argv):
    # The default takes the changes of --config here.
    config_flags.DEFINE_config_file('config', 'configs/compare.py', shared)
    return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
