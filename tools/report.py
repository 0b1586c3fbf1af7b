"""Draws pictures of runs from their files, also of runs that go on or broke.

  python -m tools.report RUN_DIR [RUN_DIR ...] --out=DIR

Makes accuracy.png, staleness.png, waiting.png and a timeline-*.png per run;
runs that never measured an accuracy get examples.png in place of accuracy.png.
What cannot be drawn is named in a log line.
"""

import collections
import json
import math
import pathlib
import re
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags, logging
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cluster.ledger import PHASES

_SHOWN = 64  # Rows of a timeline, at most.
_WINDOW = 16  # Iterations of a mean worker that a timeline shows.
_TOLD = 5  # Parts of a label, at most.
_DPI = 130
# Okabe and Ito's colours, which colour-blind people can tell apart; yellow is
# left out because lines of it vanish on white.
_COLORS = (
  '#0072B2',
  '#D55E00',
  '#009E73',
  '#CC79A7',
  '#56B4E9',
  '#E69F00',
  '#000000',
)
# Each line has another style than its neighbors, so that one that lies exactly
# under another shows through.
_STYLES = ('-', (0, (4, 1.5)), (0, (1, 1.6)))
_PHASE_COLORS = {
  'pull': '#56B4E9',
  'compute': '#0072B2',
  'push': '#009E73',
  'wait': '#E69F00',
}
_OTHER_COLORS = ('#CC79A7', '#D55E00', '#F0E442', '#999999')


class Span(NamedTuple):
  """A worker's phase.

  Attributes:
    worker: Which worker.
    phase: Such as 'compute'.
    start: Virtual seconds.
    end: Virtual seconds.
  """

  worker: int
  phase: str
  start: float
  end: float


class Curve(NamedTuple):
  """Something measured against virtual time.

  Attributes:
    times: Virtual seconds, [N], never falling.
    values: [N].
  """

  times: np.ndarray
  values: np.ndarray


class RunRecord(NamedTuple):
  """What the pictures need of one run.

  Attributes:
    path: Its folder.
    config: As manifest.json has it.
    rows: Of metrics.jsonl.
    ended: 'finished', what else summary.json says, or None without one.
    staleness: Applied pushes by staleness, versions.
    seconds: Worker seconds by phase.
    window: Virtual seconds from and to which `spans` show.
    workers: Whose spans they are.
    spans: All of these workers that overlap the window.
  """

  path: pathlib.Path
  config: Mapping[str, Any]
  rows: Sequence[Mapping[str, Any]]
  ended: str | None
  staleness: Mapping[int, int]
  seconds: Mapping[str, float]
  window: tuple[float, float]
  workers: Sequence[int]
  spans: Sequence[Span]


Groups = Mapping[str, Sequence[RunRecord]]


def main(argv: list[str]) -> None:
  """Draws the runs that the command line names; nothing if one is refused."""
  if len(argv) < 2:
    raise app.UsageError('Expected at least one folder of a run, got none.')
  try:
    draw(labelled([load(path) for path in argv[1:]]), flags.FLAGS.out)
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')


def load(path: str | pathlib.Path) -> RunRecord:
  """Returns a run as its files have it.

  Without summary.json, which every end but a kill leaves, staleness is counted
  from events.jsonl and time from trace.json, and the last line of a file may be
  cut off.

  Args:
    path: Folder of a run.

  Raises:
    ValueError: If there is no run, or if a file is broken; names the file, what
      was expected and what came.
    OSError: If a file cannot be read.
  """
  path = pathlib.Path(path)
  config = _config(path)
  rows = _rows(path / 'metrics.jsonl', _METRIC, whole=_is_closed(path))
  accounts = _summary(path) if _is_closed(path) else _recount(path)
  workers = _evenly(config['cluster']['workers'], _SHOWN)
  shown = window(
    accounts.end_s, accounts.iterations, config['cluster']['workers']
  )
  return RunRecord(
    path=path,
    config=config,
    rows=tuple(rows),
    ended=accounts.ended,
    staleness=accounts.staleness,
    seconds=accounts.seconds,
    window=shown,
    workers=workers,
    spans=tuple(_overlapping(path, shown, workers)),
  )


def labelled(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
  """Returns the runs by label, in order; one label's differ by seed at most.

  A label is the scheme and the fields in which runs differ.  A value that more
  than half of the runs share goes without saying, as do fields of sub-sections
  that a run does not use.  What is long is cut, and numbered if that makes two
  labels the same.
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


def window(end_s: float, iterations: int, workers: int) -> tuple[float, float]:
  """Returns from and to when a timeline shows a run, virtual seconds.

  Its middle: `_WINDOW` iterations of a mean worker, or all if there are fewer.

  Args:
    end_s: When the run ended.
    iterations: Of all workers.
    workers: Their number.
  """
  if not iterations:
    return 0.0, end_s
  length = min(_WINDOW * workers * end_s / iterations, end_s)
  return (end_s - length) / 2, (end_s + length) / 2


def accuracy_curve(run: RunRecord) -> Curve:
  """Returns the accuracies, 0 to 1, that a run has measured."""
  rows = [row for row in run.rows if row['accuracy'] is not None]
  return _curve(rows, 'accuracy')


def examples_curve(run: RunRecord) -> Curve:
  """Returns the examples that a run has processed."""
  return _curve(run.rows, 'examples')


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


def staleness_shares(runs: Iterable[RunRecord]) -> dict[int, float]:
  """Returns the share of the applied pushes of all runs, by staleness."""
  counts: collections.Counter[int] = collections.Counter()
  for run in runs:
    counts.update(run.staleness)
  return _shares(dict(sorted(counts.items())))


def phase_shares(runs: Iterable[RunRecord]) -> dict[str, float]:
  """Returns the share of the workers' time in all runs, by phase."""
  seconds = dict.fromkeys(PHASES, 0.0)
  for run in runs:
    for phase, spent in run.seconds.items():
      seconds[phase] = seconds.get(phase, 0.0) + spent
  return _shares(seconds)


def read_object(
  file: pathlib.Path, fields: Mapping[str, str]
) -> dict[str, Any]:
  """Returns the JSON object of a file.

  Args:
    file: Such as summary.json.
    fields: What it must have, to what kind of value: 'text', 'an object',
      'a count', 'a number' or 'a number or null'.

  Raises:
    ValueError: If it has not; names the file, what was expected and what came.
    OSError: If it cannot be read.
  """
  text = file.read_text(encoding='utf-8', errors='replace')
  content = _object(text, str(file))
  _check(content, fields, str(file))
  return content


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
  measured, timed = _by_accuracy(groups)
  drawn = [
    *_drawn(draw_accuracy, measured, out / 'accuracy.png'),
    *_drawn(draw_examples, timed, out / 'examples.png'),
    *_drawn(draw_staleness, groups, out / 'staleness.png'),
    *_drawn(draw_waiting, groups, out / 'waiting.png'),
  ]
  for name, label, run in _named(groups, timelines):
    path = out / f'timeline-{name}.png'
    drawn += _drawn(draw_timeline, {label: [run]}, path)
  logging.info('Pictures are in %s', out)
  return drawn


def draw_accuracy(groups: Groups, path: pathlib.Path) -> bool:
  """Draws accuracy against virtual time, every run and each label's median.

  Args:
    groups: Runs by label.
    path: The picture.

  Returns:
    Whether there was anything to draw; runs without accuracy are left out.
  """
  return _draw_curves(groups, path, accuracy_curve, 'test accuracy (%)', 100)


def draw_examples(groups: Groups, path: pathlib.Path) -> bool:
  """Draws processed examples against virtual time, as `draw_accuracy` does."""
  return _draw_curves(
    groups, path, examples_curve, 'examples (thousands)', 1e-3
  )


def draw_staleness(groups: Groups, path: pathlib.Path) -> bool:
  """Draws a histogram of staleness per label.

  Args:
    groups: Runs by label.
    path: The picture.

  Returns:
    Whether there was anything to draw; labels without pushes are left out.
  """
  shares = _present(groups, staleness_shares, 'no push was applied')
  if not shares:
    return False
  columns = min(len(shares), 3)
  rows = math.ceil(len(shares) / columns)
  figure = _figure(3.2 * columns + 0.6, 2.1 * rows + 0.6)
  grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
  grid = grid.ravel()
  for axes, (label, by_staleness) in zip(grid, shares.items(), strict=False):
    _histogram(axes, label, by_staleness)
  for axes in grid[len(shares) :]:
    axes.set_axis_off()
  figure.supxlabel('staleness (versions)', fontsize='medium')
  figure.supylabel('share of applied pushes (%)', fontsize='medium')
  figure.savefig(path)
  return True


def draw_waiting(groups: Groups, path: pathlib.Path) -> bool:
  """Draws in which phases the workers spent their time, a bar per label.

  Args:
    groups: Runs by label.
    path: The picture.

  Returns:
    Whether there was anything to draw; labels without times are left out.
  """
  shares = _present(groups, phase_shares, 'no time was spent')
  if not shares:
    return False
  figure = _figure(8, 1.4 + 0.36 * len(shares))
  axes = figure.subplots()
  rows, left = np.arange(len(shares)), np.zeros(len(shares))
  phases = _phases(phase for each in shares.values() for phase in each)
  for phase, color in phases.items():
    widths = [100 * each.get(phase, 0.0) for each in shares.values()]
    axes.barh(rows, widths, left=left, color=color, label=phase)
    left += widths
  for row, each in enumerate(shares.values()):
    axes.text(101, row, f'{each["wait"]:.1%} waiting', va='center')
  axes.set(xlim=(0, 100), xlabel="share of the workers' time (%)")
  axes.set_yticks(rows, map(_wrapped, shares))
  axes.invert_yaxis()
  _frame(axes)
  figure.legend(loc='outside upper center', ncols=len(phases), frameon=False)
  figure.savefig(path)
  return True


def draw_timeline(groups: Groups, path: pathlib.Path) -> bool:
  """Draws what every worker did when, in the middle of one run.

  Args:
    groups: One label with one run.
    path: The picture.

  Returns:
    Whether there was anything to draw.
  """
  ((label, (run,)),) = groups.items()
  if not run.spans:
    logging.warning('%s: no timeline, trace.json has no phases.', run.path)
    return False
  figure = _figure(10, min(max(1.5 + 0.36 * len(run.workers), 2.6), 10))
  axes = figure.subplots()
  _draw_spans(axes, run)
  _draw_barriers(axes, run)
  axes.set(xlim=run.window, xlabel='virtual time (s)')
  axes.set_title(_timeline_title(label, run), loc='left', fontsize='medium')
  _frame(axes)
  figure.legend(loc='outside upper right', ncols=6, frameon=False)
  figure.savefig(path)
  return True


class _Accounts(NamedTuple):
  """The sums of a run, from summary.json or counted again."""

  ended: str | None
  end_s: float
  iterations: int
  staleness: dict[int, int]
  seconds: dict[str, float]


_Fields = Mapping[str, str]  # To a key of _KINDS.
_METRIC = {
  'kind': 'text',
  'time': 'a number',
  'examples': 'a number',
  'accuracy': 'a number or null',
}
_EVENT = {'told': 'text', 'said': 'an object'}
_SPAN = {'name': 'text', 'ts': 'a number', 'dur': 'a number', 'tid': 'a count'}
_SUMMARY = {
  'ended': 'text',
  'virtual_s': 'a number',
  'iterations': 'a count',
  'staleness': 'an object',
  'worker_seconds': 'an object',
}
_CONFIG = {'seed': 'a count', 'cluster': 'an object', 'sync': 'an object'}


def _is_number(value: Any) -> bool:
  return type(value) in (int, float) and math.isfinite(value)


_KINDS: Mapping[str, Callable[[Any], bool]] = {
  'text': lambda value: isinstance(value, str),
  'an object': lambda value: isinstance(value, dict),
  'a count': lambda value: type(value) is int and value >= 0,
  'a number': _is_number,
  'a number or null': lambda value: value is None or _is_number(value),
}


def _is_closed(path: pathlib.Path) -> bool:
  """Whether a run has closed its files: summary.json is written then."""
  return (path / 'summary.json').exists()


def _config(path: pathlib.Path) -> dict[str, Any]:
  file = path / 'manifest.json'
  if not file.is_file():
    got = 'a folder without one' if path.is_dir() else 'no folder'
    raise ValueError(f'{path}: expected a run with manifest.json, got {got}.')
  config = read_object(file, {'config': 'an object'})['config']
  _check(config, _CONFIG, f'{file}: config')
  _check(config['cluster'], {'workers': 'a count'}, f'{file}: config.cluster')
  _check(config['sync'], {'name': 'text'}, f'{file}: config.sync')
  return config


def _summary(path: pathlib.Path) -> _Accounts:
  file = path / 'summary.json'
  summary = read_object(file, _SUMMARY)
  counts, seconds = summary['staleness'], summary['worker_seconds']
  _check(counts, dict.fromkeys(counts, 'a count'), f'{file}: staleness')
  _check(seconds, dict.fromkeys(seconds, 'a number'), f'{file}: worker_seconds')
  if not all(map(str.isdecimal, counts)):
    raise ValueError(f'{file}: staleness: expected versions, got {counts}.')
  return _Accounts(
    ended=summary['ended'],
    end_s=summary['virtual_s'],
    iterations=summary['iterations'],
    staleness={int(stale): count for stale, count in counts.items()},
    seconds=seconds,
  )


def _recount(path: pathlib.Path) -> _Accounts:
  """Sums what a run without a summary has done so far."""
  end_s, computed = 0.0, 0
  seconds: dict[str, float] = {}
  for span in _spans(path):
    end_s = max(end_s, span.end)
    computed += span.phase == 'compute'
    spent = seconds.get(span.phase, 0.0)
    seconds[span.phase] = spent + span.end - span.start
  return _Accounts(None, end_s, computed, _recount_staleness(path), seconds)


def _recount_staleness(path: pathlib.Path) -> dict[int, int]:
  """Counts staleness as the ledger does, from what a scheme was told."""
  file = path / 'events.jsonl'
  counts: collections.Counter[int] = collections.Counter()
  pulled: dict[int, int] = {}
  pending: dict[int, list[int]] = {}
  version = 0
  for row in _rows(file, _EVENT, whole=False):
    said = row['said']
    try:
      if row['told'] == 'push':
        pending.setdefault(said['into'], []).append(pulled[row['worker']])
      for update in said.get('commit', ()):
        counts.update(version - before for before in pending.pop(update))
        version += 1
    except KeyError as error:
      raise ValueError(
        f'{file}: expected pushes of released workers and updates that hold '
        f'pushes, got {row}.'
      ) from error
    pulled.update(dict.fromkeys(said.get('release', ()), version))
  return dict(counts)


def _spans(path: pathlib.Path) -> Iterator[Span]:
  file = path / 'trace.json'
  for row in _rows(file, _SPAN, whole=_is_closed(path), only=('ph', 'X')):
    start = row['ts'] / 1e6
    yield Span(row['tid'], row['name'], start, start + row['dur'] / 1e6)


def _overlapping(
  path: pathlib.Path, shown: tuple[float, float], workers: Sequence[int]
) -> Iterator[Span]:
  """Yields the workers' spans in the window, without reading on after it."""
  going = set(workers)  # Spans come in the order of their ends.
  for span in _spans(path):
    if span.worker in going:
      if span.end > shown[0] and span.start < shown[1]:
        yield span
      if span.end >= shown[1]:
        going.remove(span.worker)
    if not going:
      return


def _rows(
  file: pathlib.Path,
  fields: _Fields,
  *,
  whole: bool,
  only: tuple[str, str] | None = None,
) -> Iterator[dict[str, Any]]:
  """Yields the objects of a file that holds one per line; none if it lacks.

  Args:
    file: JSON lines, or a JSON array with an element per line.
    fields: What must hold for fields.
    whole: Whether the last line must be.
    only: A field and its value in the objects to yield.
  """
  if not file.exists():
    return
  with file.open(encoding='utf-8', errors='replace') as lines:
    for number, line in enumerate(lines, start=1):
      text = line.strip().removesuffix(',')
      if text in '[]' and file.suffix == '.json':
        continue
      where = f'{file}, line {number}'
      try:
        row = _object(text, where)
      except ValueError:
        if whole or line.endswith('\n'):
          raise
        return
      if only is None or row.get(only[0]) == only[1]:
        _check(row, fields, where)
        yield row


def _object(text: str, where: str) -> dict[str, Any]:
  try:
    content = json.loads(text)
  except json.JSONDecodeError as error:
    raise ValueError(
      f'{where}: expected a JSON object, got {text[:80]!r} ({error}).'
    ) from error
  if not isinstance(content, dict):
    raise ValueError(f'{where}: expected a JSON object, got {text[:80]!r}.')
  return content


def _check(content: Mapping[str, Any], fields: _Fields, where: str) -> None:
  for field, kind in fields.items():
    if field not in content or not _KINDS[kind](content[field]):
      got = repr(content[field])[:80] if field in content else 'nothing'
      raise ValueError(f'{where}: {field}: expected {kind}, got {got}.')


def _evenly(count: int, most: int) -> tuple[int, ...]:
  """Returns 0 to count - 1, or `most` of them, evenly spaced."""
  picked = np.linspace(0, count - 1, min(count, most)).round()
  return tuple(int(number) for number in picked)


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


def _used(
  section: Mapping[str, Any], path: str = ''
) -> Iterator[tuple[str, Any]]:
  """Yields the fields that count, by dotted name: of seeds, none does."""
  for field, value in section.items():
    if isinstance(value, Mapping):
      if section.get('name', field) == field:  # Or it has no name.
        yield from _used(value, f'{path}{field}.')
    elif f'{path}{field}' not in ('seed', 'sync.name'):
      yield f'{path}{field}', value


def _differing(runs: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
  """Returns the fields in which runs differ, and what most of them have."""
  fields = dict.fromkeys(field for run in runs for field in run)
  differing: dict[str, str | None] = {}
  for field in fields:
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
  short = f'{value:g}' if isinstance(value, float) else str(value)
  return short if short == str(value) or float(short) == value else str(value)


def _curve(rows: Sequence[Mapping[str, Any]], field: str) -> Curve:
  times = np.array([row['time'] for row in rows], float)
  return Curve(times, np.array([row[field] for row in rows], float))


def _shares(amounts: Mapping[Any, float]) -> dict[Any, float]:
  """Returns the amounts over their sum; nothing if that is 0."""
  total = sum(amounts.values())
  if not total:
    return {}
  return {key: amount / total for key, amount in amounts.items()}


def _log_unfinished(groups: Groups) -> None:
  for runs in groups.values():
    for run in runs:
      if run.ended != 'finished':
        ended = run.ended or 'it has no summary.json yet'
        logging.warning('%s: drawn as far as it goes: %s.', run.path, ended)


def _by_accuracy(groups: Groups) -> tuple[Groups, Groups]:
  """Returns the runs that measured an accuracy, and those with examples."""
  measured: dict[str, list[RunRecord]] = {}
  timed: dict[str, list[RunRecord]] = {}
  for label, runs in groups.items():
    for run in runs:
      if len(accuracy_curve(run).times):
        measured.setdefault(label, []).append(run)
      elif run.rows:
        timed.setdefault(label, []).append(run)
        logging.warning('%s: no accuracy, it is in examples.png.', run.path)
      else:
        logging.warning('%s: in no curve, metrics.jsonl is empty.', run.path)
  return measured, timed


def _drawn(
  draw_one: Callable[[Groups, pathlib.Path], bool],
  groups: Groups,
  path: pathlib.Path,
) -> list[pathlib.Path]:
  return [path] if groups and draw_one(groups, path) else []


def _named(
  groups: Groups, most: int | None
) -> Iterator[tuple[str, str, RunRecord]]:
  """Yields the first runs of each label, and a file name of their own."""
  taken: set[str] = set()
  for label, runs in groups.items():
    for run in runs[:most]:
      seed = f', seed {run.config["seed"]}' if len(runs) > 1 else ''
      name = stem = file_name(label + seed)
      while name in taken:
        name = f'{stem}-{len(taken)}'
      taken.add(name)
      yield name, label + seed, run


def _present(
  groups: Groups,
  shares: Callable[[Sequence[RunRecord]], dict[Any, float]],
  problem: str,
) -> dict[str, dict[Any, float]]:
  """Returns each label's shares; logs the labels that have none."""
  present = {}
  for label, runs in groups.items():
    if found := shares(runs):
      present[label] = found
    else:
      logging.warning('%s: left out of a picture, %s.', label, problem)
  return present


def _draw_curves(
  groups: Groups,
  path: pathlib.Path,
  curve: Callable[[RunRecord], Curve],
  quantity: str,
  scale: float,
) -> bool:
  curves = {}
  for label, runs in groups.items():
    found = [curve(run) for run in runs]
    curves[label] = [each for each in found if len(each.times)]
  curves = {label: found for label, found in curves.items() if found}
  if not curves:
    return False
  figure = _figure(9.5, 5)
  axes = figure.subplots()
  for index, (label, found) in enumerate(curves.items()):
    _draw_label(axes, index, label, found, scale)
  axes.set(xlabel='virtual time (s)', ylabel=quantity)
  axes.set_xlim(left=0)
  axes.grid(alpha=0.3)
  _frame(axes)
  several = any(len(found) > 1 for found in curves.values())
  title = 'thick: median of the seeds' if several else None
  figure.legend(loc='outside right upper', frameon=False, title=title)
  figure.savefig(path)
  return True


def _draw_label(
  axes: Axes, index: int, label: str, curves: Sequence[Curve], scale: float
) -> None:
  """Draws thin lines, and their median thick."""
  color = _COLORS[index % len(_COLORS)]
  style = _STYLES[index % len(_STYLES)]
  if len(curves) > 1:
    for times, values in curves:
      axes.plot(times, scale * values, linewidth=0.5, alpha=0.35, color=color)
  times, values = median_curve(curves)
  line = {'color': color, 'linestyle': style, 'linewidth': 1.8}
  axes.plot(times, scale * values, label=_wrapped(label), **line)


def _histogram(axes: Axes, label: str, shares: Mapping[int, float]) -> None:
  percent = [100 * share for share in shares.values()]
  width = 0.9 if len(shares) < 40 else 1.0  # Gaps between many would flicker.
  axes.bar(list(shares), percent, width=width, color=_COLORS[0])
  mean = statistics.fmean(shares, weights=shares.values())
  axes.set_title(f'{_wrapped(label)}\nmean {mean:.2f}', fontsize='small')
  axes.locator_params(axis='x', integer=True)
  axes.tick_params(labelbottom=True)  # Below it there may be no panel.
  _frame(axes)


def _draw_spans(axes: Axes, run: RunRecord) -> None:
  """Draws a row per worker, the first on top, clipped to the window."""
  bars = collections.defaultdict(list)
  for span in run.spans:
    start, end = np.clip((span.start, span.end), *run.window)
    bars[span.phase, span.worker].append((start, end - start))
  phases = _phases(phase for phase, _ in bars)
  for phase, color in phases.items():
    axes.broken_barh([], (0, 0), color=color, label=phase)  # For the legend.
  for (phase, worker), extents in bars.items():
    row = run.workers.index(worker)
    where = row - 0.4, 0.8
    axes.broken_barh(extents, where, color=phases[phase], linewidth=0)
  labels = _evenly(len(run.workers), 16)
  axes.set_yticks(labels, [f'worker {run.workers[i]}' for i in labels])
  axes.set_ylim(len(run.workers) - 0.5, -0.5)


def _draw_barriers(axes: Axes, run: RunRecord) -> None:
  start, end = run.window
  times = [row['time'] for row in run.rows if row['kind'] == 'barrier']
  label = 'barrier'
  for time in times:
    if start <= time <= end:
      axes.axvline(time, color='black', linewidth=1, label=label)
      label = '_'  # One entry in the legend is enough.


def _timeline_title(label: str, run: RunRecord) -> str:
  workers = run.config['cluster']['workers']
  if len(run.workers) == workers:
    return label
  return f'{label} ({len(run.workers)} of {workers} workers)'


def _phases(names: Iterable[str]) -> dict[str, str]:
  """Returns the colour of each phase, the four usual ones first."""
  found = set(names)
  others = sorted(found - set(PHASES))
  colors = {phase: _PHASE_COLORS[phase] for phase in PHASES if phase in found}
  for index, phase in enumerate(others):
    colors[phase] = _OTHER_COLORS[index % len(_OTHER_COLORS)]
  return colors


def _figure(width: float, height: float) -> Figure:
  """Returns a figure of inches that no window will show."""
  return Figure((width, height), dpi=_DPI, layout='constrained')


def _wrapped(label: str) -> str:
  return textwrap.fill(label, 30)


def _frame(axes: Axes) -> None:
  axes.spines[['top', 'right']].set_visible(False)


if __name__ == '__main__':
  flags.DEFINE_string('out', None, 'Folder for the pictures.', required=True)
  app.run(main)
