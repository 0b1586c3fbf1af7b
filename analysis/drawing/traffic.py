"""Pictures of planned and measured rates of links of an allreduce run."""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from analysis import traffic
from analysis.drawing import panels, placing, timeline
from analysis.records import RunRecord
from analysis.traffic import Ends, Link, MembershipEpoch
from topology.clusters import cluster as clusters

# Colors of measured over planned rates, from 0 to 2.
RATIO = ScalarMappable(
  Normalize(0.0, 2.0),
  LinearSegmentedColormap.from_list(
    'ratio',
    [(0.0, '#D55E00'), (0.35, '#E69F00'), (0.5, '#7F7F7F'), (1.0, '#0072B2')],
  ),
)
_LABELLED = 30  # Largest number of links with ratios beside them.
_WITH_RATES = 10  # Largest number of workers with rates in the matrix.
_BARS = 16  # Links with a bar.
_ASIDE = 11.0  # Points from a line to its ratio.
_NONE = '#DDDDDD'


def rgba(ratio: float) -> np.ndarray:
  """Returns the color of a ratio, float [4]."""
  color: np.ndarray = RATIO.to_rgba(np.array([ratio]))[0]
  return color


def draw_graph(axes: Axes, epoch: MembershipEpoch) -> None:
  """Draws workers on a circle, and the traffic between them.

  Args:
    axes: Empty axes.
    epoch: Membership epoch with its traffic.
  """
  links = epoch.sum_links()
  ids = [str(worker) for worker in epoch.members]
  pairs = [
    (str(src), str(dst), Fraction(max(link.bytes, 1)))
    for (src, dst), link in links.items()
  ]
  cluster = clusters.from_json(
    {
      'nodes': [{'id': each, 'worker': True} for each in ids],
      'links': [
        {'src': src, 'dst': dst, 'GBps': str(rate)} for src, dst, rate in pairs
      ],
    }
  )
  panel = panels.on(axes, cluster, placing.circle(ids))
  ratios = [link.ratio for link in links.values()]
  colors = [_NONE if r is None else rgba(r) for r in ratios]
  lines = panels.draw_links(panel, colors)
  if len(links) > _LABELLED:
    return
  halo = [patheffects.withStroke(linewidth=2, foreground='white')]
  for line, ratio, color in zip(lines, ratios, colors, strict=True):
    way = line[-1] - line[0]
    aside = np.array([way[1], -way[0]]) / np.linalg.norm(way)
    # Lines cross in the middle.
    x, y = line[0] + 0.3 * way + _ASIDE * aside / panel.points
    text = axes.text(x, y, _percent(ratio), ha='center', va='center')
    text.set(color=color, fontsize=7.5, zorder=4, path_effects=halo)


def draw_matrix(axes: Axes, epoch: MembershipEpoch) -> None:
  """Draws a field for each pair: measured over planned rates.

  Args:
    axes: Empty axes.
    epoch: Membership epoch with its traffic.
  """
  links, members = epoch.sum_links(), epoch.members
  place = {worker: row for row, worker in enumerate(members)}
  fields = np.ones((len(members), len(members), 4))
  for (src, dst), link in links.items():
    if link.ratio is not None:
      color = np.array(rgba(link.ratio))
      fields[place[src], place[dst]] = 0.45 * color + 0.55  # Text is readable.
  # Vectors: a page without images shows them, too.
  edges = np.arange(len(members) + 1) - 0.5
  axes.pcolormesh(edges, edges, fields)
  axes.set_aspect('equal')
  axes.invert_yaxis()
  name, unit = traffic.choose_unit(links.values())
  for (src, dst), link in links.items():
    if len(members) <= _WITH_RATES:
      size = min(9.0, 56 / len(members))
      where = place[dst], place[src]
      measured = '?' if link.Bps is None else f'{link.Bps / unit:.3g}'
      text = f'{measured}\nof {link.planned_Bps / unit:.3g}'
      axes.text(*where, text, ha='center', va='center', fontsize=size)
  ticks = range(0, len(members), max(len(members) // 16, 1))
  names = [str(members[tick]) for tick in ticks]
  axes.set_xticks(ticks, names)
  axes.set_yticks(ticks, names)
  axes.set(xlabel='to worker', ylabel='from worker')
  axes.tick_params(length=0)
  axes.spines[:].set_visible(False)
  axes.set_title(f'{name}, measured of planned', fontsize=9)


def draw(label: str, run: RunRecord, epoch: MembershipEpoch) -> Figure:
  """Returns a picture of the slowest links, and of iterations.

  Args:
    label: Title of the picture.
    run: Run with spans.
    epoch: Membership epoch with its traffic.
  """
  bars = traffic.slowest_links(epoch.sum_links(), _BARS)
  figure = Figure((10, 2.6 + 0.24 * len(bars)))
  if not bars:
    _draw_iterations(figure.subplots(), run)
  else:
    heights = {'height_ratios': [1.0 + 0.24 * len(bars), 1.9]}
    upper, lower = figure.subplots(2, 1, gridspec_kw=heights)
    _draw_bars(upper, bars)
    _draw_iterations(lower, run)
    more = len(epoch.sum_links()) - len(bars)
    label += f', the {len(bars)} slowest links against plan' if more > 0 else ''
  figure.axes[0].set_title(label, loc='left', fontsize='medium')
  return figure


def _draw_bars(axes: Axes, bars: Sequence[tuple[Ends, Link]]) -> None:
  rows = np.arange(len(bars))
  name, unit = traffic.choose_unit(link for _, link in bars)
  measured = [(link.Bps or 0.0) / unit for _, link in bars]
  planned = [link.planned_Bps / unit for _, link in bars]
  colors = [rgba(link.ratio or 0.0) for _, link in bars]
  axes.barh(rows, measured, height=0.6, color=colors, label='measured')
  marks: dict[str, Any] = {
    'color': 'black',
    'marker': '|',
    's': 130,
    'zorder': 3,
  }
  axes.scatter(planned, rows, label='planned', **marks)
  for row, (_, link) in enumerate(bars):
    end = max(measured[row], planned[row])
    text = f'  {_percent(link.ratio)}'
    axes.text(end, row, text, va='center', fontsize='small')
  axes.set_yticks(rows, [f'{src} to {dst}' for (src, dst), _ in bars])
  axes.set(xlabel=f'rate while bytes were in transit ({name})')
  axes.set_xlim(0, 1.12 * max(*measured, *planned))
  axes.set_ylim(len(bars) - 0.4, -0.6)
  axes.legend(loc='lower right', bbox_to_anchor=(1.0, 1.0), ncols=2)


def _draw_iterations(axes: Axes, run: RunRecord) -> None:
  """Draws the mean phases of workers in each iteration of the window."""
  ends = [row['time'] for row in run.rows if row['kind'] == 'barrier']
  pairs = [
    (start, end)
    for start, end in itertools.pairwise(ends)
    if start >= run.window[0] and end <= run.window[1]
  ]
  bottom = np.zeros(len(pairs))
  for phase, color in timeline.COLORS.items():
    spans = [span for span in run.spans if span.phase == phase]
    heights = np.array(
      [
        sum(
          max(min(span.end, end) - max(span.start, start), 0.0)
          for span in spans
        )
        for start, end in pairs
      ]
    ) / max(len(run.workers), 1)
    if heights.any():
      look: dict[str, Any] = {'bottom': bottom, 'color': color, 'width': 0.8}
      axes.bar(range(len(pairs)), heights, label=_NAMES[phase], **look)
      bottom += heights
  axes.set(ylabel='seconds')
  first = sum(end <= run.window[0] for end in ends)
  axes.set_xticks(
    range(len(pairs)), [str(first + k + 1) for k in range(len(pairs))]
  )
  axes.set_xlabel('iteration, in the middle of the run; means over workers')
  axes.set_ylim(0, 1.25 * max(bottom, default=1.0))
  axes.legend(loc='upper right', ncols=4, fontsize='small')


_NAMES = {
  'pull': 'pull',
  'compute': 'compute',
  'wait': 'wait for others to compute',
  'push': 'exposed communication',
}


def _percent(ratio: float | None) -> str:
  return '' if ratio is None else f'{ratio:.0%}'
