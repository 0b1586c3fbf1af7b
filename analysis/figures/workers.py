"""Figures of workers: their phases, waiting and batches."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import look

_LINES = 8  # Workers with a line of their own.
_TICKS = 16  # Workers with a number at the axis.
# Height of a phase in a timeline: they differ in greys, too.
_HEIGHTS = {'pull': 0.5, 'compute': 0.86, 'push': 0.5, 'wait': 0.18}
_HATCHES = {'pull': '....', 'push': '....', 'wait': '/////'}
# Heights in figures of bars, inches.
_THICK, _THIN, _GAP, _LINE = 0.14, 0.07, 0.07, 0.125


class Timeline(NamedTuple):
  """Phases of workers in a part of a run.

  Attributes:
    worker: Index of the worker of each span, int [spans].
    phase: Phase of each span, such as 'compute', [spans].
    start: Start of each span, seconds on the run's clock, [spans].
    end: End of each span, [spans].
    barriers: Times of barriers, seconds.
    window: Start and end of the part, seconds.
    workers: Indices of the workers that are shown.
    total: Number of workers of the run.
  """

  worker: np.ndarray
  phase: np.ndarray
  start: np.ndarray
  end: np.ndarray
  barriers: Sequence[float]
  window: tuple[float, float]
  workers: Sequence[int]
  total: int


@look.styled
def draw_timelines(
  timelines: Mapping[str, Timeline], *, xlabel: str, width: float = look.COLUMN
) -> Figure:
  """Draws a row for each worker, the first on top, and lines at barriers.

  Args:
    timelines: Timelines below each other, by title; one has no title.
    xlabel: Label of the axis of times.
    width: Inches.
  """
  rows = [len(each.workers) for each in timelines.values()]
  heights = [min(max(0.13 * count, 0.5), 4.0) for count in rows]
  total = sum(heights) + 0.2 * len(rows) + 0.3
  figure = Figure((width, total))
  grid = figure.subplots(
    len(rows),
    sharex=True,
    squeeze=False,
    gridspec_kw={'height_ratios': heights},
  )
  for axes, (title, timeline) in zip(
    grid[:, 0], timelines.items(), strict=True
  ):
    _draw_timeline(axes, timeline)
    if len(timelines) > 1:
      axes.set_title(title, loc='left')
  grid[-1, 0].set_xlabel(xlabel)
  shown = {*np.concatenate([each.phase for each in timelines.values()])}
  top = grid[0, 0]
  for phase in look.PHASES:
    if phase in shown:
      top.barh(0, 0, color=look.PHASES[phase], label=phase)
  if any(len(each.barriers) for each in timelines.values()):
    top.plot([], [], color='black', linewidth=0.8, label='barrier')
  look.add_legend(figure)
  return figure


def _draw_timeline(axes: Axes, timeline: Timeline) -> None:
  row_of = {worker: row for row, worker in enumerate(timeline.workers)}
  start = np.clip(timeline.start, *timeline.window)
  end = np.clip(timeline.end, *timeline.window)
  for phase, color in look.PHASES.items():
    chosen = (timeline.phase == phase) & (end > start)
    axes.barh(
      [row_of[worker] for worker in timeline.worker[chosen].tolist()],
      (end - start)[chosen],
      left=start[chosen],
      height=_HEIGHTS[phase],
      color=color,
      linewidth=0,
    )
  barriers = [
    time
    for time in timeline.barriers
    if timeline.window[0] <= time <= timeline.window[1]
  ]
  across = axes.get_xaxis_transform()
  axes.vlines(barriers, 0, 1, transform=across, color='black', linewidth=0.8)
  count = len(timeline.workers)
  ticks = range(0, count, math.ceil(count / _TICKS))
  axes.set_yticks(ticks, [str(timeline.workers[row]) for row in ticks])
  some = f' ({count} of {timeline.total})' if count < timeline.total else ''
  axes.set_ylabel(f'worker{some}')
  axes.grid(visible=False)
  axes.set(xlim=timeline.window, ylim=(count - 0.5, -0.5))


@look.styled
def draw_shares(groups: Mapping[str, Mapping[str, float]]) -> Figure:
  """Draws the shares of workers' time by phase, with a bar for each group.

  Args:
    groups: Seconds of all workers and seeds by phase, by label.
  """
  figure, axes, tops = _begin_rows(groups, _THICK)
  seconds = np.array(
    [
      [each.get(phase, 0.0) for phase in look.PHASES]
      for each in groups.values()
    ]
  )
  shares = 100 * seconds / seconds.sum(axis=1, keepdims=True)
  left = np.zeros(len(groups))
  for phase, widths in zip(look.PHASES, shares.T, strict=True):
    if widths.any():
      _draw_bars(axes, tops, widths, _THICK, phase, left=left)
    left += widths
  waiting = shares[:, [*look.PHASES].index('wait')]
  for top, share in zip(tops, waiting, strict=True):
    axes.text(100, top, f'{share:.1f}% waiting', ha='right', va='bottom')
  axes.set(xlim=(0, 100), xlabel="share of the workers' time (%)")
  look.add_legend(figure)
  return figure


@look.styled
def draw_breakdown(
  groups: Mapping[str, Mapping[str, tuple[float, float]]],
) -> Figure:
  """Draws the seconds of an iteration by phase, with a bar for each phase.

  Args:
    groups: Median, and the seconds than which 95 % are shorter, by phase, by
      label.
  """
  values = {
    phase: np.array([group.get(phase, (0.0, 0.0)) for group in groups.values()])
    for phase in look.PHASES
  }
  phases = [phase for phase in values if values[phase].any()]
  figure, axes, tops = _begin_rows(groups, _THIN * len(phases))
  for place, phase in enumerate(phases):
    median, high = values[phase].T
    tops_of = tops + _THIN * place
    _draw_bars(axes, tops_of, median, _THIN, phase)
    rows = tops_of + _THIN / 2
    axes.hlines(rows, median, high, color='black', linewidth=0.8)
    axes.plot(high, rows, '|', color='black', markersize=4)
  axes.set_xlim(left=0)
  axes.locator_params(axis='x', nbins=6)
  axes.set_xlabel('seconds of an iteration: median, line to 95th percentile')
  look.add_legend(figure)
  return figure


@look.styled
def draw_batches(
  workers: Mapping[int, tuple[np.ndarray, np.ndarray]], *, xlabel: str
) -> Figure:
  """Draws the batches of workers against time.

  Of more than 8 workers it draws 8, at equal distances in the order of their
  indices, and says so in the legend.

  Args:
    workers: Times of pushes, seconds, [N], and their examples, [N], by worker.
    xlabel: Label of the axis of times.
  """
  figure = Figure((look.COLUMN, 2.0))
  axes = figure.subplots()
  count = min(len(workers), _LINES)
  picked = np.linspace(0, len(workers) - 1, count).round().astype(int)
  shown = [sorted(workers)[place] for place in picked]
  for index, worker in enumerate(shown):
    times, examples = workers[worker]
    axes.step(
      times,
      examples,
      where='post',
      label=f'worker {worker}',
      markevery=max(len(times) // 6, 1),
      **look.line(index),
    )
  axes.set(xlabel=xlabel, ylabel='worker batch (examples)')
  axes.set_xlim(left=0)
  axes.set_ylim(bottom=0)
  some = f'{count} of {len(workers)} workers' if count < len(workers) else None
  look.add_legend(figure, some)
  return figure


def _begin_rows(
  labels: Iterable[str], height: float
) -> tuple[Figure, Axes, np.ndarray]:
  """Returns axes of which a unit is an inch, with labels above rows of bars.

  Args:
    labels: Label of each row.
    height: Height of the bars of a row, inches.

  Returns:
    The figure, its axes, and the upper ends of the rows' bars, inches, [N].
  """
  texts = [look.wrap(label, 0.72 * look.COLUMN) for label in labels]
  heights = np.array([_LINE * (text.count('\n') + 1) for text in texts])
  bottoms = np.cumsum(heights + height + _GAP)
  tops = bottoms - _GAP - height
  figure = Figure((look.COLUMN, bottoms[-1] + 0.4))
  axes = figure.subplots()
  for top, text in zip(tops, texts, strict=True):
    axes.text(0, top, text, va='bottom')
  axes.set_yticks([])
  axes.grid(visible=False, axis='y')
  axes.set_ylim(bottoms[-1], 0)
  return figure, axes, tops


def _draw_bars(
  axes: Axes,
  tops: np.ndarray,
  widths: np.ndarray,
  height: float,
  phase: str,
  *,
  left: np.ndarray | float = 0.0,
) -> None:
  axes.barh(
    tops + height / 2,
    widths,
    left=left,
    height=0.9 * height,
    color=look.PHASES[phase],
    label=phase,
    hatch=_HATCHES.get(phase),
    edgecolor='white',
    linewidth=0,
  )
