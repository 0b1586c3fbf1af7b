"""Figure of the measured rates of links against plan."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from analysis.figures import look


@look.styled
def draw_links(
  names: Sequence[str],
  measured_Bps: Sequence[float],
  planned_Bps: Sequence[float],
  *,
  count: int,
) -> Figure:
  """Draws a bar for each link, and a mark at its planned rate.

  Args:
    names: Names of the links that are shown, from top to bottom.
    measured_Bps: Their rates while bytes were in transit.
    planned_Bps: Their planned rates.
    count: Number of links of the run.
  """
  most = max(*measured_Bps, *planned_Bps)
  name, unit = look.choose_unit(most)
  measured, planned = (
    np.array(measured_Bps) / unit,
    np.array(planned_Bps) / unit,
  )
  rows = np.arange(len(names))
  figure = Figure((look.COLUMN, 0.17 * len(names) + 0.75))
  axes = figure.subplots()
  axes.barh(rows, measured, height=0.62, color=look.COLORS[5], label='measured')
  axes.plot(
    planned, rows, '|', color='black', markersize=8, label='planned', mew=1.4
  )
  for row, ratio in enumerate(measured / planned):
    end = max(measured[row], planned[row])
    axes.annotate(
      f'{ratio:.0%}',
      (end, row),
      xytext=(4, 0),  # Browsers drop spaces at the beginning of texts.
      textcoords='offset points',
      va='center',
    )
  axes.set_yticks(rows, names)
  slowest = f', {len(names)} slowest of {count}' if len(names) < count else ''
  axes.set_ylabel(f'link{slowest}')
  axes.set_xlabel(f'rate while bytes were in transit ({name})')
  axes.set_xlim(0, 1.17 * most / unit)
  axes.set_ylim(len(names) - 0.4, -0.6)
  axes.grid(visible=False, axis='y')
  look.add_legend(figure)
  return figure
