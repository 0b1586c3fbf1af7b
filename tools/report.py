"""Draws pictures of runs from their files, also of runs that go on or broke.

  python -m tools.report RUN_DIR [RUN_DIR ...] --out=DIR

Makes accuracy.png, staleness.png, waiting.png, a timeline-*.png per run, a
batches-*.png per run whose batches change and a links-*.png per run whose
workers sum, of which it prints the slowest links against plan.
What cannot be drawn is named in a log line.
"""

import collections
import itertools
import math
import operator
import pathlib
import re
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from absl import app, flags, logging
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tools.drawing import batches, timeline
from tools.drawing import traffic as links
from tools.reading import records, traffic
from tools.reading.records import RunRecord

_TOLD = 5  # Parts of a label, at most.
_SEEDS = 4  # Labels, at most, of which each seed has a line.
_LOOK = {
  'figure.dpi': 130,
  'figure.constrained_layout.use': True,
  'axes.spines.top': False,
  'axes.spines.right': False,
  'legend.frameon': False,
}
# Okabe and Ito's colors, which color-blind people can tell apart; yellow is
# left out because lines of it vanish on white.
_COLORS = (
  '#0072B2',
  '#D55E00',
  '#000000',
  '#009E73',
  '#CC79A7',
  '#56B4E9',
  '#E69F00',
)
# Each line has another style than its neighbors, so that one that lies exactly
# under another shows through.
_STYLES = ('-', (0, (4, 1.5)), (0, (1.2, 2.5)))


class Curve(NamedTuple):
  """Something measured against the time of a run.

  Attributes:
    times: Virtual seconds, [N], never falling.
    values: [N].
  """

  times: np.ndarray
  values: np.ndarray


Groups = Mapping[str, Sequence[RunRecord]]


def main(argv: list[str]) -> None:
  """Draws the runs that the command line names; nothing if one is refused."""
  if len(argv) < 2:
    raise app.UsageError('Expected at least one folder of a run, got none.')
  try:
    runs = [records.load(path) for path in argv[1:]]
    draw(labelled(runs), flags.FLAGS.out)
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')


def labelled(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
  """Returns the runs by label, in order; one label's are a config's seeds.

  A label is the scheme and the fields in which runs differ, apart from seed and
  checkpoints.  A value that more than half of the runs share goes without
  saying, as do fields of sub-sections that a run does not use.  What is long is
  cut, and numbered if that makes two labels the same.
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
    told = (run.config['sync']['name'], *differs)
    if told not in labels:
      labels[told] = _label(told, taken=labels.values())
    groups.setdefault(labels[told], []).append(run)
  return groups


def accuracy_curve(run: RunRecord) -> Curve | None:
  """Returns the accuracies, 0 to 1, that a run has measured, if it has any."""
  points = [(row['time'], row['accuracy']) for row in run.rows]
  points = [point for point in points if point[1] is not None]
  return Curve(*np.transpose(points)) if points else None


def median_curve(curves: Sequence[Curve]) -> Curve:
  """Returns the median of the straight lines between the curves' points.

  It stands where all curves do, at the times of any of their points.
  """
  start = max(curve.times[0] for curve in curves)
  end = min(curve.times[-1] for curve in curves)
  times = np.unique(np.concatenate([curve.times for curve in curves]))
  times = times[(times >= start) & (times <= end)]
  values = [np.interp(times, *curve) for curve in curves]
  return Curve(times, np.median(values, axis=0))


def shares(amounts: Iterable[Mapping[Any, float]]) -> dict[Any, float]:
  """Returns the share of each key, in order, in amounts that are not all 0."""
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
    out: Folder, made if it is missing.
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


def _label(told: Sequence[str], taken: Iterable[str]) -> str:
  """Returns a label that is not taken, of the first parts of what is told."""
  parts = [p if len(p) <= 28 else f'{p[:25]}...' for p in told[:_TOLD]]
  if len(told) > _TOLD:
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
  if curves := _found(groups, 'accuracy', accuracy_curve):
    yield 'accuracy', _draw_accuracy(curves)
  if counts := _found(groups, 'staleness', operator.attrgetter('staleness')):
    yield 'staleness', _draw_staleness(counts)
  if seconds := _found(groups, 'waiting', operator.attrgetter('seconds')):
    yield 'waiting', _draw_waiting(seconds)
  for name, label, run in _named(groups, timelines):
    if figure := batches.draw(label, run):
      yield f'batches-{name}', figure
    if figure := _links(label, run):
      yield f'links-{name}', figure
    if run.spans:
      yield f'timeline-{name}', timeline.draw(label, run)
    else:
      logging.warning('%s: has no timeline, nothing was done.', run.path)


def _links(label: str, run: RunRecord) -> Figure | None:
  """Draws and prints what links have carried; None if that is not known."""
  if run.config.get('route', {}).get('name', 'server') == 'server':
    return None
  try:
    generation = traffic.told(run.path)
  except ValueError as error:
    logging.warning('%s', error)
    return None
  print(f'{run.path}: {traffic.described(generation)}')
  return links.draw(label, run, generation)


def _found(
  groups: Groups, picture: str, find: Callable[[RunRecord], Any]
) -> dict[str, list[Any]]:
  """Returns by label what is found in runs; logs the runs without it."""
  found: dict[str, list[Any]] = {}
  for label, runs in groups.items():
    for run in runs:
      if values := find(run):
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


def _draw_accuracy(curves: Mapping[str, Sequence[Curve]]) -> Figure:
  """Draws the median of the seeds by label, and the seeds of a few labels."""
  figure = Figure((9.5, 5))
  axes = figure.subplots()
  medians = {label: median_curve(found) for label, found in curves.items()}
  for index, (label, (times, values)) in enumerate(medians.items()):
    color = _COLORS[index % len(_COLORS)]
    line = {'color': color, 'linestyle': _STYLES[index % len(_STYLES)]}
    axes.plot(times, 100 * values, label=_wrapped(label), linewidth=1.8, **line)
    for times, values in curves[label] if len(curves) <= _SEEDS else ():
      axes.plot(times, 100 * values, linewidth=0.6, alpha=0.4, color=color)
  axes.set(xlabel='time (s)', ylabel='test accuracy (%)')
  axes.set_xlim(left=0)
  axes.set_ylim(_floor(medians.values()), min(axes.get_ylim()[1], 100.5))
  axes.grid(alpha=0.3)
  several = any(len(found) > 1 for found in curves.values())
  title = 'median of the seeds' if several else None
  figure.legend(loc='outside right upper', title=title, alignment='left')
  return figure


def _floor(medians: Iterable[Curve]) -> float:
  """Returns a percentage that all exceed in the second halves of their times.

  Early accuracies, below it, would take the room of those to compare.
  """
  late = [v[2 * t >= t[-1]] for t, v in medians if len(t)]
  return 100 * max(np.concatenate([[1.0], *late]).min() - 0.02, 0)


def _draw_staleness(counts: Mapping[str, Sequence[Mapping]]) -> Figure:
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
  axes.bar(list(shares), percent, width=width, color=_COLORS[0])
  mean = statistics.fmean(shares, weights=shares.values())
  axes.set_title(f'{_wrapped(label)}\nmean {mean:.2f}', fontsize='small')
  axes.locator_params(axis='x', integer=True)
  axes.tick_params(labelbottom=True)  # Below it there may be no panel.


def _draw_waiting(seconds: Mapping[str, Sequence[Mapping]]) -> Figure:
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
  axes.set_yticks(rows, map(_wrapped, seconds))
  axes.invert_yaxis()
  figure.legend(loc='outside upper center', ncols=4)
  return figure


def _wrapped(label: str) -> str:
  return textwrap.fill(label, 30)


if __name__ == '__main__':
  flags.DEFINE_string('out', None, 'Folder for the pictures.', required=True)
  app.run(main)
