"""Draws phases of iterations, gaps, bandwidth and speed-up, as papers do."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import records
from analysis.drawing import look, timeline
from analysis.records import RunRecord
from outputs.accounting import PHASES

Groups = Mapping[str, Sequence[RunRecord]]

_STEPS = 48  # Most steps of a line of bandwidths.
_SHOWN = 0.99  # Share of the gaps that is drawn, without the longest ones.


def breakdown(run: RunRecord) -> Mapping[str, Any] | None:
  """Returns the seconds of a run's iterations by phase, if it has any."""
  found = (run.summary or {}).get('breakdown', {})
  return found if any(each['median_s'] for each in found.values()) else None


def draw_breakdown(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
  """Draws a panel for each phase, with a bar per label and a line to its p95.

  Args:
    found: Measures of the seeds, by label; their medians are drawn.
  """
  figure = Figure((10, 1.3 + 0.36 * len(found)))
  grid = figure.subplots(1, len(PHASES), sharex=True, sharey=True)
  for axes, phase in zip(grid, PHASES, strict=True):
    rows = [
      [
        statistics.median(each[phase][name] for each in seeds)
        for name in ('median_s', 'p95_s')
      ]
      for seeds in found.values()
    ]
    middle, high = np.transpose(rows)
    places = range(len(rows))
    axes.barh(places, middle, height=0.62, color=timeline.COLORS[phase])
    # Beside the bar where 95 % are shorter than a bar is wide.
    axes.hlines(places, middle, high, color='black', linewidth=1.2)
    axes.plot(high, places, '|', color='black', markersize=7)
    axes.set_title(phase, fontsize='medium')
    axes.grid(axis='x', alpha=0.3)
    axes.locator_params(axis='x', nbins=4)
    axes.tick_params(axis='y', length=0)
  grid[0].set_yticks(places, map(look.wrap, found))
  grid[0].invert_yaxis()
  grid[0].set_xlim(left=0)
  figure.supxlabel(
    'seconds of an iteration: median, and a line to where 95 % are shorter',
    fontsize='medium',
  )
  return figure


def gaps(run: RunRecord) -> np.ndarray | None:
  """Returns the seconds between applied pushes; None if there are fewer than 2.

  Pushes of one update are applied at the same time.
  """
  if not records.has_events(run):
    return None
  pending: dict[int, int] = {}
  times: list[float] = []
  for row in records.read_events(run.path):
    decision = row['decision']
    if 'into' in decision:
      into = decision['into']
      pending[into] = pending.get(into, 0) + 1
    for update in decision.get('commit', ()):
      times += [row['time']] * pending.pop(update, 0)
  return np.diff(times) if len(times) > 1 else None


def draw_gaps(found: Mapping[str, Sequence[np.ndarray]]) -> Figure:
  """Draws the distribution of gaps, with a line per label for all seeds."""
  figure = Figure((9.5, 4.6))
  axes = figure.subplots()
  together = {label: np.concatenate(each) for label, each in found.items()}
  for index, (label, values) in enumerate(together.items()):
    ordered = np.sort(values)
    shares = 100 * np.arange(1, len(ordered) + 1) / len(ordered)
    at = np.concatenate([[0.0], ordered])
    share = np.concatenate([[0.0], shares])
    name = look.wrap(label)
    axes.step(at, share, where='post', label=name, **look.line(index))
  most = max(np.quantile(values, _SHOWN) for values in together.values())
  axes.set_xlim(-0.015 * most, 1.02 * most or 1.0)
  axes.set_ylim(0, 101)
  axes.set(xlabel='gap between pushes that are applied (s)')
  axes.set_ylabel('share of gaps that are no longer (%)')
  axes.grid(alpha=0.3)
  figure.legend(loc='outside right upper')
  return figure


def bandwidth(run: RunRecord) -> Mapping[str, Any] | None:
  """Returns the bytes per second of a run over time, if it has any."""
  found = (run.summary or {}).get('bandwidth', {'Bps': []})
  return found if any(found['Bps']) else None


def steps(found: Mapping[str, Any]) -> tuple[float, list[float]]:
  """Returns the seconds of a step of bandwidths, and the MB/s of each step."""
  # Windows may end between two barriers, so a step combines several windows.
  # Windows that do not fill the last step are omitted.
  several = -(-len(found['Bps']) // _STEPS)
  whole = max(len(found['Bps']) // several, 1)
  rates = [
    float(np.mean(found['Bps'][k * several : (k + 1) * several])) / 1e6
    for k in range(whole)
  ]
  return found['window_s'] * several, rates


def draw_bandwidth(
  found: Mapping[str, Sequence[Mapping[str, Any]]], time_label: str
) -> Figure:
  """Draws the bytes per second over time, of the first seed of each label."""
  figure = Figure((9.5, 4.2))
  axes = figure.subplots()
  for index, (label, (first, *_)) in enumerate(found.items()):
    step_s, rates = steps(first)
    edges = step_s * np.arange(len(rates) + 1)
    name = f'{look.wrap(label)}\n(mean {np.mean(first["Bps"]) / 1e6:.3g})'
    axes.stairs(rates, edges, label=name, baseline=None, **look.line(index))
  axes.set(xlabel=time_label, ylabel='pushes and pulls that arrive (MB/s)')
  axes.set_xlim(left=0)
  axes.set_ylim(bottom=0)
  axes.grid(alpha=0.3)
  figure.legend(loc='outside right upper')
  return figure


def draw_traffic(label: str, run: RunRecord) -> Figure | None:
  """Draws the rates of a run's pushes and pulls in the window of its timeline.

  Each transfer's bytes are spread evenly over its time.

  Args:
    label: Title of the picture.
    run: With spans.

  Returns:
    The picture; None if nothing travels then, or if bytes are not known.
  """
  moves = [span for span in run.spans if span.phase in ('pull', 'push')]
  if not moves or not run.summary or not run.summary.get('iterations'):
    return None
  ways = sorted({span.phase for span in moves})
  size = run.summary['bytes'] / run.summary['iterations'] / len(ways)
  size *= run.config['cluster']['workers'] / len(run.workers)
  figure = Figure((10, 1.3 + 1.5 * len(ways)))
  grid = figure.subplots(len(ways), 1, sharex=True, sharey=True, squeeze=False)
  for axes, way in zip(grid.ravel(), ways, strict=True):
    edges, rates = _rates((s.start, s.end) for s in moves if s.phase == way)
    color = timeline.COLORS[way]
    axes.stairs(size * rates / 1e6, edges, fill=True, color=color, alpha=0.85)
    axes.set_ylabel(f'{way} (MB/s)')
    axes.grid(alpha=0.3)
  axes.set(xlim=run.window, xlabel=records.time_label([run]))
  axes.set_ylim(bottom=0)
  title = f'{label}; bytes spread evenly over the time of each transfer'
  grid[0, 0].set_title(title, loc='left', fontsize='medium')
  return figure


def _rates(
  spans: Iterable[tuple[float, float]],
) -> tuple[np.ndarray, np.ndarray]:
  """Returns times, [N + 1], and transfers per second between them, [N]."""
  starts, ends = np.transpose(list(spans))
  changes = np.concatenate([1 / (ends - starts), -1 / (ends - starts)])
  edges, into = np.unique(np.concatenate([starts, ends]), return_inverse=True)
  return edges, np.cumsum(np.bincount(into, changes))[:-1].clip(0)


def speed_ups(groups: Groups) -> dict[str, dict[int, float]]:
  """Returns the speed-up over one worker, by label and number of workers.

  Runs of a label differ in their number of workers.  The speed counts examples
  in updates per second of the run's clock, as a median over seeds.  The speed
  of one worker is its share in the run with the fewest workers.

  Args:
    groups: Runs by label, without the number of workers.
  """
  found: dict[str, dict[int, float]] = {}
  for label, runs in groups.items():
    speeds: dict[int, list[float]] = {}
    for run in runs:
      if run.summary and run.summary.get('examples'):
        speed = run.summary['examples'] / run.summary['time_s']
        speeds.setdefault(run.config['cluster']['workers'], []).append(speed)
    if len(speeds) > 1:
      least = min(speeds)
      one = statistics.median(speeds[least]) / least
      found[label] = {
        count: statistics.median(each) / one
        for count, each in sorted(speeds.items())
      }
  return found


def draw_speed_ups(found: Mapping[str, Mapping[int, float]]) -> Figure:
  """Draws speed-ups against the number of workers, with the ideal line."""
  figure = Figure((7.5, 4.6))
  axes = figure.subplots()
  counts = sorted({count for each in found.values() for count in each})
  axes.plot(counts, counts, color='#999999', linewidth=1, label='ideal')
  for index, (label, ratios) in enumerate(found.items()):
    name = look.wrap(label)
    axes.plot(
      [*ratios],
      [*ratios.values()],
      marker='o',
      markersize=4,
      label=name,
      **look.line(index),
    )
  _set_powers(axes, counts)
  axes.set(xlabel='workers', ylabel='times as fast as one worker')
  axes.grid(alpha=0.3)
  figure.legend(loc='outside right upper')
  return figure


def _set_powers(axes: Axes, counts: Sequence[int]) -> None:
  """Sets logarithmic axes, with the numbers of workers as ticks."""
  for axis, set_scale in (
    (axes.xaxis, axes.set_xscale),
    (axes.yaxis, axes.set_yscale),
  ):
    set_scale('log', base=2)
    axis.set_ticks(counts, [str(count) for count in counts])
    axis.set_ticks([], minor=True)
