"""Draws pictures of runs from their files, including running and failed runs.

  python -m tools.report RUN_DIR [RUN_DIR ...] --out=DIR
  python -m tools.report --html DIR [DIR ...] [--out=DIR]

Draws accuracy*.png against time, iterations and examples, and the same of each
other measure of the task, such as perplexity*.png; staleness.png, waiting.png,
breakdown.png, gaps.png, bandwidth.png, and speed-up.png of runs with several
numbers of workers; timeline-*.png and traffic-*.png of each run,
batches-*.png of runs whose batches change; and links-*.png and forest-*.png of
allreduce runs, of which it prints the slowest links against plan.
A log line names each picture that cannot be drawn.

With --html writes one page instead, report.html: tables of ended runs and of
sweeps (folders with results.csv), the diagnosis of each run and the figures, as
SVG.  It needs no network and has no script.
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

import analysis
from analysis import diagnosing, records, tables, traffic
from analysis.drawing import (
  batches,
  curves,
  forests,
  look,
  measures,
  page,
  timeline,
)
from analysis.drawing import traffic as links
from analysis.records import RunRecord
from configs import paths
from outputs import atomic, figures

_PARTS = 5  # Parts of a label, at most.
_LOOK: Any = {
  'figure.dpi': 130,
  'figure.constrained_layout.use': True,
  'axes.spines.top': False,
  'axes.spines.right': False,
  'legend.frameon': False,
}
PAGE = 'report.html'
# Sentences below headings of figures, by the beginning of a figure's name.
_SENTENCES = {
  'staleness': 'Versions that were applied between the pull of a push and the '
  'update that it went into.',
  'waiting': "Shares of all workers' time by phase.",
  'breakdown': 'Seconds of an iteration by phase, medians of workers.',
  'gaps': 'Seconds between updates and between pushes.',
  'bandwidth': 'Bytes per second of all pushes and pulls.',
  'speed-up': 'Examples per second over those of a single worker.',
  'traffic': 'Bytes per second by worker.',
  'batches': 'Examples of an iteration by worker.',
  'links': 'Measured rates of links over those that were planned.',
  'forest': 'Bytes between workers, and the trees with the largest weights; '
  'colors are measured over planned rates.',
  'timeline': 'Phases of workers, in the middle of the run.',
}
_TIMELINES = 1  # Runs of a label with figures of their own on a page.
Groups = Mapping[str, Sequence[RunRecord]]


def main(argv: list[str]) -> None:
  """Draws the runs of the command line; draws none if one is rejected."""
  if len(argv) < 2:
    raise app.UsageError('Expected at least one folder of a run, got none.')
  values = flags.FLAGS
  if not (values.html or values.out):
    raise app.UsageError('--out: expected a folder for the pictures, got none.')
  try:
    if values.html:
      print(f'Page: {write_page(argv[1:], values.out or ".")}')
      return
    runs = [records.load(path) for path in argv[1:]]
    draw(label_runs(runs), values.out)
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')


def label_runs(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
  """Returns the runs by label, in order; runs of a label differ in their seed.

  A label has the scheme and the fields in which runs differ, apart from seed
  and checkpoints.  It omits values that more than half of the runs share, and
  fields of sub-sections that a run does not use.  Long labels are cut, and
  numbered if two would be equal.
  """
  used_fields = [dict(_used_fields(run.config)) for run in runs]
  differing = _differing_fields(used_fields)
  short = _short_names(differing)
  labels: dict[tuple[str, ...], str] = {}
  groups: dict[str, list[RunRecord]] = {}
  for run, fields in zip(runs, used_fields, strict=True):
    differs = [
      f'{short[field]}={_text(fields[field])}'
      for field, usual in differing.items()
      if field in fields and _text(fields[field]) != usual
    ]
    parts = (run.config['sync']['name'], *differs)
    if parts not in labels:
      labels[parts] = _label(parts, used=labels.values())
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
  """Draws every picture for which the runs have data.

  Args:
    groups: Runs by label.
    out: Folder, created if it is missing.
    timelines: Number of runs of a label with a timeline; None for all.

  Returns:
    The files of the pictures.

  Raises:
    OSError: If a picture cannot be written.
  """
  out = pathlib.Path(out)
  out.mkdir(parents=True, exist_ok=True)
  _log_unfinished(groups)
  pictures = []
  with matplotlib.rc_context(_LOOK):
    for name, figure in _figures(groups, timelines):
      pictures.append(out / f'{name}.png')
      figure.savefig(pictures[-1])
  logging.info('Pictures are in %s', out)
  return pictures


def write_page(
  folders: Sequence[str | pathlib.Path], out: str | pathlib.Path
) -> pathlib.Path:
  """Writes a page of runs and sweeps, and returns its path.

  Args:
    folders: Folders of runs that have ended, and of sweeps.
    out: Folder, created if it is missing.

  Raises:
    ValueError: If a folder is neither, or a file of a run is broken.
    OSError: If a file cannot be read or written.
  """
  content = tables.read(folders)
  groups = label_runs([run for _, run in content.runs])
  sections = [
    page.Section(f'Diagnosis of {name}', _diagnosis(run), ())
    for name, run in content.runs
  ]
  with matplotlib.rc_context(_LOOK):
    directions = _directions(groups)
    for name, figure in _figures(groups, _TIMELINES) if groups else ():
      title = name[:1].upper() + name[1:].replace('_', ' ')
      sentence = _sentence(name, directions)
      sections.append(page.Section(title, (sentence,), (figure,)))
    text = page.render('Runs', content.tables, sections)
  path = pathlib.Path(out) / PAGE
  path.parent.mkdir(parents=True, exist_ok=True)
  atomic.write(path, text)
  return path


def _sentence(name: str, directions: Mapping[str, str]) -> str:
  """Returns the sentence below the heading of a picture."""
  measure = name.partition('-')[0]
  if measure not in directions:
    return next(
      _SENTENCES[kind] for kind in _SENTENCES if name.startswith(kind)
    )
  words = figures.label(measure)
  better = 'lower' if directions[measure] == 'falls' else 'higher'
  return (
    f'{words[:1].upper()}{words[1:]} on the test split; {better} is better.'
  )


def _diagnosis(run: RunRecord) -> list[str]:
  """Returns the verdicts on a run, or why there are none, as sentences."""
  try:
    found = diagnosing.diagnose_run(analysis.read(run.path))
    return [each.sentence for each in found]
  except ValueError as error:
    return [f'No diagnosis: {error}']


def _used_fields(
  section: Mapping[str, Any], path: str = ''
) -> Iterator[tuple[str, Any]]:
  """Yields the fields that a run uses, by dotted name."""
  for field, value in section.items():
    name = path + field
    if isinstance(value, Mapping):
      if section.get('name', field) == field and name != 'checkpoint':
        yield from _used_fields(value, f'{name}.')
    elif name not in ('seed', 'sync.name'):
      yield name, value


def _differing_fields(
  runs: Sequence[Mapping[str, Any]],
) -> dict[str, str | None]:
  """Returns the fields in which runs differ, with the most common value."""
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
  """Returns the last parts of dotted names; full names where these collide."""
  short = {f: f.removesuffix('.name').rpartition('.')[-1] for f in fields}
  counts = collections.Counter(short.values())
  return {f: s if counts[s] == 1 else f for f, s in short.items()}


def _text(value: Any) -> str:
  if isinstance(value, list):
    return '(' + ','.join(map(_text, value)) + ')'
  return str(value).removesuffix('.0')


def _label(differs: Sequence[str], used: Iterable[str]) -> str:
  """Returns an unused label of the first parts that differ."""
  parts = [p if len(p) <= 28 else f'{p[:25]}...' for p in differs[:_PARTS]]
  if len(differs) > _PARTS:
    parts.append('...')
  label, number = ', '.join(parts), 1
  while label in used:
    number += 1
    label = f'{", ".join(parts)} ({number})'
  return label


def _log_unfinished(groups: Groups) -> None:
  for run in itertools.chain(*groups.values()):
    if run.ended != 'finished':
      ended = run.ended or 'it has no summary.json yet'
      logging.warning('%s: drawn up to its last row: %s.', run.path, ended)


def _figures(
  groups: Groups, timelines: int | None
) -> Iterator[tuple[str, Figure]]:
  """Yields the pictures with their names."""
  time_label = records.time_label(itertools.chain(*groups.values()))
  for name, direction in _directions(groups).items():
    found = _values(
      groups, name, functools.partial(curves.measured, figure=name)
    )
    for against in curves.AGAINST if found else ():
      find = functools.partial(curves.measured, figure=name, against=against)
      lines = {
        label: [*filter(None, map(find, groups[label]))] for label in found
      }
      picture = name if against == 'time' else f'{name}-{against}'
      yield (
        picture,
        curves.draw(
          lines,
          against,
          figure_name=name,
          falls=direction == 'falls',
          time_label=time_label,
        ),
      )
  if counts := _values(groups, 'staleness', operator.attrgetter('staleness')):
    yield 'staleness', _draw_staleness(counts)
  if seconds := _values(groups, 'waiting', operator.attrgetter('seconds')):
    yield 'waiting', _draw_waiting(seconds)
  if phases := _values(groups, 'breakdown', measures.breakdown):
    yield 'breakdown', measures.draw_breakdown(phases)
  if gaps := _values(groups, 'gaps', measures.gaps):
    yield 'gaps', measures.draw_gaps(gaps)
  if rates := _values(groups, 'bandwidth', measures.bandwidth):
    yield 'bandwidth', measures.draw_bandwidth(rates, time_label)
  if ratios := measures.speed_ups(_over_workers(groups)):
    yield 'speed-up', measures.draw_speed_ups(ratios)
  for name, label, run in _named_runs(groups, timelines):
    if figure := measures.draw_traffic(label, run):
      yield f'traffic-{name}', figure
    if figure := batches.draw(label, run):
      yield f'batches-{name}', figure
    if epoch := _read_traffic(run):
      yield f'links-{name}', links.draw(label, run, epoch)
      if epoch.plan is not None:
        yield f'forest-{name}', forests.draw_run(epoch)
    if run.spans:
      yield f'timeline-{name}', timeline.draw(label, run)
    else:
      logging.warning(
        '%s: has no timeline, because no worker did anything.', run.path
      )


def _directions(groups: Groups) -> dict[str, str]:
  """Returns the directions of the measures that any run has, by name."""
  runs = [*itertools.chain(*groups.values())]
  found = {
    name: direction
    for run in runs
    for name, direction in run.measures.items()
    if any(curves.measured(each, name) for each in runs)
  }
  return found or {'accuracy': 'rises'}


def _over_workers(groups: Groups) -> dict[str, list[RunRecord]]:
  """Returns the runs by their label among runs with as many workers."""
  by_count: dict[int, list[RunRecord]] = {}
  for run in itertools.chain(*groups.values()):
    by_count.setdefault(run.config['cluster']['workers'], []).append(run)
  by_label: dict[str, list[RunRecord]] = {}
  for runs in by_count.values():
    for label, each in label_runs(runs).items():
      by_label.setdefault(label, []).extend(each)
  return by_label


def _read_traffic(run: RunRecord) -> traffic.MembershipEpoch | None:
  """Returns and prints the traffic of links; None if it is not known."""
  if run.config.get('route', {}).get('name', 'server') == 'server':
    return None
  try:
    epoch = traffic.longest_epoch(analysis.read(run.path))
  except ValueError as error:
    logging.warning('%s', error)
    return None
  print(f'{run.path}: {traffic.describe(epoch)}')
  return epoch


def _values(
  groups: Groups, picture: str, find: Callable[[RunRecord], Any]
) -> dict[str, list[Any]]:
  """Returns the data of a picture by label; logs runs without data."""
  by_label: dict[str, list[Any]] = {}
  for label, runs in groups.items():
    for run in runs:
      values = find(run)
      if values is not None and len(values):
        by_label.setdefault(label, []).append(values)
      else:
        logging.warning('%s: omitted from %s.png.', run.path, picture)
  return by_label


def _named_runs(
  groups: Groups, most: int | None
) -> Iterator[tuple[str, str, RunRecord]]:
  """Yields file name, label and run for the first runs of each label."""
  names: set[str] = set()
  for label, runs in groups.items():
    for run in runs[:most]:
      seed = f', seed {run.config["seed"]}' if len(runs) > 1 else ''
      name = file_name(label + seed)
      name = f'{name}-{len(names)}' if name in names else name
      names.add(name)
      yield name, label + seed, run


def _draw_staleness(
  counts: Mapping[str, Sequence[Mapping[Any, Any]]],
) -> Figure:
  """Draws a histogram of the staleness of applied pushes per label."""
  columns = min(len(counts), 3)
  rows = math.ceil(len(counts) / columns)
  figure = Figure((3.2 * columns + 0.6, 2.1 * rows + 0.6))
  grid = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
  for axes, (label, each) in zip(grid, counts.items(), strict=False):
    _histogram(axes, label, shares(each))
  for axes in grid[len(counts) :]:
    axes.set_axis_off()
  figure.supxlabel('staleness (versions)', fontsize='medium')
  figure.supylabel('share of applied pushes (%)', fontsize='medium')
  return figure


def _histogram(axes: Axes, label: str, shares: Mapping[int, float]) -> None:
  percent = [100 * share for share in shares.values()]
  width = 0.9 if len(shares) < 40 else 1.0  # Many gaps would flicker.
  axes.bar(list(shares), percent, width=width, color=look.COLORS[0])
  mean = statistics.fmean(shares, weights=shares.values())
  axes.set_title(f'{look.wrap(label)}\nmean {mean:.2f}', fontsize='small')
  axes.locator_params(axis='x', integer=True)
  axes.tick_params(labelbottom=True)  # The panel below may be empty.


def _draw_waiting(seconds: Mapping[str, Sequence[Mapping[Any, Any]]]) -> Figure:
  """Draws the shares of the workers' time by phase, with a bar per label."""
  figure = Figure((8, 1.4 + 0.36 * len(seconds)))
  axes = figure.subplots()
  phases = [shares(each) for each in seconds.values()]
  rows, left = range(len(phases)), np.zeros(len(phases))
  for phase, color in timeline.COLORS.items():
    widths = [100 * each.get(phase, 0.0) for each in phases]
    if not any(widths):
      continue
    axes.barh(rows, widths, left=left, color=color, label=phase)
    left += widths
  for row, each in enumerate(phases):
    axes.text(101, row, f'{each.get("wait", 0):.1%} waiting', va='center')
  axes.set(xlim=(0, 100), xlabel="share of the workers' time (%)")
  axes.set_yticks(rows, map(look.wrap, seconds))
  axes.invert_yaxis()
  figure.legend(loc='outside upper center', ncols=4)
  return figure


if __name__ == '__main__':
  paths.define_path('out', 'Folder for the pictures or the page.')
  flags.DEFINE_bool('html', False, 'Write one page instead of pictures.')
  app.run(main)
