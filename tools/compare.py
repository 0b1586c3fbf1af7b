"""Compares schemes on one cluster: runs, a table and pictures.

  python -m tools.compare --out=DIR [--config=configs/compare.py] [--seeds=3]
    [--schemes=bsp,asp,ssp,dssp,elastic,r2sp]

Only scheme, reduction, learning rate and seed differ between the runs.  Called
again, it goes on where it was: runs that have ended are not run again.
"""

import contextlib
import json
import math
import pathlib
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import rich.console
import rich.table
from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

import train
from cluster.files import manifest
from configs import default
from tools import report

SCHEMES = ('bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp')
_DIVERGED = 'FloatingPointError'  # How `ended` begins.


class Variant(NamedTuple):
  """One row of the table.

  Attributes:
    name: What it is called.
    scheme: As config.sync.name.
    reduction: As config.optimizer.reduction.
    scales_rate: Whether the learning rate is multiplied by the number of
      workers.
  """

  name: str
  scheme: str
  reduction: str = 'sum'
  scales_rate: bool = False


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


class Spread(NamedTuple):
  """A figure over seeds, infinite if too few seeds have it.

  Attributes:
    median: Of all seeds.
    low: Smallest.
    high: Largest that is finite.
  """

  median: float
  low: float
  high: float


class Refused(ValueError):
  """A comparison that flags, config or folders do not allow."""


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


def variants(schemes: Sequence[str]) -> list[Variant]:
  """Returns the rows for some schemes; BSP has four, which differ in steps.

  'bsp mean, n x rate' takes the steps of 'bsp', rounded differently at most
  (with plain SGD even n times the rate is the same number if n is a power of
  two): that its row is the same shows that nothing else differs.

  Raises:
    Refused: If there is no scheme, or an unknown one.
  """
  if not schemes or set(schemes) - set(SCHEMES):
    raise Refused(f'schemes: expected some of {SCHEMES}, got {schemes}.')
  found = []
  for scheme in dict.fromkeys(schemes):
    found.append(Variant(scheme, scheme))
    if scheme == 'bsp':
      found.append(Variant('bsp mean', 'bsp', 'mean'))
      found.append(Variant('bsp mean, n x rate', 'bsp', 'mean', True))
      found.append(Variant('bsp, n x rate', 'bsp', 'sum', True))
  return found


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
    Refused: If `seeds` is below 1, if the config sets what variants set, or
      settings of a scheme that none of them uses, or if a folder holds another
      run.
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
  for run in runs:
    _check_folder(run)
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
  for number, run in enumerate(runs, start=1):
    logging.info('Run %d of %d: %s', number, len(runs), run.folder.name)
    summaries.setdefault(run.variant, []).append(trained(run))
  rows = {name: row(each) for name, each in summaries.items()}
  caption = _caption(runs)
  _print(rows, caption)
  table = pathlib.Path(out) / 'table.md'
  table.write_text(f'{caption}\n\n{markdown(rows)}')
  _draw(runs, pathlib.Path(out))
  logging.info('Table and pictures are in %s', out)


def trained(run: Planned) -> Mapping[str, Any]:
  """Returns the summary of a run, which is run unless it has ended.

  A run that diverges ends so, and would again.

  Raises:
    Refused: If its config or its folder is.
  """
  file = run.folder / 'summary.json'
  if file.exists():
    summary = _read(file, {'ended': 'text'})
    if summary['ended'] == 'finished' or _diverged(summary):
      return summary
  try:
    start = train.build(run.config, workdir=str(run.folder))
  except (OSError, ValueError) as error:
    raise Refused(f'{run.folder.name}: {error}') from error
  try:
    start()
  except FloatingPointError as error:
    logging.warning('%s diverged: %s', run.folder, error)
  return _read(file, {'ended': 'text'})


def row(summaries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
  """Returns the cells of a variant by the names of the columns.

  Args:
    summaries: One for each seed.  Times to an accuracy count all of them, and
      are infinite where it was not reached; other columns leave out runs that
      diverged, and the accuracy says how many.
  """
  whole = [each for each in summaries if not _diverged(each)]
  cells = {'accuracy (%)': _accuracy(whole, len(summaries))}
  for accuracy in summaries[0]['time_to']:
    times = [each['time_to'][accuracy] for each in summaries]
    cells[f'to {100 * float(accuracy):g} % (s)'] = _reached(times)
  cells['in all (s)'] = _cell([each['virtual_s'] for each in whole], '.1f')
  waiting = _percent(each['waiting_share'] for each in whole)
  cells['waiting (%)'] = _cell(waiting, '.1f')
  stale = [each['staleness_mean'] for each in whole]
  cells['mean staleness'] = _cell(stale, '.2f')
  cells['updates'] = _cell([each['updates'] for each in whole], '.0f')
  return cells


def spread(values: Sequence[float | None]) -> Spread:
  """Returns the median of all seeds, and the range of those that got there.

  Args:
    values: One for each seed, one at least; None counts as infinite.
  """
  known = [value for value in values if value is not None]
  missing = [math.inf] * (len(values) - len(known))
  median = float(np.median(known + missing))
  return Spread(
    median, min(known, default=math.inf), max(known, default=math.inf)
  )


def markdown(rows: Mapping[str, Mapping[str, str]]) -> str:
  """Returns the table as Markdown, a line per variant.

  Args:
    rows: Cells by variant and column.
  """
  columns = ['', *next(iter(rows.values()))]
  lines = [columns, ['---'] * len(columns)]
  lines += [[name, *cells.values()] for name, cells in rows.items()]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


@contextlib.contextmanager
def compiled_once() -> Iterator[None]:
  """Lets runs of this process share compiled programs, in a temporary folder.

  To be entered before anything is compiled.  A cache that the user has named is
  left as it is.
  """
  if jax.config.jax_compilation_cache_dir:
    yield
    return
  with tempfile.TemporaryDirectory() as folder:
    jax.config.update('jax_compilation_cache_dir', folder)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
    jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
    yield


def _check_shared(config: ConfigDict, schemes: set[str]) -> None:
  """Refuses what the variants would ignore or overwrite."""
  if config.optimizer.reduction != 'sum':
    raise Refused(
      "config.optimizer.reduction: expected 'sum', the variants change it, got "
      f'{config.optimizer.reduction!r}.'
    )
  for scheme, fields in default.get_config().sync.items():
    if scheme in ('name', *schemes):
      continue
    for field, value in fields.items():
      if config.sync[scheme][field] != value:
        raise Refused(
          f'config.sync.{scheme}.{field}: expected the default {value!r}, '
          f'because no run uses {scheme}, got {config.sync[scheme][field]!r}.'
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


def _check_folder(run: Planned) -> None:
  """Refuses a folder with a run of another config."""
  file = run.folder / 'manifest.json'
  if not file.exists():
    return
  held = _read(file, {'config': 'an object'})['config']
  wanted = json.loads(json.dumps(manifest(run.config.to_dict())['config']))
  differing = [key for key in wanted if held.get(key) != wanted[key]]
  if differing:
    raise Refused(
      f'out: expected no run or one of the same config in {run.folder}, got '
      f'one with another config.{differing[0]}.'
    )


def _read(file: pathlib.Path, fields: Mapping[str, str]) -> dict[str, Any]:
  try:
    return report.read_object(file, fields)
  except ValueError as error:
    raise Refused(str(error)) from error


def _draw(runs: Sequence[Planned], out: pathlib.Path) -> None:
  """Draws all runs, and timelines of the first seed."""
  groups: dict[str, list[report.RunRecord]] = {}
  for run in runs:
    groups.setdefault(run.variant, []).append(report.load(run.folder))
  report.draw(groups, out, timelines=1)


def _diverged(summary: Mapping[str, Any]) -> bool:
  return summary['ended'].startswith(_DIVERGED)


def _accuracy(whole: Sequence[Mapping[str, Any]], seeds: int) -> str:
  """Returns the cell of the final accuracy."""
  if not whole:
    return 'diverged'
  text = _cell(_percent(each['final_accuracy'] for each in whole), '.1f')
  lost = seeds - len(whole)
  return f'{text}; {lost} of {seeds} diverged' if lost else text


def _reached(times: Sequence[float | None]) -> str:
  """Returns the cell of times to an accuracy."""
  reached = sum(time is not None for time in times)
  text = _cell(times, '.1f')
  if reached == len(times):
    return text
  return f'{text}; {reached} of {len(times)}'


def _cell(values: Iterable[float | None], form: str) -> str:
  """Returns a median with its range, if the range shows."""
  values = list(values)
  if not values:
    return '-'
  median, low, high = spread(values)
  if not math.isfinite(median):
    return '-'
  texts = [format(value, form) for value in (median, low, high)]
  return texts[0] if len(set(texts)) == 1 else '{} ({}–{})'.format(*texts)


def _percent(shares: Iterable[float | None]) -> list[float | None]:
  return [None if share is None else 100 * share for share in shares]


def _caption(runs: Sequence[Planned]) -> str:
  seeds = sorted({run.config.seed for run in runs})
  config = runs[0].config
  return (
    f'{config.model.name} on {config.data.name}, {config.epochs:g} epochs, '
    f'{config.cluster.workers} workers: median and range over seeds '
    f'{", ".join(map(str, seeds))}; times are virtual.  "2 of 3": so many '
    'seeds got there; a dash: the median did not.'
  )


def _print(rows: Mapping[str, Mapping[str, str]], caption: str) -> None:
  """Prints the table on the terminal."""
  console = rich.console.Console()
  if not console.is_terminal:
    console.width = 160  # A log may be wide.
  table = rich.table.Table(caption=caption)
  table.add_column('')
  for column in next(iter(rows.values())):
    table.add_column(column, justify='right')
  for name, cells in rows.items():
    table.add_row(name, *cells.values())
  console.print(table)


def _parse(argv: list[str]) -> list[str]:
  try:
    _define_flags()  # The default of --config takes its changes here.
    return app.parse_flags_with_usage(argv)
  except AttributeError as error:
    given = [arg for arg in argv if arg.startswith('--config.')]
    sys.exit(f'Refused: unknown field in {given}: {error}')


def _define_flags() -> None:
  config_flags.DEFINE_config_file(
    'config',
    'configs/compare.py',
    'What the runs share; --config.SECTION.FIELD=VALUE changes a field.',
  )
  flags.DEFINE_string('out', None, 'Folder for all outputs.', required=True)
  flags.DEFINE_integer('seeds', 3, 'Runs of each variant.')
  flags.DEFINE_list('schemes', list(SCHEMES), 'Schemes to compare.')


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
