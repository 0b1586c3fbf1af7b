"""Draws figures of evaluations against time, iterations and examples."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from analysis.drawing import look
from analysis.records import RunRecord
from outputs import figures

# Fields of rows that accuracies are drawn against, and what axes say.
AGAINST = {
  'time': 'time (s)',
  'iterations': 'iterations of all workers',
  'examples': 'examples in updates',
}
_SEEDS = 4  # Labels, at most, of which each seed has a line.


class Curve(NamedTuple):
  """Something measured against how far a run was.

  Attributes:
    times: Seconds, or what else it is against, [N], never falling.
    values: [N].
  """

  times: np.ndarray
  values: np.ndarray


def measured(
  run: RunRecord, figure: str = 'accuracy', against: str = 'time'
) -> Curve | None:
  """Returns a measure of all evaluations of a run; None if it has none.

  Args:
    run: The run.
    figure: Name of the measure.
    against: One of `AGAINST`.
  """
  points = [
    (row[against], row[figure])
    for row in run.rows
    if row.get(figure) is not None
  ]
  return Curve(*np.transpose(points)) if points else None


def median(curves: Sequence[Curve]) -> Curve:
  """Returns the median of the straight lines between the curves' points.

  It stands where all curves do, at the times of any of their points.
  """
  start = max(curve.times[0] for curve in curves)
  end = min(curve.times[-1] for curve in curves)
  times = np.unique(np.concatenate([curve.times for curve in curves]))
  times = times[(times >= start) & (times <= end)]
  values = [np.interp(times, *curve) for curve in curves]
  return Curve(times, np.median(values, axis=0))


def draw(
  curves: Mapping[str, Sequence[Curve]],
  against: str,
  *,
  figure_name: str = 'accuracy',
  falls: bool = False,
  time_label: str = AGAINST['time'],
) -> Figure:
  """Draws the median of the seeds by label, and the seeds of a few labels.

  Args:
    curves: Curves of the seeds, by label.
    against: One of `AGAINST`.
    figure_name: Name of the measure.
    falls: Whether it is better where it is smaller.
    time_label: Label of the axis of times.
  """
  is_share = figures.is_share(figure_name)
  axis_label = f'test {figures.label(figure_name)}{" (%)" * is_share}'
  factor = 100 if is_share else 1
  figure = Figure((9.5, 5))
  axes = figure.subplots()
  medians = {label: median(found) for label, found in curves.items()}
  for index, (label, (times, values)) in enumerate(medians.items()):
    look_ = look.line(index)
    axes.plot(
      times, factor * values, label=look.wrap(label), linewidth=1.8, **look_
    )
    for times, values in curves[label] if len(curves) <= _SEEDS else ():
      color = look_['color']
      axes.plot(times, factor * values, linewidth=0.6, alpha=0.4, color=color)
  along = time_label if against == 'time' else AGAINST[against]
  axes.set(xlabel=along, ylabel=axis_label)
  axes.set_xlim(left=0)
  if is_share:
    axes.set_ylim(_floor(medians.values()), min(axes.get_ylim()[1], 100.5))
  elif falls and (top := _ceiling(medians.values())) > 0:
    axes.set_ylim(top=top)
  axes.grid(alpha=0.3)
  several = any(len(found) > 1 for found in curves.values())
  title = 'median of the seeds' if several else None
  figure.legend(loc='outside right upper', title=title, alignment='left')
  return figure


def _ceiling(medians: Collection[Curve]) -> float:
  """Returns an upper limit for the last three quarters of falling curves.

  Early values are many times the late ones.
  """
  late = [v[4 * t >= t[-1]] for t, v in medians if len(t)]
  return 1.02 * float(np.concatenate([[0.0], *late]).max())


def _floor(medians: Collection[Curve]) -> float:
  """Returns a lower limit of percentages for all second halves of the curves.

  Lower, early accuracies would leave little room for the comparison.  A single
  curve is shown completely.
  """
  if len(medians) == 1:
    return 0.0
  late = [v[2 * t >= t[-1]] for t, v in medians if len(t)]
  least = float(np.concatenate([[1.0], *late]).min())
  return 100 * max(least - 0.02, 0)
