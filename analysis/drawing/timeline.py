"""Picture of the phases of every worker over time."""

import collections
import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import records
from analysis.records import RunRecord
from outputs.accounting import PHASES

COLORS = dict(
  zip(PHASES, ('#56B4E9', '#0072B2', '#009E73', '#E69F00'), strict=True)
)


def draw(label: str, run: RunRecord) -> Figure:
  """Returns a picture of the middle of one run.

  Args:
    label: Title of the picture.
    run: Run with spans.
  """
  figure = Figure((10, min(max(1.5 + 0.36 * len(run.workers), 2.6), 10)))
  axes = figure.subplots()
  _draw_spans(axes, run)
  if times := [row['time'] for row in run.rows if row['kind'] == 'barrier']:
    across = axes.get_xaxis_transform()
    line: dict[str, Any] = {
      'color': 'black',
      'linewidth': 1,
      'label': 'barrier',
    }
    axes.vlines(times, 0, 1, transform=across, **line)
  workers = run.config['cluster']['workers']
  if len(run.workers) < workers:
    label = f'{label} ({len(run.workers)} of {workers} workers)'
  axes.set(xlim=run.window, xlabel=records.time_label([run]))
  axes.set_title(label, loc='left', fontsize='medium')
  figure.legend(loc='outside right upper', ncols=5)
  return figure


def _draw_spans(axes: Axes, run: RunRecord) -> None:
  """Draws a row per worker, the first on top, clipped to the window."""
  bars = collections.defaultdict(list)
  for span in run.spans:
    start, end = np.clip((span.start, span.end), *run.window)
    bars[span.phase, span.worker].append((start, end - start))
  there = {phase for phase, _ in bars}
  for phase, color in COLORS.items():
    if phase in there:
      axes.broken_barh([], (0, 0), color=color, label=phase)  # For the legend.
  for (phase, worker), extents in bars.items():
    where = run.workers.index(worker) - 0.4, 0.8
    axes.broken_barh(extents, where, color=COLORS[phase], linewidth=0)
  rows = range(0, len(run.workers), math.ceil(len(run.workers) / 16))
  axes.set_yticks(rows, [f'worker {run.workers[row]}' for row in rows])
  axes.set_ylim(len(run.workers) - 0.5, -0.5)
