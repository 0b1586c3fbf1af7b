"""Draws pictures of runs from their files, also of running or failed ones.

  python -m tools.report RUN_DIR [RUN_DIR ...] --out=DIR
  python -m tools.report --html DIR [DIR ...] [--out=DIR]

Makes accuracy*.png against time, iterations and examples, staleness.png,
waiting.png, breakdown.png, gaps.png, bandwidth.png, and speed-up.png of runs
with several numbers of workers; timeline-*.png and traffic-*.png of each run,
batches-*.png of those whose batches change, and links-*.png of those whose
workers sum, of which it prints the slowest links against plan.
A log line names each picture that cannot be drawn.

With --html writes one page instead, report.html, that needs no network: of runs
that have ended, of sweeps (folders with results.csv) and of stored results
(RESULTS.md).
"""

import collections
import functools
import itertools
import math
import operator
import pathlib
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from absl import app, flags, logging
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tools.drawing import batches, curves, look, measures, timeline
from tools.drawing import traffic as links
from tools.pages import page, sources
from tools.reading import records, traffic
from tools.reading.records import RunRecord

_PARTS = 5  # Parts of a label, at most.
_LOOK: Any = {
  'figure.dpi': 130,
  'figure.constrained_layout.use': True,
  'axes.spines.top': False,
  'axes.spines.right': False,
  'legend.frameon': False,
}
Groups = Mapping[str, Sequence[RunRecord]]


def main(argv: list[str]) -> None:
  """Draws the runs that the command line names; nothing if one is refused."""
  if len(argv) < 2:
    raise app.UsageError('Expected at least one folder of a run, got none.')
  given = flags.FLAGS
  if not (given.html or given.out):
    raise app.UsageError('--out: expected a folder for the pictures, got none.')
  try:
    if given.html:
      print(f'Page: {page.write(sources.read(argv[1:]), given.out or ".")}')
      return
    runs = [records.load(path) for path in argv[1:]]
    draw(group_by_label(runs), given.out)
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')


def group_by_label(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
  """Groups runs that differ only in seed and checkpoints, by a short label.

  A label is the scheme and the fields in which runs differ.  A value that more
  than half of the runs share is left out, as are fields of sub-sections that a
  run does not use.  Long values, and more than five parts, are cut; a number is
  added if that makes two labels the same.

  Args:
    runs: Runs, also of several schemes.

  Returns:
    Runs by label, both in the order of `runs`.
  """
  used = [dict(_used(run.config)) for run in runs]
  differing = _differing(used)
  short = _short_names(differing)
  labels: dict[tuple[str, ...], str] = {}
  groups: dict[str, list[RunRecord]] = {}
  for run, fields in zip(runs, used, strict=True):
    differs = [
      f'{short[field]}={_text(fields[field])}'
      for field, usual in differing.items()
      if field in fields and _text(fields[field]) != usual
    ]
    parts = (run.config['sync']['name'], *differs)
    if parts not in labels:
      labels[parts] = _label(parts, taken=labels.values())
    groups.setdefault(labels[parts], []).append(run)
  return groups


def shares(amounts: Iterable[Mapping[Any, float]]) -> dict[Any, float]:
  """Returns each key's share of the sum of some amounts, sorted by key."""
  sums: collections.Counter[Any] = collections.Counter()
  for each in amounts:
    sums.update(each)
  return {key: sums[key] / sums.total() for key in sorted(sums)}


def file_name(label: str) -> str:
  """Returns a label as part of a file's name."""
  return re.sub(r'[^\w.=-]+', '-', label).strip('-')[:100]


def draw(
  groups: Groups, out: str | pathlib.Path, *, timelines: int | None = None
) -> list[pathlib.Path]:
  """Draws every picture for which there is something.

  Args:
    groups: Runs by label.
    out: Folder, created if it is missing.
    timelines: Runs of a label whose timelines are drawn; None means all.

  Returns:
    The pictures.

  Raises:
    OSError: If they cannot be written.
  """
  out = pathlib.Path(out)
  out.mkdir(parents=True, exist_ok=True)
  _log_unfinished(groups)
  drawn = []
  with matplotlib.rc_context(_LOOK):
    for name, figure in _figures(groups, timelines):
      drawn.append(out / f'{name}.png')
      figure.savefig(drawn[-1])
  logging.info('Pictures are in %s', out)
  return drawn


def _used(
  section: Mapping[str, Any], path: str = ''
) -> Iterator[tuple[str, Any]]:
  """Yields the fields that count, by dotted name."""
  for field, value in section.items():
    name = path + field
    if isinstance(value, Mapping):
      if section.get('name', field) == field and name != 'checkpoint':
        yield from _used(value, f'{name}.')
    elif name not in ('seed', 'sync.name'):
      yield name, value


def _differing(runs: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
  """Returns the fields in which runs differ, and what most of them have."""
  differing: dict[str, str | None] = {}
  for field in dict.fromkeys(field for run in runs for field in run):
    counts = collections.Counter(
      _text(run[field]) for run in runs if field in run
    )
    if len(counts) > 1:
      value, count = counts.most_common(1)[0]
      differing[field] = value if 2 * count > counts.total() else None
  return differing


def _short_names(fields: Iterable[str]) -> dict[str, str]:
  """Returns the last parts of dotted names; all of those they would share."""
  short = {f: f.removesuffix('.name').rpartition('.')[-1] for f in fields}
  counts = collections.Counter(short.values())
  return {f: s if counts[s] == 1 else f for f, s in short.items()}


def _text(value: Any) -> str:
  if isinstance(value, list):
    return '(' + ','.join(map(_text, value)) + ')'
  return str(value).removesuffix('.0')


def _label(differs: Sequence[str], taken: Iterable[str]) -> str:
  """Returns an unused label of the first parts that differ."""
  parts = [p if len(p) <= 28 else f'{p[:25]}...' for p in differs[:_PARTS]]
  if len(differs) > _PARTS:
    parts.append('...')
  label, number = ', '.join(parts), 1
  while label in taken:
    number += 1
    label = f'{", ".join(parts)} ({number})'
  return label


def _log_unfinished(groups: Groups) -> None:
  for run in itertools.chain(*groups.values()):
    if run.ended != 'finished':
      ended = run.ended or 'it has no summary.json yet'
      logging.warning('%s: drawn as far as it goes: %s.', run.path, ended)


def _figures(
  groups: Groups, timelines: int | None
) -> Iterator[tuple[str, Figure]]:
  """Yields the pictures with their names."""
  if found := _found(groups, 'accuracy', curves.accuracy):
    yield 'accuracy', curves.draw(found, 'time')
    for against in ('iterations', 'examples'):
      find = functools.partial(curves.accuracy, against=against)
      drawn = {
        label: [*filter(None, map(find, groups[label]))] for label in found
      }
      yield f'accuracy-{against}', curves.draw(drawn, against)
  if counts := _found(groups, 'staleness', operator.attrgetter('staleness')):
    yield 'staleness', _draw_staleness(counts)
  if seconds := _found(groups, 'waiting', operator.attrgetter('seconds')):
    yield 'waiting', _draw_waiting(seconds)
  if phases := _found(groups, 'breakdown', measures.breakdown):
    yield 'breakdown', measures.draw_breakdown(phases)
  if gaps := _found(groups, 'gaps', measures.gaps):
    yield 'gaps', measures.draw_gaps(gaps)
  if rates := _found(groups, 'bandwidth', measures.bandwidth):
    yield 'bandwidth', measures.draw_bandwidth(rates)
  if ratios := measures.speed_ups(_over_workers(groups)):
    yield 'speed-up', measures.draw_speed_ups(ratios)
  for name, label, run in _named(groups, timelines):
    if figure := measures.draw_traffic(label, run):
      yield f'traffic-{name}', figure
    if figure := batches.draw(label, run):
      yield f'batches-{name}', figure
    if figure := _links(label, run):
      yield f'links-{name}', figure
    if run.spans:
      yield f'timeline-{name}', timeline.draw(label, run)
    else:
      logging.warning('%s: has no timeline, nothing was done.', run.path)


def _over_workers(groups: Groups) -> dict[str, list[RunRecord]]:
  """Returns the runs by what tells those of as many workers apart."""
  by_count: dict[int, list[RunRecord]] = {}
  for run in itertools.chain(*groups.values()):
    by_count.setdefault(run.config['cluster']['workers'], []).append(run)
  found: dict[str, list[RunRecord]] = {}
  for runs in by_count.values():
    for label, each in group_by_label(runs).items():
      found.setdefault(label, []).extend(each)
  return found


def _links(label: str, run: RunRecord) -> Figure | None:
  """Draws and prints what links have carried; None if that is not known."""
  if run.config.get('route', {}).get('name', 'server') == 'server':
    return None
  try:
    epoch = traffic.longest_epoch(run.path)
  except ValueError as error:
    logging.warning('%s', error)
    return None
  print(f'{run.path}: {traffic.describe(epoch)}')
  return links.draw(label, run, epoch)


def _found(
  groups: Groups, picture: str, find: Callable[[RunRecord], Any]
) -> dict[str, list[Any]]:
  """Returns by label what is found in runs; logs the runs without it."""
  found: dict[str, list[Any]] = {}
  for label, runs in groups.items():
    for run in runs:
      values = find(run)
      if values is not None and len(values):
        found.setdefault(label, []).append(values)
      else:
        logging.warning('%s: left out of %s.png.', run.path, picture)
  return found


def _named(
  groups: Groups, most: int | None
) -> Iterator[tuple[str, str, RunRecord]]:
  """Yields the first runs of each label after names of their own and labels."""
  taken: set[str] = set()
  for label, runs in groups.items():
    for run in runs[:most]:
      seed = f', seed {run.config["seed"]}' if len(runs) > 1 else ''
      name = file_name(label + seed)
      name = f'{name}-{len(taken)}' if name in taken else name
      taken.add(name)
      yield name, label + seed, run


def _draw_staleness(
  counts: Mapping[str, Sequence[Mapping[Any, Any]]],
) -> Figure:
  """Draws a histogram of the staleness of applied pushes per label."""
  columns = min(len(counts), 3)
  rows = math.ceil(len(counts) / columns)
  figure = Figure((3.2 * columns + 0.6, 2.1 * rows + 0.6))
  grid = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
  for axes, (label, found) in zip(grid, counts.items(), strict=False):
    _histogram(axes, label, shares(found))
  for axes in grid[len(counts) :]:
    axes.set_axis_off()
  figure.supxlabel('staleness (versions)', fontsize='medium')
  figure.supylabel('share of applied pushes (%)', fontsize='medium')
  return figure


def _histogram(axes: Axes, label: str, shares: Mapping[int, float]) -> None:
  percent = [100 * share for share in shares.values()]
  width = 0.9 if len(shares) < 40 else 1.0  # Gaps between many would flicker.
  axes.bar(list(shares), percent, width=width, color=look.COLORS[0])
  mean = statistics.fmean(shares, weights=shares.values())
  axes.set_title(f'{look.wrapped(label)}\nmean {mean:.2f}', fontsize='small')
  axes.locator_params(axis='x', integer=True)
  axes.tick_params(labelbottom=True)  # Below it there may be no panel.


def _draw_waiting(seconds: Mapping[str, Sequence[Mapping[Any, Any]]]) -> Figure:
  """Draws in which phases the workers spent their time, a bar per label."""
  figure = Figure((8, 1.4 + 0.36 * len(seconds)))
  axes = figure.subplots()
  spent = [shares(found) for found in seconds.values()]
  rows, left = range(len(spent)), np.zeros(len(spent))
  for phase, color in timeline.COLORS.items():
    widths = [100 * each.get(phase, 0.0) for each in spent]
    if not any(widths):
      continue
    axes.barh(rows, widths, left=left, color=color, label=phase)
    left += widths
  for row, each in enumerate(spent):
    axes.text(101, row, f'{each.get("wait", 0):.1%} waiting', va='center')
  axes.set(xlim=(0, 100), xlabel="share of the workers' time (%)")
  axes.set_yticks(rows, map(look.wrapped, seconds))
  axes.invert_yaxis()
  figure.legend(loc='outside upper center', ncols=4)
  return figure


if __name__ == '__main__':
  flags.DEFINE_string('out', None, 'Folder for the pictures or the page.')
  flags.DEFINE_bool('html', False, 'Write one page instead of pictures.')
  app.run(main)
