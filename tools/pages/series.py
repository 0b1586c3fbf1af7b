"""Content of a page on a run as plain data, with long series thinned."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from outputs.accounting import PHASES
from tools import diagnose
from tools.drawing import batches, curves, measures, placing
from tools.reading import traffic
from tools.reading.records import RunRecord
from tools.reading.traffic import MembershipEpoch

_POINTS = 600  # Most points of a line.
_WORKERS = 32  # With a row in a timeline, at most.
_BATCHES = 12  # Workers with a line of batches, at most.
_LINKS = 400  # Drawn, at most: those that lag their plan the most.
_TREES = 12  # Drawn, at most: those that carry the most.
_NODES = 200  # Most nodes of a picture of links.


def describe_run(name: str, run: RunRecord) -> dict[str, Any]:
  """Returns the data of a run that a page draws; None where there are none.

  Args:
    name: Name of the run on the page.
    run: With summary.
  """
  return {
    'name': name,
    'ended': run.ended,
    'diagnosis': _diagnosis(run),
    'config': run.config,
    'figures': _figures(run),
    'staleness': _staleness(run.staleness),
    'waiting': {phase: _short(s) for phase, s in run.seconds.items()},
    'breakdown': measures.breakdown(run),
    'workers': _by_worker(run),
    'bandwidth': _bandwidth(run),
    'timeline': _timeline(run),
    'batches': _batches(run),
    'links': _links(run),
  }


def _diagnosis(run: RunRecord) -> list[str]:
  """Returns the verdicts on a run, or why there are none, as sentences."""
  try:
    return diagnose.sentences(diagnose.diagnose_run(run.path))
  except ValueError as error:
    return [f'No diagnosis: {error}']


def thin(count: int, most: int = _POINTS) -> np.ndarray:
  """Returns which of `count` points stay: the ends, and others evenly."""
  return np.unique(np.linspace(0, count - 1, min(count, most)).round()).astype(
    int
  )


def _figures(run: RunRecord) -> dict[str, dict[str, Any]]:
  """Returns the curves of the figures that a run has measured, by name."""
  found = {}
  for figure, (label, factor) in curves.FIGURES.items():
    lines = {
      against: curves.measured(run, figure, against)
      for against in curves.AGAINST
    }
    first = lines['time']
    if first is None:
      continue
    chosen = thin(len(first.values))
    axes = {
      against: _shorts(each.times[chosen])
      for against, each in lines.items()
      if each
    }
    values = _shorts(factor * first.values[chosen])
    found[figure] = {**axes, 'values': values, 'label': label}
  return found


def _staleness(counts: Mapping[int, int]) -> dict[str, Any] | None:
  """Returns shares of applied pushes by staleness, of bins if it is large."""
  if not counts:
    return None
  width = max(-(-(max(counts) + 1) // _POINTS), 1)
  bins: dict[int, int] = {}
  for stale, count in sorted(counts.items()):
    start = stale // width * width
    bins[start] = bins.get(start, 0) + count
  total = sum(bins.values())
  return {
    'width': width,
    'versions': list(bins),
    'shares': [_short(count / total) for count in bins.values()],
  }


def _by_worker(run: RunRecord) -> dict[str, Any] | None:
  """Returns median seconds of an iteration by phase, of workers."""
  found = (run.summary or {}).get('worker_breakdown') or {}
  ids = sorted(found, key=int)
  if not ids:
    return None
  ids = [ids[k] for k in thin(len(ids), 4 * _WORKERS)]
  phases = {
    phase: [found[each][phase]['median_s'] for each in ids] for phase in PHASES
  }
  return {'ids': ids, 'phases': phases}


def _bandwidth(run: RunRecord) -> dict[str, Any] | None:
  found = measures.bandwidth(run)
  if not found:
    return None
  step_s, rates = measures.steps(found)
  return {'step_s': step_s, 'MBps': _shorts([*rates, rates[-1]])}


def _timeline(run: RunRecord) -> dict[str, Any] | None:
  if not run.spans:
    return None
  workers = [run.workers[k] for k in thin(len(run.workers), _WORKERS)]
  start, end = run.window
  spans: dict[str, dict[str, list[Any]]] = {
    phase: {'worker': [], 'start': [], 'length': []} for phase in PHASES
  }
  for span in run.spans:
    if span.worker in workers and span.end > start and span.start < end:
      bars = spans.setdefault(
        span.phase, {'worker': [], 'start': [], 'length': []}
      )
      begun = max(span.start, start)
      bars['worker'].append(span.worker)
      bars['start'].append(_short(begun))
      bars['length'].append(_short(min(span.end, end) - begun))
  barriers = [row['time'] for row in run.rows if row['kind'] == 'barrier']
  inside = [_short(time) for time in barriers if start <= time <= end]
  return {
    'window': [start, end],
    'workers': workers,
    'of': run.config['cluster']['workers'],
    'phases': spans,
    'barriers': inside,
  }


def _batches(run: RunRecord) -> list[dict[str, Any]]:
  found = batches.sizes(run)
  lines = []
  for worker in sorted(found)[:_BATCHES]:
    times, sizes = zip(*found[worker], strict=True)
    # Only the start of a step is drawn.
    changed = np.flatnonzero(np.diff(sizes, prepend=-1))
    chosen = np.union1d(changed, [len(sizes) - 1])
    chosen = chosen[thin(len(chosen))]
    lines.append(
      {
        'worker': worker,
        'time': _shorts(np.array(times)[chosen]),
        'examples': _shorts(np.array(sizes)[chosen]),
      }
    )
  return lines


def _links(run: RunRecord) -> dict[str, Any] | None:
  """Returns links and trees of an allreduce run; None for another run."""
  if run.config.get('route', {}).get('name', 'server') == 'server':
    return None
  try:
    epoch = traffic.longest_epoch(run.path)
  except ValueError as error:
    return {'missing': str(error)}
  links = epoch.sum_links()
  lagging = traffic.slowest_links(links, len(links))
  rest = [each for each in links.items() if each[1].ratio is None]
  shown = [*lagging, *rest][:_LINKS]
  planned = epoch.plan
  return {
    'missing': None if links or planned else epoch.reason,
    'count': len(links),
    'iterations': epoch.iterations,
    'links': [
      {
        'src': src,
        'dst': dst,
        'MBps': _short(link.Bps / 1e6) if link.Bps is not None else None,
        'planned_MBps': _short(link.planned_Bps / 1e6),
        'ratio': None if link.ratio is None else _short(link.ratio),
        'bytes': link.bytes,
      }
      for (src, dst), link in shown
    ],
    **_draw(epoch),
  }


def _draw(epoch: MembershipEpoch) -> dict[str, Any]:
  """Returns where nodes are, and the hops of the trees that carry the most."""
  planned, ids = epoch.plan, [*map(str, epoch.members)]
  ring = placing.circle(ids) if len(ids) <= _NODES else {}
  drawn = {'members': _nodes(ring, dict(zip(ids, ids, strict=True)))}
  if planned is None or len(planned.cluster.nodes) > _NODES:
    return drawn | {'nodes': [], 'trees': [], 'tree_count': 0}
  trees = planned.forest.trees
  most = sorted(trees, key=lambda tree: tree.weight_Bps, reverse=True)[:_TREES]
  return drawn | {
    'nodes': _nodes(placing.places(planned.cluster), planned.names),
    'tree_count': len(trees),
    'trees': [
      {
        'root': tree.root,
        'share': _short(float(tree.share)),
        'up': [list(hop) for hop in tree.up],
        'down': [list(hop) for hop in tree.down],
      }
      for tree in most
    ],
  }


def _nodes(
  places: placing.Places, names: Mapping[str, int | str]
) -> list[dict[str, Any]]:
  """Returns nodes with the names of workers; of switches they are None."""
  return [
    {'id': node, 'x': _short(x), 'y': _short(y), 'worker': names.get(node)}
    for node, (x, y) in places.items()
  ]


def _short(value: float) -> float:
  """Returns a number with no more digits than can be seen."""
  return float(f'{value:.6g}')


def _shorts(values: Sequence[float] | np.ndarray) -> list[float]:
  return [_short(value) for value in values]
