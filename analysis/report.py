"""Figures of runs, also of running and failed ones, and a page of them."""

import collections
import functools
import itertools
import pathlib
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from matplotlib.figure import Figure

import analysis
from analysis import diagnosing, labels, pacing, page, runs, traffic
from analysis.figures import curves, forest, links, look, workers
from analysis.figures.curves import Curve
from analysis.runs import Run
from outputs import atomic, figures
from sweeps.folder import SweepFolder

PAGE = 'report.html'
AGAINST = {
  'time': 'time (s)',
  'iterations': 'iterations of all workers',
  'examples': 'examples in updates',
}
Groups = Mapping[str, Sequence[Run]]
_SHOWN = 64  # Most workers in a timeline.
_WINDOW = 16  # Mean iterations of a worker in a timeline.
_LINKS = 16  # Most links in a figure.
_STEPS = 48  # Most steps of a line of bandwidths.
# Fields of summaries in tables, beside measures and times to thresholds.
_SUMMARY = (
  *('time_s', 'iterations', 'updates', 'waiting_share'),
  *('staleness_mean', 'goodput'),
)


class Picture(NamedTuple):
  """Figure of runs.

  Attributes:
    name: Its file, without suffix.
    title: Its heading.
    sentence: What it shows.
    figure: The figure.
  """

  name: str
  title: str
  sentence: str
  figure: Figure


class Content(NamedTuple):
  """Runs of some folders.

  Attributes:
    groups: Runs by label; runs of a group differ in their seed.
    missing: Number of runs of sweeps that have not begun.
  """

  groups: Groups
  missing: int


def read(folders: Iterable[str | pathlib.Path]) -> Content:
  """Returns the runs of some folders.

  Args:
    folders: Folders of runs, and of sweeps.

  Raises:
    ValueError: If a folder is neither, or a file is broken; names it.
    OSError: If a file cannot be read.
  """
  found: list[Run] = []
  missing = 0
  for folder in map(pathlib.Path, folders):
    if not (folder / 'sweep.json').exists():
      found.append(analysis.read(folder))
      continue
    for name in SweepFolder(str(folder)).read_run_names():
      if (folder / name / 'manifest.json').exists():
        found.append(analysis.read(folder / name))
      else:
        missing += 1
  return Content(group(found), missing)


def group(found: Sequence[Run]) -> dict[str, list[Run]]:
  """Returns runs by label, in order; runs of a label differ in their seed.

  Args:
    found: Runs, which keep their order.
  """
  groups: dict[str, list[Run]] = {}
  names = labels.find([run.config for run in found])
  for label, run in zip(names, found, strict=True):
    groups.setdefault(label, []).append(run)
  return groups


def write_pictures(
  groups: Groups,
  out: str | pathlib.Path,
  *,
  kind: str = 'png',
  of_each: int | None = None,
) -> list[pathlib.Path]:
  """Draws every figure for which the runs have data.

  A log line names each figure that leaves a run out.

  Args:
    groups: Runs by label.
    out: Folder, created if it is missing.
    kind: One of `look.FORMATS`.
    of_each: Number of runs of a label with figures of their own; None for all.

  Returns:
    The files of the figures.

  Raises:
    OSError: If a figure cannot be written.
  """
  out = pathlib.Path(out)
  out.mkdir(parents=True, exist_ok=True)
  for run in itertools.chain(*groups.values()):
    if run.ended != 'finished':
      ended = run.ended or 'it has no summary.json yet'
      logging.warning('%s: drawn up to its last row: %s.', run.path, ended)
  pictures = [
    *draw_groups(groups),
    *itertools.chain(
      *(draw_run(*each) for each in _name_runs(groups, of_each))
    ),
  ]
  files = []
  for picture in pictures:
    files.append(out / f'{picture.name}.{kind}')
    look.save(picture.figure, files[-1])
  return files


def write_page(content: Content, out: str | pathlib.Path) -> pathlib.Path:
  """Writes a page of runs, and returns its path.

  Args:
    content: Runs of the page.
    out: Folder, created if it is missing.

  Raises:
    ValueError: If a file of a run is broken.
    OSError: If a file cannot be read or written.
  """
  sections = [_describe_runs(content)]
  for picture in draw_groups(content.groups):
    sections.append(_section(picture))
  for name, label, run in _name_runs(content.groups, 1):
    sentences = _diagnose(run)
    sections.append(page.Section(f'Diagnosis of {label}', sentences))
    for picture in draw_run(name, label, run):
      sections.append(_section(picture, level=3))
  path = pathlib.Path(out) / PAGE
  path.parent.mkdir(parents=True, exist_ok=True)
  atomic.write(path, page.render('Runs', sections))
  return path


def file_name(label: str) -> str:
  """Returns a label as part of a file's name, at most 100 characters."""
  return re.sub(r'[^\w.=-]+', '-', label).strip('-')[:100]


def measured(
  run: Run, name: str = 'accuracy', against: str = 'time'
) -> Curve | None:
  """Returns a measure of all evaluations of a run; None if it has none.

  Args:
    run: The run.
    name: Name of the measure.
    against: One of `AGAINST`.
  """
  points = [
    (row[against], row[name]) for row in run.rows if row.get(name) is not None
  ]
  return Curve(*np.transpose(points)) if points else None


def find_window(run: Run) -> tuple[float, float]:
  """Returns start and end of the part of a run that timelines show, seconds.

  It is the middle of the measured time: `_WINDOW` iterations of a mean worker,
  or all of the time if there are fewer.
  """
  last = run.rows[-1] if run.rows else {'iterations': 0}
  if not last['iterations']:
    return 0.0, 0.0
  workers_of = run.config['cluster']['workers']
  end_s = last['time']
  length_s = min(_WINDOW * workers_of * end_s / last['iterations'], end_s)
  return (end_s - length_s) / 2, (end_s + length_s) / 2


def make_timeline(
  run: Run, window: tuple[float, float]
) -> workers.Timeline | None:
  """Returns the phases of a run's workers; None if nobody did anything.

  Of more than 64 workers it has 64, at equal distances in their order.

  Args:
    run: The run.
    window: Start and end, seconds on the run's clock.
  """
  spans, count = run.spans, run.config['cluster']['workers']
  picked = np.linspace(0, count - 1, min(count, _SHOWN)).round().astype(int)
  chosen = (spans['end'] > window[0]) & (spans['start'] < window[1])
  chosen &= np.isin(spans['worker'], picked)
  if not chosen.any():
    return None
  return workers.Timeline(
    worker=spans['worker'][chosen],
    phase=spans['phase'][chosen],
    start=spans['start'][chosen],
    end=spans['end'][chosen],
    barriers=[row['time'] for row in run.rows if row['kind'] == 'barrier'],
    window=window,
    workers=picked.tolist(),
    total=count,
  )


def speed_ups(groups: Groups) -> dict[str, dict[int, list[float]]]:
  """Returns the speed-up over one worker, by label and number of workers.

  The speed counts examples in updates per second of the run's clock.  The speed
  of one worker is its share in the runs with the fewest workers, a mean.

  Args:
    groups: Runs by label without the number of workers.
  """
  found = {}
  for label, group_ in groups.items():
    speeds: dict[int, list[float]] = {}
    for run in group_:
      if run.summary and run.summary.get('examples'):
        speed = run.summary['examples'] / run.summary['time_s']
        speeds.setdefault(run.config['cluster']['workers'], []).append(speed)
    if len(speeds) > 1:
      one = statistics.fmean(speeds[min(speeds)]) / min(speeds)
      found[label] = {
        count: [speed / one for speed in speeds[count]]
        for count in sorted(speeds)
      }
  return found


def draw_groups(groups: Groups) -> Iterator[Picture]:
  """Yields the figures that compare groups of runs."""
  every = [*itertools.chain(*groups.values())]
  if not every:
    return
  time_label = runs.time_label(every)
  yield from _draw_measures(groups, time_label)
  if counts := _collect(groups, 'staleness', _staleness):
    yield Picture(
      'staleness',
      'Staleness',
      'Versions that were applied between the pull of a push and the update '
      'that it went into: share of the pushes with at most so many.',
      curves.draw_distributions(
        {label: _merge(seeds) for label, seeds in counts.items()},
        xlabel='staleness (versions)',
        ylabel='applied pushes (%)',
      ),
    )
  if seconds := _collect(groups, 'waiting', _worker_seconds):
    yield Picture(
      'waiting',
      'Waiting',
      "Shares of all workers' time by phase.",
      workers.draw_shares(
        {label: _sum(seeds) for label, seeds in seconds.items()}
      ),
    )
  if phases := _collect(groups, 'breakdown', _breakdown):
    yield Picture(
      'breakdown',
      'Breakdown',
      'Seconds of an iteration by phase, medians over workers and seeds.',
      workers.draw_breakdown(
        {
          label: {
            phase: (
              statistics.median(seed[phase]['median_s'] for seed in seeds),
              statistics.median(seed[phase]['p95_s'] for seed in seeds),
            )
            for phase in seeds[0]
          }
          for label, seeds in phases.items()
        }
      ),
    )
  if gaps := _collect(groups, 'gaps', _gaps):
    yield Picture(
      'gaps',
      'Gaps between pushes',
      'Seconds between applied pushes, of all seeds: share of the gaps that '
      'are at most so long.',
      curves.draw_distributions(
        {label: _merge(seeds) for label, seeds in gaps.items()},
        xlabel='gap between applied pushes (s)',
        ylabel='gaps (%)',
      ),
    )
  if rates := _collect(groups, 'bandwidth', _bandwidth):
    yield Picture(
      'bandwidth',
      'Bandwidth',
      'Bytes per second of all pushes and pulls that arrive.',
      curves.draw_curves(
        rates,
        xlabel=time_label,
        ylabel='pushes and pulls (MB/s)',
        from_zero=True,
      ),
    )
  if ratios := speed_ups(_group_without_workers(every)):
    yield Picture(
      'speed-up',
      'Speed-up',
      'Examples per second over those of a single worker.',
      curves.draw_speed_ups(ratios),
    )


def draw_run(name: str, label: str, run: Run) -> Iterator[Picture]:
  """Yields the figures of one run.

  Args:
    name: Part of the names of their files.
    label: Label of the run, for headings.
    run: The run.
  """
  time_label = runs.time_label([run])
  timeline = make_timeline(run, find_window(run))
  if timeline is None:
    logging.warning('%s: has no timeline.', run.path)
  else:
    yield Picture(
      f'timeline-{name}',
      f'Timeline of {label}',
      'Phases of workers, in the middle of the run.',
      workers.draw_timelines({label: timeline}, xlabel=time_label),
    )
  if batches := find_batches(run):
    yield Picture(
      f'batches-{name}',
      f'Batches of {label}',
      'Examples of an iteration by worker.',
      workers.draw_batches(batches, xlabel=time_label),
    )
  if run.config['route']['name'] == 'server':
    return
  try:
    epoch = traffic.longest_epoch(run)
  except ValueError as error:
    logging.warning('%s', error)
    return
  yield from _draw_links(name, label, epoch)


def find_batches(run: Run) -> dict[int, tuple[np.ndarray, np.ndarray]]:
  """Returns times of pushes and their examples by worker, each [pushes].

  Nothing if all batches are equal, or if there are none.
  """
  if not run.has_events:
    return {}
  pushes = run.events.select(run.events['event'] == 'push')
  if len(np.unique(pushes['examples'])) < 2:
    return {}
  found = {}
  for worker in np.unique(pushes['worker']).tolist():
    mine = pushes.select(pushes['worker'] == worker)
    found[worker] = mine['time'], mine['examples']
  return found


def _draw_links(
  name: str, label: str, epoch: traffic.MembershipEpoch
) -> Iterator[Picture]:
  """Yields the figures of the links of an allreduce run."""
  every = epoch.sum_links()
  slowest = traffic.slowest_links(every, _LINKS)
  if slowest:
    (src, dst), link = slowest[0]
    yield Picture(
      f'links-{name}',
      f'Links of {label}',
      'Measured rates of links against plan.  The slowest is that of worker '
      f'{src} to {dst}, at {link.ratio or 0.0:.0%} of plan.',
      links.draw_links(
        [f'{src} to {dst}' for (src, dst), _ in slowest],
        [link.Bps or 0.0 for _, link in slowest],
        [link.planned_Bps for _, link in slowest],
        count=len(every),
      ),
    )
  if epoch.plan is not None and every:
    yield Picture(
      f'forest-{name}',
      f'Forest of {label}',
      'Bytes between workers, and the trees with the largest weights; colors '
      'are measured over planned rates.',
      draw_forest(epoch),
    )


def draw_forest(epoch: traffic.MembershipEpoch, *, trees: int = 4) -> Figure:
  """Draws the traffic of a membership epoch over its forest.

  Args:
    epoch: The epoch.
    trees: Most trees with a panel of their own.

  Raises:
    ValueError: If the forest is not known.
  """
  plan = epoch.plan
  if plan is None:
    raise ValueError('epoch: expected one with a forest, got none.')
  ids = {worker: node for node, worker in plan.names.items()}
  rates = ''
  if not plan.has_rates:
    rates = '; planned are equal links, as fast as the fastest has been'
  return forest.draw_traffic(
    {
      (ids[src], ids[dst]): forest.TrafficLink(link.bytes, link.ratio)
      for (src, dst), link in epoch.sum_links().items()
      if link.bytes
    },
    plan.cluster,
    plan.forest,
    workers=plan.names,
    note=f'{epoch.iterations} iterations of {len(epoch.members)} workers over '
    f'{len(plan.forest.trees)} trees{rates}',
    trees=trees,
  )


def _draw_measures(groups: Groups, time_label: str) -> Iterator[Picture]:
  """Yields the figures of evaluations."""
  directions: dict[str, str] = {}
  for run in itertools.chain(*groups.values()):
    directions |= run.measures
  for name, direction in directions.items():
    words, is_share = figures.label(name), figures.is_share(name)
    better = 'lower' if direction == 'falls' else 'higher'
    for against, along in AGAINST.items():
      file = name if against == 'time' else f'{name}-{against}'
      find = functools.partial(measured, name=name, against=against)
      found = _collect(groups, file, find)
      if not found:
        break
      title = f'{words} against {along}' if against != 'time' else words
      yield Picture(
        file,
        title[:1].upper() + title[1:],
        f'{words[:1].upper()}{words[1:]} on the test split; {better} is '
        'better.',
        curves.draw_curves(
          found,
          xlabel=time_label if against == 'time' else along,
          ylabel=f'test {words}',
          in_percent=is_share,
          falls=direction == 'falls',
        ),
      )


def _staleness(run: Run) -> Mapping[float, int]:
  found = (run.summary or {}).get('staleness', {})
  return {int(versions): count for versions, count in found.items() if count}


def _worker_seconds(run: Run) -> Mapping[str, float]:
  found = (run.summary or {}).get('worker_seconds', {})
  return {phase: seconds for phase, seconds in found.items() if seconds}


def _breakdown(run: Run) -> Mapping[str, Mapping[str, float]] | None:
  found = (run.summary or {}).get('breakdown', {})
  return found if any(each['median_s'] for each in found.values()) else None


def _gaps(run: Run) -> Mapping[float, int] | None:
  if not run.has_events:
    return None
  return dict(
    zip(*np.unique(pacing.gaps(run), return_counts=True), strict=True)
  )


def _bandwidth(run: Run) -> Curve | None:
  """Returns MB/s over time; a step combines several windows of the summary."""
  found = (run.summary or {}).get('bandwidth', {'Bps': []})
  rates = np.array(found['Bps'], float)
  if not rates.any():
    return None
  several = -(-len(rates) // _STEPS)
  whole = len(rates) // several * several  # Others do not fill a step.
  rates = rates[:whole].reshape(-1, several).mean(axis=1) / 1e6
  step_s = found['window_s'] * several
  return Curve(step_s * (np.arange(len(rates)) + 0.5), rates)


def _merge(
  seeds: Sequence[Mapping[float, int]],
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the values of all seeds, ascending, and their counts."""
  counts = _sum(seeds)
  values = sorted(counts)
  return np.array(values, float), np.array([counts[each] for each in values])


def _sum(amounts: Iterable[Mapping[Any, float]]) -> dict[Any, float]:
  sums: collections.Counter[Any] = collections.Counter()
  for each in amounts:
    sums.update(each)
  return dict(sums)


def _collect(
  groups: Groups, picture: str, find: Callable[[Run], Any]
) -> dict[str, list[Any]]:
  """Returns the data of a figure by label; logs runs without data."""
  by_label: dict[str, list[Any]] = {}
  for label, group_ in groups.items():
    for run in group_:
      values = find(run)
      if values is not None and len(values):
        by_label.setdefault(label, []).append(values)
      else:
        logging.warning('%s: omitted from %s.', run.path, picture)
  return by_label


def _group_without_workers(every: Iterable[Run]) -> dict[str, list[Run]]:
  """Returns the runs by their label among runs with as many workers."""
  by_count: dict[int, list[Run]] = {}
  for run in every:
    by_count.setdefault(run.config['cluster']['workers'], []).append(run)
  by_label: dict[str, list[Run]] = {}
  for found in by_count.values():
    for label, group_ in group(found).items():
      by_label.setdefault(label, []).extend(group_)
  return by_label


def _name_runs(
  groups: Groups, most: int | None
) -> Iterator[tuple[str, str, Run]]:
  """Yields file name, label and run for the first runs of each group."""
  names: set[str] = set()
  for label, group_ in groups.items():
    for run in group_[:most]:
      seed = f', seed {run.config["seed"]}' if len(group_) > 1 else ''
      name = file_name(label + seed)
      name = f'{name}-{len(names)}' if name in names else name
      names.add(name)
      yield name, label + seed, run


def _section(picture: Picture, level: int = 2) -> page.Section:
  return page.Section(
    picture.title, [picture.sentence], [picture.figure], level
  )


def _diagnose(run: Run) -> list[str]:
  """Returns what slows a run, or why that is not known, as sentences."""
  try:
    return [each.sentence for each in diagnosing.diagnose_run(run)]
  except ValueError as error:
    return [f'No diagnosis: {error}']


def _describe_runs(content: Content) -> page.Section:
  """Returns the table of all runs: fields that differ, and results."""
  rows = [
    (label, run) for label, found in content.groups.items() for run in found
  ]
  every = [run for _, run in rows]
  differing = labels.differing_fields([run.config for run in every])
  short = labels.shorten(differing)
  results = [_results(run) for run in every]
  columns = dict.fromkeys(name for result in results for name in result)
  table = page.Table(
    [*short.values(), 'seed', 'ended', *columns],
    [
      [
        *(values[place] for values in differing.values()),
        run.config['seed'],
        run.ended or 'not yet',
        *(results[place].get(name) for name in columns),
      ]
      for place, run in enumerate(every)
    ],
  )
  sentences = ['A row for each run: fields in which runs differ, and results.']
  if content.missing:
    sentences.append(f'{content.missing} runs have not begun.')
  return page.Section('Table', sentences, [table] if every else [])


def _results(run: Run) -> dict[str, Any]:
  """Returns the fields of a summary that the table shows, by dotted name."""
  return {
    name: value
    for name, value in _flatten(run.summary or {})
    if _is_shown(name) and value is not None
  }


def _is_shown(name: str) -> bool:
  is_accuracy = name.startswith('to_accuracy.')  # In `time_to`.
  reached = name.startswith('to_') and name.endswith('.time_s')
  is_measured = name.startswith(('final_', 'time_to.'))
  return name in _SUMMARY or is_measured or (reached and not is_accuracy)


def _flatten(
  values: Mapping[str, Any], above: str = ''
) -> Iterator[tuple[str, Any]]:
  for name, value in values.items():
    if isinstance(value, Mapping):
      yield from _flatten(value, f'{above}{name}.')
    else:
      yield above + name, value
