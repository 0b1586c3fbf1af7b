"""Figures with a line for each group of runs: mean and range of its seeds."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import look

_MARKED = 6  # Markers of a line.
_SHOWN = 0.99  # Share of a distribution that is drawn, without the largest.


class Curve(NamedTuple):
  """Something measured against how far a run was.

  Attributes:
    x: Seconds, iterations or examples, [N], never falling.
    y: Values, [N].
  """

  x: np.ndarray
  y: np.ndarray


class Spread(NamedTuple):
  """Seeds of a group, where all of them have values.

  Attributes:
    x: Of any seed, [N]; empty if the seeds have no place in common.
    mean: Mean of the straight lines between the seeds' points, [N].
    low: The lowest of these lines, [N].
    high: The highest of these lines, [N].
  """

  x: np.ndarray
  mean: np.ndarray
  low: np.ndarray
  high: np.ndarray


def spread(seeds: Sequence[Curve]) -> Spread:
  """Returns mean and range of the seeds' curves, where all have values.

  Args:
    seeds: At least one curve, each of at least one point.
  """
  start = max(curve.x[0] for curve in seeds)
  end = min(curve.x[-1] for curve in seeds)
  x = np.unique(np.concatenate([curve.x for curve in seeds]))
  x = x[(x >= start) & (x <= end)]
  values = np.array([np.interp(x, *curve) for curve in seeds])
  return Spread(x, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


@look.styled
def draw_curves(
  groups: Mapping[str, Sequence[Curve]],
  *,
  xlabel: str,
  ylabel: str,
  in_percent: bool = False,
  falls: bool = False,
  from_zero: bool = False,
) -> Figure:
  """Draws the mean of each group's seeds, with a band over their range.

  Args:
    groups: Curves of the seeds, by label.
    xlabel: Label of the horizontal axis.
    ylabel: Label of the vertical axis.
    in_percent: Whether values are shares.  Several curves are shown from the
      lowest of their second halves on.
    falls: Whether lower values are better.  Early ones, many times the late
      ones, are cut off.
    from_zero: Whether the vertical axis begins with 0.
  """
  factor = 100 if in_percent else 1
  figure, axes = _begin(xlabel, f'{ylabel}{" (%)" * in_percent}')
  for index, (label, seeds) in enumerate(groups.items()):
    together = spread(seeds)
    style = look.line(index)
    if not len(together.x):
      for curve in seeds:
        axes.plot(curve.x, factor * curve.y, label=label, **style)
        label = '_'  # One entry of the legend.
      continue
    every = max(len(together.x) // _MARKED, 1)
    first = index * every // max(len(groups), 1)
    axes.plot(
      together.x,
      factor * together.mean,
      label=label,
      markevery=(min(first, len(together.x) - 1), every),
      **style,
    )
    if len(seeds) > 1:
      axes.fill_between(
        together.x,
        factor * together.low,
        factor * together.high,
        color=style['color'],
        alpha=0.2,
        linewidth=0,
      )
  axes.set_xlim(left=0)
  if in_percent:
    floor = 100 * _floor(groups.values())
    axes.set_ylim(floor, min(axes.get_ylim()[1], 100.5))
  elif falls and (top := _ceiling(groups.values())) > 0:
    axes.set_ylim(top=top)
  elif from_zero:
    axes.set_ylim(bottom=0)
  several = any(len(seeds) > 1 for seeds in groups.values())
  look.add_legend(figure, 'mean and range of the seeds' if several else None)
  return figure


@look.styled
def draw_distributions(
  groups: Mapping[str, tuple[np.ndarray, np.ndarray]],
  *,
  xlabel: str,
  ylabel: str,
) -> Figure:
  """Draws for each group which share of its values is no larger.

  Args:
    groups: Distinct values, [N], ascending, and their counts, [N], by label.
    xlabel: Label of the values.
    ylabel: Label of the shares.
  """
  figure, axes = _begin(xlabel, ylabel)
  shares = {
    label: np.cumsum(counts) / np.sum(counts)
    for label, (_, counts) in groups.items()
  }
  largest = max(
    values[np.searchsorted(shares[label], _SHOWN)]
    for label, (values, _) in groups.items()
  )
  is_whole = all(np.all(values % 1 == 0) for values, _ in groups.values())
  largest = max(largest, 1.0 if is_whole else 0.0)
  margin = 0.03 * largest or 0.5
  for index, (label, (values, counts)) in enumerate(groups.items()):
    mean = np.average(values, weights=counts)
    right = max(values[-1], largest + margin)
    axes.step(
      np.concatenate([values[:1], values, [right]]),
      100 * np.concatenate([[0.0], shares[label], [1.0]]),
      where='post',
      label=f'{label} (mean {mean:.3g})',
      markevery=(1, max(len(values) // _MARKED, 1)),
      **look.line(index),
    )
  axes.set_xlim(-margin, largest + margin)
  axes.set_ylim(0, 103)
  axes.locator_params(axis='x', integer=is_whole)
  look.add_legend(figure)
  return figure


@look.styled
def draw_speed_ups(
  groups: Mapping[str, Mapping[int, Sequence[float]]],
) -> Figure:
  """Draws how many times as fast as one worker several are.

  Args:
    groups: Speed-up of each seed by number of workers, by label.
  """
  figure, axes = _begin('workers', 'speed-up over one worker')
  counts = sorted({count for group in groups.values() for count in group})
  for index, (label, group) in enumerate(groups.items()):
    values = [group[count] for count in sorted(group)]
    means = np.array([np.mean(each) for each in values])
    low = means - [min(each) for each in values]
    high = [max(each) for each in values] - means
    axes.errorbar(
      sorted(group),
      means,
      yerr=np.array([low, high]),
      label=label,
      capsize=2,
      **look.line(index),
    )
  axes.plot(counts, counts, color='#999999', linewidth=0.8, label='ideal')
  axes.set_xscale('log', base=2)
  axes.set_yscale('log', base=2)
  for axis in (axes.xaxis, axes.yaxis):
    axis.set_ticks(counts, [str(count) for count in counts])
    axis.set_ticks([], minor=True)
  look.add_legend(figure, 'mean and range of the seeds')
  return figure


def _begin(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
  figure = Figure((look.COLUMN, 2.2))
  axes = figure.subplots()
  axes.set(xlabel=xlabel, ylabel=ylabel)
  return figure, axes


def _ceiling(groups: Collection[Sequence[Curve]]) -> float:
  """Returns an upper limit for the last three quarters of falling curves."""
  late = [
    curve.y[4 * curve.x >= curve.x[-1]] for seeds in groups for curve in seeds
  ]
  return 1.02 * float(np.concatenate([[0.0], *late]).max())


def _floor(groups: Collection[Sequence[Curve]]) -> float:
  """Returns a lower limit of shares; a single group is shown whole."""
  if len(groups) == 1:
    return 0.0
  late = [
    curve.y[2 * curve.x >= curve.x[-1]] for seeds in groups for curve in seeds
  ]
  return max(float(np.concatenate([[1.0], *late]).min()) - 0.02, 0.0)
