"""Pictures of clusters, forests, and the traffic of allreduce runs."""

import contextlib
import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.drawing import panels, placing
from analysis.drawing import traffic as drawing
from analysis.traffic import MembershipEpoch
from topology.bounds import cuts
from topology.clusters.cluster import Cluster
from topology.forests import usage
from topology.forests.trees import Forest, Tree

_Box = tuple[float, float, float, float]  # Left, bottom, width, height: inches.


def _style() -> contextlib.AbstractContextManager[None]:
  """Returns the style of figures whose axes have fixed positions."""
  return matplotlib.rc_context(
    {'figure.dpi': 130, 'font.size': 9, 'figure.constrained_layout.use': False}
  )


def draw_run(epoch: MembershipEpoch, *, trees: int = 4) -> Figure:
  """Returns the picture of the traffic of links and of the trees.

  Args:
    epoch: Membership epoch with a known forest.
    trees: Largest number of panels of single trees.
  """
  planned = epoch.plan
  if planned is None:
    raise ValueError('epoch: expected one with a forest, got none.')
  every = sorted(planned.forest.trees, key=lambda t: t.weight_Bps, reverse=True)
  heaviest, places = every[:trees], placing.places(planned.cluster)
  big, band, width = 5.6, 0.6, (2 * 5.6 + 0.6) / 4
  low, high = panels.extent(places)
  size = high - low
  small = min(width * size[1] / size[0], width) + 0.45
  rows = math.ceil(len(heaviest) / 4)
  total = 0.7 + big + band + rows * small
  with _style():
    figure = Figure((2 * big + 0.8, total))
    head = {'x': 0.02, 'y': 0.99, 'ha': 'left', 'va': 'top', 'fontsize': 10}
    figure.suptitle(_title_of_run(epoch), **head)
    top = total - 0.7 - big
    drawing.draw_graph(_axes(figure, (0.1, top, big, big)), epoch)
    matrix = figure.add_axes(
      _part(figure, (big + 0.7, top + 0.5, big - 0.6, big - 0.9))
    )
    drawing.draw_matrix(matrix, epoch)
    _add_ratios(_axes(figure, (0.0, top - band, 2 * big + 0.8, band)))
    for k, tree in enumerate(heaviest):
      bottom = top - band - (k // 4 + 1) * small
      box = (0.1 + k % 4 * width, bottom, width - 0.1, small - 0.45)
      axes = _axes(figure, box)
      panels.draw_tree(panels.on(axes, planned.cluster, places), tree)
  return figure


def _title_of_run(epoch: MembershipEpoch) -> str:
  planned, links = epoch.plan, epoch.sum_links()
  ratios = [link.ratio for link in links.values() if link.ratio is not None]
  slowest = f', the slowest {min(ratios):.0%} of plan' if ratios else ''
  rates = (
    ''
    if planned and planned.has_rates
    else ('; planned are equal links, as fast as the fastest has been')
  )
  return (
    f'{epoch.iterations} iterations of {len(epoch.members)} workers; '
    f'number of trees: {len(planned.forest.trees) if planned else 0}\n'
    f'{len(links)} links{slowest}{rates}'
  )


def _add_ratios(band: Axes) -> None:
  """Adds a band with the legend of colors."""
  inches = _width(band)
  bar = band.inset_axes((0.4 / inches, 0.62, 2.4 / inches, 0.2))
  _draw_colors(bar, drawing.RATIO)
  bar.set_xticks([0, 0.5, 1, 1.5, 2], ['0', '50 %', '100 %', '150 %', '200 %'])
  bar.tick_params(labelsize=7)
  text = 'measured / planned rate.  Wider lines: more bytes.'
  band.text(3.1 / inches, 0.62, text, fontsize=8, va='center')


def _draw_colors(bar: Axes, scale: ScalarMappable) -> None:
  """Draws a colorbar as vectors: a page without images shows it, too."""
  colors = bar.figure.colorbar(scale, cax=bar, orientation='horizontal')
  if colors.solids is not None:
    colors.solids.set_rasterized(False)


def draw(
  cluster: Cluster, forest: Forest | None = None, *, trees: int = 4
) -> Figure:
  """Returns the picture.

  Args:
    cluster: Cluster to draw.
    forest: Forest of the cluster, or None to draw the cluster alone.
    trees: Panels of single trees, at most.
  """
  heaviest = sorted(
    forest.trees if forest else (), key=lambda t: t.weight_Bps, reverse=True
  )[:trees]
  places = placing.places(cluster)
  low, high = panels.extent(places)
  with _style():
    figure, boxes = _layout(high - low, len(heaviest))
    head = {'x': 0.02, 'y': 0.99, 'ha': 'left', 'va': 'top', 'fontsize': 10}
    figure.suptitle(_title(cluster, forest), **head)
    whole, band, *others = (_axes(figure, box) for box in boxes)
    widths = panels.draw_cluster(panels.on(whole, cluster, places), forest)
    for tree, axes in zip(heaviest, others, strict=True):
      panels.draw_tree(panels.on(axes, cluster, places), tree)
    if cluster.links:
      _add_legends(band, cluster, widths, forest, heaviest)
  return figure


def _title(cluster: Cluster, forest: Forest | None) -> str:
  counts = (
    (len(cluster.workers), 'worker', 's'),
    (len(cluster.switches), 'switch', 'es'),
    (len(cluster.links), 'link', 's'),
  )
  size = ', '.join(
    f'{n} {name}{plural if n > 1 else ""}' for n, name, plural in counts if n
  )
  if forest is None or forest.rate_Bps is None or forest.bound_Bps is None:
    return size
  rate, bound = forest.rate_Bps / 10**9, forest.bound_Bps / 10**9
  gap = f'{float(forest.gap):.2%} below' if forest.gap else 'which is'
  return (
    f'{forest.collective} over {size}\n{float(rate):.4g} GB/s, {gap} the bound '
    f'of {float(bound):.4g} GB/s; number of trees: {len(forest.trees)}'
  )


def _layout(size: np.ndarray, trees: int) -> tuple[Figure, list[_Box]]:
  """The figure, and where the cluster, the legends and the trees are.

  All panels beside each other, or in rows if they are wide.
  """
  width, height = size
  top, legend = 0.6, 0.75
  if width > 1.6 * height:
    full = min(14.0, max(10.0, 1.1 * width))
    big = min(full * height / width, 5.5)
    columns = min(trees, 2)
    each = full / max(columns, 1)
    small = min(each * height / width, 4.0) + 0.45
    lines = math.ceil(trees / 2)
    total = top + big + legend + lines * small + (0.35 if trees else 0)
    boxes = [
      (0.0, total - top - big, full, big),
      (0.0, total - top - big - legend, full, legend),
    ]
    for k in range(trees):
      bottom = total - top - big - legend - (k // 2 + 1) * small
      left = k % 2 * each + 0.1
      boxes.append((left, bottom, each - 0.2, small - 0.45))
    return Figure((full, total)), boxes
  big = 6.6
  lines = max(math.ceil(math.sqrt(trees)), 1)
  columns = math.ceil(trees / lines)
  small = big / max(lines, 1.4)
  total = top + big + legend
  boxes = [(0.0, legend, big, big), (0.0, 0.0, big + columns * small, legend)]
  for k in range(trees):
    bottom = legend + (big + lines * small) / 2 - (k // columns + 1) * small
    boxes.append((big + k % columns * small, bottom, small, small - 0.45))
  return Figure((big + columns * small, total)), boxes


def _width(band: Axes) -> float:
  """Returns the width of axes, inches."""
  figure = band.get_figure(root=True)
  if figure is None:
    raise ValueError('band: expected axes of a figure, got others.')
  return float(band.get_position().width * figure.get_size_inches()[0])


def _axes(figure: Figure, box: _Box) -> Axes:
  axes = figure.add_axes(_part(figure, box))
  axes.set_axis_off()
  return axes


def _part(figure: Figure, box: _Box) -> _Box:
  """Returns a box in parts of the figure."""
  width, height = map(float, figure.get_size_inches())
  left, bottom, across, up = box
  return left / width, bottom / height, across / width, up / height


def _add_legends(
  band: Axes,
  cluster: Cluster,
  widths: np.ndarray,
  forest: Forest | None,
  trees: Sequence[Tree],
) -> None:
  """Adds a band with the legend of colors, widths and shapes."""
  handles = [_mark('o', panels.WORKER, 'worker')]
  if cluster.switches:
    handles.append(_mark('s', panels.SWITCH, 'switch'))
  capacity = [float(link.GBps) for link in cluster.links]
  for k in sorted({int(np.argmin(capacity)), int(np.argmax(capacity))}):
    line = Line2D([], [], color=panels.LINK, linewidth=max(widths[k], 0.6))
    line.set_label(f'{capacity[k]:.4g} GB/s')
    handles.append(line)
  if forest:
    handles.append(_bottleneck(cluster, forest))
  if trees:
    handles.append(_mark('o', panels.ROOT, 'root of a tree'))
    stages = (
      (trees[0].up, panels.UP, 'up: sums, to the root'),
      (trees[0].down, panels.DOWN, 'down: results, from the root'),
    )
    for hops, color, label in stages:
      if hops:
        handles.append(Line2D([], [], color=color, linewidth=2, label=label))
  left = 0.0
  if forest:
    inches = _width(band)
    left = 1.9 / inches
    bar = band.inset_axes((0.25 / inches, 0.62, 1.4 / inches, 0.16))
    _draw_colors(bar, ScalarMappable(cmap=panels.LOAD))
    bar.set_xticks([0, 0.5, 1], ['0', '50 %', '100 %'], fontsize=7)
    bar.set_xlabel('load / capacity', fontsize=7.5, labelpad=1)
  band.legend(
    handles=handles,
    loc='center left',
    bbox_to_anchor=(left, 0.5),
    ncols=math.ceil(len(handles) / 2),
    fontsize=7.5,
    frameon=False,
    columnspacing=1.2,
  )


def _bottleneck(cluster: Cluster, forest: Forest) -> Line2D:
  cut = isinstance(forest.certificate, cuts.Cut)
  if len(usage.bottleneck(cluster, forest)) == len(cluster.links):
    return Line2D([], [], color='none', label='bottleneck: all links')
  label = 'bottleneck: slowest cut' if cut else 'bottleneck: full links'
  return Line2D([], [], color=panels.BOTTLENECK, linewidth=5, label=label)


def _mark(shape: str, color: str, label: str) -> Line2D:
  return Line2D(
    [],
    [],
    marker=shape,
    color='none',
    markerfacecolor=color,
    markeredgecolor='black',
    markersize=8,
    label=label,
  )
