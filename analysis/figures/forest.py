"""Figure of a cluster: loads or traffic of its links, and trees of a forest."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures import look, positions
from topology.bounds import cuts
from topology.clusters.cluster import Cluster, Ends
from topology.forests import usage
from topology.forests.trees import Forest, Tree

UP, DOWN, BOTTLENECK, ROOT = '#0072B2', '#D55E00', '#E69F00', '#F0E442'
_WORKER, _SWITCH, _LINK, _UNUSED = '#FFFFFF', '#D9D9D9', '#6BAED6', '#DDDDDD'
_LOAD = ScalarMappable(
  Normalize(0.0, 1.0),
  LinearSegmentedColormap.from_list(
    'load', ['#C6DBEF', '#6BAED6', '#2171B5', '#08306B']
  ),
)
# Measured over planned rates.
_RATIO = ScalarMappable(
  Normalize(0.0, 2.0),
  LinearSegmentedColormap.from_list(
    'ratio',
    [(0.0, '#D55E00'), (0.35, '#E69F00'), (0.5, '#7F7F7F'), (1.0, '#0072B2')],
  ),
)
_MARGIN = 0.35  # Around the nodes, where neighbors have distance 1.
_RADIUS, _LARGEST, _LEAST = 0.24, 9.0, 1.0  # Of a node; points.
_FONT = 7.0  # Points.
_ARROWS = 600  # Most links with an arrow each.
_DENSE = 2000  # Number of links above which they are thin and not in trees.
_TALLEST = 4.5  # Of a panel, inches.
_WIDE = 12.0  # Size of a cluster from which a figure is as wide as a page.
_HEAD, _ROW, _COLORS, _TITLE = 0.32, 0.15, 0.38, 0.3  # Heights, inches.


class TrafficLink(NamedTuple):
  """Traffic from one node to another.

  Attributes:
    bytes: Bytes that it has carried.
    ratio: Measured over planned rate; None if unknown.
  """

  bytes: int
  ratio: float | None


class _Panel(NamedTuple):
  """Axes with nodes.

  Attributes:
    axes: With a unit as long in both directions.
    places: Positions of the nodes.
    names: Names of the nodes.
    workers: Ids of the workers.
    points: Points of a unit, 1/72 inch each.
    radius: Radius of a node.
  """

  axes: Axes
  places: positions.Positions
  names: Mapping[str, str]
  workers: Sequence[str]
  points: float
  radius: float


@look.styled
def draw_forest(
  cluster: Cluster, forest: Forest | None = None, *, trees: int = 4
) -> Figure:
  """Draws a cluster with the loads of its links, and trees.

  Args:
    cluster: Cluster to draw.
    forest: Forest of the cluster; None to draw the cluster alone.
    trees: Most trees with a panel of their own.
  """
  links = {(src, dst): float(rate) for src, dst, rate in cluster.links}
  colors = np.tile(to_rgba_array(_LINK), (len(links), 1))
  marked: set[Ends] = set()
  if forest is not None and links:
    used = usage.fractions_used(cluster, forest)
    colors = _LOAD.to_rgba(np.array([float(used[ends]) for ends in links]))
    marked = set(usage.bottleneck(cluster, forest))
  handles = _explain_nodes(cluster)
  sizes = dict(sorted(zip(links.values(), _widths(links), strict=True)))
  for rate in dict.fromkeys([*sizes][:1] + [*sizes][-1:]):
    line = Line2D([], [], color=_LINK, linewidth=max(sizes[rate], 0.4))
    line.set_label(f'{rate:.4g} GB/s')
    handles.append(line)
  if forest is not None and links:
    handles.append(_explain_bottleneck(cluster, forest))
  return _draw(
    _describe(cluster, forest),
    positions.find(cluster),
    cluster,
    forest if links else None,
    links=links,
    colors=colors,
    marked=marked if len(marked) < len(links) else (),
    handles=handles,
    scale=(_LOAD, 'load / capacity') if forest is not None and links else None,
    trees=trees,
  )


@look.styled
def draw_traffic(
  traffic: Mapping[Ends, TrafficLink],
  cluster: Cluster,
  forest: Forest,
  *,
  workers: Mapping[str, int],
  note: str,
  trees: int = 4,
) -> Figure:
  """Draws what links have carried, against plan, and trees.

  Args:
    traffic: Traffic by ids of sending and receiving worker.
    cluster: Cluster that the forest was packed for.
    forest: Forest over which workers sum.
    workers: Index of each worker, by id.
    note: Text above the figure.
    trees: Most trees with a panel of their own.
  """
  ratios = [link.ratio for link in traffic.values()]
  colors = _RATIO.to_rgba(np.array([ratio or 0.0 for ratio in ratios]))
  colors[[ratio is None for ratio in ratios]] = to_rgba_array(_UNUSED)
  return _draw(
    note,
    positions.circle(cluster.workers),
    cluster,
    forest,
    links={ends: float(max(link.bytes, 1)) for ends, link in traffic.items()},
    colors=colors,
    names={node: str(worker) for node, worker in workers.items()},
    handles=_explain_nodes(cluster),
    scale=(_RATIO, 'measured / planned rate; wider lines: more bytes'),
    trees=trees,
  )


def _draw(
  note: str,
  places: positions.Positions,
  cluster: Cluster,
  forest: Forest | None,
  *,
  links: Mapping[Ends, float],
  colors: np.ndarray,
  marked: Iterable[Ends] = (),
  names: Mapping[str, str] = {},
  handles: list[Line2D],
  scale: tuple[ScalarMappable, str] | None,
  trees: int,
) -> Figure:
  """Draws, from top to bottom: note, nodes and links, colors, legend, trees.

  Args:
    note: Text above.
    places: Positions of the nodes in the large panel.
    cluster: Cluster of the trees.
    forest: Forest; None for no trees.
    links: Sizes of the links in the large panel, which widths show.
    colors: Color of each link, [N, 4].
    marked: Links with a halo.
    names: Names of nodes; others have their ids.
    handles: Entries of the legend.
    scale: Colors of the links, and what they mean; None for no scale.
    trees: Most trees with a panel.
  """
  every = sorted(
    forest.trees if forest else (), key=lambda tree: -tree.weight_Bps
  )[:trees]
  if every:
    handles = handles + _explain_tree(every[0])
  of_trees = positions.find(cluster) if every else places
  widest = max(_extent(places)[0], _extent(of_trees)[0])
  width = look.PAGE if widest > _WIDE else look.COLUMN
  columns = min(len(every), 4 if width > look.COLUMN else 2) or 1
  big, small = _height(places, width), _height(of_trees, width / columns)
  legend = _ROW * math.ceil(len(handles) / (2 if width == look.COLUMN else 4))
  rows = math.ceil(len(every) / columns)
  note = look.wrap(note, width)
  head = _ROW * (note.count('\n') + 1)
  total = head + big + (_COLORS if scale else 0) + legend + 0.1
  total += rows * (small + _TITLE)
  figure = Figure((width, total))
  figure.set_layout_engine('none')  # Boxes are given in inches.
  figure.text(0.05 / width, 1 - 0.03 / total, note, va='top')
  top = total - head - big
  names = {node: _short(names.get(node, node)) for node in cluster.nodes}
  axes = _axes(figure, 0, top, width, big)
  panel = _panel(axes, places, names, cluster.workers)
  _draw_links(panel, links, colors, marked)
  if scale:
    top -= _COLORS
    bar = figure.add_axes(
      _part(figure, 0.2 * width, top + 0.28, 0.6 * width, 0.07)
    )
    drawn = figure.colorbar(scale[0], cax=bar, orientation='horizontal')
    drawn.set_label(scale[1], labelpad=1)
    if drawn.solids is not None:
      drawn.solids.set_rasterized(False)  # Pages without images show vectors.
    highest = scale[0].norm.vmax or 1.0
    ticks = np.linspace(0, highest, 5)
    bar.set_xticks(ticks, [f'{tick:.0%}' for tick in ticks])
    bar.tick_params(length=2, pad=1)
    bar.grid(visible=False)
  figure.legend(
    handles=handles,
    loc='upper center',
    bbox_to_anchor=(0.5, top / total),
    ncols=2 if width == look.COLUMN else 4,
  )
  top -= legend + 0.1
  for place, tree in enumerate(every):
    row, column = divmod(place, columns)
    bottom = top - (row + 1) * (small + _TITLE)
    left, across = column * width / columns, width / columns
    axes = _axes(figure, left, bottom, across, small)
    panel = _panel(axes, of_trees, names, cluster.workers)
    _draw_tree(panel, cluster, tree)
  return figure


def _extent(places: positions.Positions) -> np.ndarray:
  """Returns width and height of the nodes with a margin, [2]."""
  points = np.stack([*places.values()])
  size: np.ndarray = np.ptp(points, axis=0) + 2 * _MARGIN
  return size


def _height(places: positions.Positions, width: float) -> float:
  """Returns the height of a panel, inches."""
  across, up = _extent(places)
  return float(np.clip(width * up / across, 0.5, min(width, _TALLEST)))


def _axes(
  figure: Figure, left: float, bottom: float, width: float, height: float
) -> Axes:
  axes = figure.add_axes(_part(figure, left, bottom, width, height))
  axes.set_axis_off()
  return axes


def _part(
  figure: Figure, left: float, bottom: float, width: float, height: float
) -> tuple[float, float, float, float]:
  """Returns a box of inches in parts of the figure."""
  full, total = map(float, figure.get_size_inches())
  return left / full, bottom / total, width / full, height / total


def _panel(
  axes: Axes,
  places: positions.Positions,
  names: Mapping[str, str],
  workers: Sequence[str],
) -> _Panel:
  """Returns a panel with the nodes in the middle of the axes."""
  points = np.stack([*places.values()])
  box = axes.get_window_extent()
  size = np.array([box.width, box.height])
  unit = min(size / _extent(places))
  middle = (points.min(axis=0) + points.max(axis=0)) / 2
  (left, low), (right, high) = (
    middle - size / unit / 2,
    middle + size / unit / 2,
  )
  axes.set(xlim=(left, right), ylim=(low, high))
  of_unit = float(72 * unit / axes.figure.dpi)
  radius = max(min(_RADIUS, _LARGEST / of_unit), _LEAST / of_unit)
  return _Panel(axes, places, names, workers, of_unit, radius)


def _draw_links(
  panel: _Panel,
  links: Mapping[Ends, float],
  colors: np.ndarray,
  marked: Iterable[Ends],
) -> None:
  if links:
    widths = _widths(links)
    apart = (widths.max() / 2 + 0.8) / panel.points
    lines = [_shift(_between(panel, ends), apart) for ends in links]
    halos = [k for k, ends in enumerate(links) if ends in set(marked)]
    for chosen, shades, extra, zorder in (
      (range(len(lines)), colors, 0.0, 1.0),
      (halos, np.tile(to_rgba_array(BOTTLENECK), (len(lines), 1)), 2.0, 1.5),
      (halos, colors, 0.0, 1.6),
    ):
      panel.axes.add_collection(
        LineCollection(
          [lines[k] for k in chosen],
          colors=shades[[*chosen]],
          linewidths=widths[[*chosen]] + extra,
          zorder=zorder,
        )
      )
    if len(lines) <= _ARROWS:
      _draw_arrows(panel, [(line, 0.66) for line in lines], colors)
  _draw_nodes(panel, None)


def _widths(links: Mapping[Ends, float]) -> np.ndarray:
  """Returns widths of the lines of links, points; they grow with size."""
  sizes = np.array([*links.values()])
  most = 1.6 if len(links) < 200 else 0.8 if len(links) < _DENSE else 0.15
  if not len(sizes):
    return sizes
  widths: np.ndarray = most * (0.3 + 0.7 * np.sqrt(sizes / sizes.max()))
  return widths


def _draw_tree(panel: _Panel, cluster: Cluster, tree: Tree) -> None:
  """Draws a tree over its cluster, a curve with an arrow for each hop."""
  links = cluster.links if len(cluster.links) < _DENSE else ()
  pale = [_between(panel, (link.src, link.dst)) for link in links]
  panel.axes.add_collection(
    LineCollection(pale, colors=_UNUSED, linewidths=0.4)
  )
  for hops, color, style in (
    (tree.up, UP, '-'),
    (tree.down, DOWN, (0, (3, 1))),
  ):
    curves = [_curve(panel, hop, 1.0 / panel.points) for hop in hops]
    panel.axes.add_collection(
      LineCollection(
        curves, colors=color, linewidths=0.9, linestyles=[style], zorder=2.5
      )
    )
    _draw_arrows(panel, [(curve, 1.0) for curve in curves], color)
  _draw_nodes(panel, tree.root)
  rate = float(tree.weight_Bps)
  name, unit = look.choose_unit(rate)
  panel.axes.set_title(
    f'root {panel.names[tree.root]}, {float(tree.share):.1%} of bytes\n'
    f'{rate / unit:.3g} {name}, depth {tree.depth}',
    pad=2,
    parse_math=False,
  )


def _between(panel: _Panel, nodes: Sequence[str]) -> np.ndarray:
  """Returns the line between the rims of the first and last node, [N, 2]."""
  line = np.stack([panel.places[node] for node in nodes])
  for end, inner in ((0, 1), (-1, -2)):
    way = line[inner] - line[end]
    length = max(float(np.linalg.norm(way)), 1e-9)
    line[end] += way * min(panel.radius / length, 0.5)
  return line


def _curve(panel: _Panel, hop: Sequence[str], apart: float) -> np.ndarray:
  """Returns a hop as a line on its right side, smooth near switches.

  Corners are cut (Chaikin, 1974).
  """
  line = _between(panel, hop)
  for _ in range(4 if len(hop) > 2 else 0):
    before, after = line[:-1], line[1:]
    cut = np.stack([0.75 * before + 0.25 * after, 0.25 * before + 0.75 * after])
    inner = cut.transpose(1, 0, 2).reshape(-1, 2)
    line = np.concatenate([line[:1], inner[1:-1], line[-1:]])
  return _shift(line, apart)


def _shift(line: np.ndarray, apart: float) -> np.ndarray:
  """Returns a line moved to its right side."""
  way = np.gradient(line, axis=0)
  length = np.maximum(np.linalg.norm(way, axis=1, keepdims=True), 1e-9)
  right = np.stack([way[:, 1], -way[:, 0]], axis=1) / length
  result: np.ndarray = line + apart * right
  return result


def _draw_arrows(
  panel: _Panel, lines: Iterable[tuple[np.ndarray, float]], color: Any
) -> None:
  """Draws a triangle on each line, with its tip at a part of it."""
  size = min(0.16, 4 / panel.points)
  triangles = []
  for line, part in lines:
    tip = line[0] + part * (line[-1] - line[0]) if len(line) == 2 else line[-1]
    way = line[-1] - line[-2]
    way = size * way / max(float(np.linalg.norm(way)), 1e-9)
    side = np.array([way[1], -way[0]]) / 2.4
    triangles.append([tip, tip - way + side, tip - way - side])
  panel.axes.add_collection(
    PolyCollection(triangles, facecolors=color, edgecolors='none', zorder=2.6)
  )


def _draw_nodes(panel: _Panel, root: str | None) -> None:
  """Draws workers as circles and switches as squares, with ids that fit."""
  size = 2 * panel.radius * panel.points
  workers = set(panel.workers)
  for node, (x, y) in panel.places.items():
    is_root = node == root
    color = ROOT if is_root else _WORKER if node in workers else _SWITCH
    panel.axes.plot(
      x,
      y,
      'o' if node in workers else 's',
      color=color,
      markeredgecolor='black',
      markeredgewidth=1.2 if is_root else 0.5,
      markersize=max(size, 4.0) if is_root else size,
      zorder=3,
    )
  for node, (x, y) in panel.places.items():
    name = panel.names[node]
    if size >= 0.7 * _FONT * max(len(name), 1.6):
      panel.axes.text(
        x,
        y,
        name,
        ha='center',
        va='center_baseline',
        zorder=5,
        parse_math=False,
      )


def _short(node: str) -> str:
  return node if len(node) <= 12 else f'{node[:11]}…'


def _describe(cluster: Cluster, forest: Forest | None) -> str:
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
    f'{forest.collective} over {size}: {float(rate):.4g} GB/s, {gap} the '
    f'bound of {float(bound):.4g} GB/s; {len(forest.trees)} trees'
  )


def _explain_nodes(cluster: Cluster) -> list[Line2D]:
  handles = [_mark('o', _WORKER, 'worker')]
  if cluster.switches:
    handles.append(_mark('s', _SWITCH, 'switch'))
  return handles


def _explain_tree(tree: Tree) -> list[Line2D]:
  handles = [_mark('o', ROOT, 'root of a tree')]
  if tree.up:
    handles.append(Line2D([], [], color=UP, label='sums, to the root'))
  if tree.down:
    down: dict[str, Any] = {'color': DOWN, 'linestyle': (0, (3, 1))}
    handles.append(Line2D([], [], label='results, from the root', **down))
  return handles


def _explain_bottleneck(cluster: Cluster, forest: Forest) -> Line2D:
  if len(usage.bottleneck(cluster, forest)) == len(cluster.links):
    return Line2D([], [], color='none', label='bottleneck: all links')
  is_cut = isinstance(forest.certificate, cuts.Cut)
  label = 'bottleneck: slowest cut' if is_cut else 'bottleneck: full links'
  return Line2D([], [], color=BOTTLENECK, linewidth=3, label=label)


def _mark(shape: str, color: str, label: str) -> Line2D:
  return Line2D(
    [],
    [],
    marker=shape,
    color='none',
    markerfacecolor=color,
    markeredgecolor='black',
    markersize=5,
    label=label,
  )
