"""Panels of a picture of a cluster: its links and loads, or a tree of hops."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import LinearSegmentedColormap

from analysis.drawing import placing
from topology.clusters.cluster import Cluster, Link
from topology.forests import usage
from topology.forests.trees import Forest, Tree

# Okabe and Ito's colors, which color-blind people can tell apart.
UP, DOWN, BOTTLENECK, ROOT = '#0072B2', '#D55E00', '#E69F00', '#F0E442'
WORKER, SWITCH, LINK = '#FFFFFF', '#D9D9D9', '#6BAED6'
LOAD = LinearSegmentedColormap.from_list(
  'load', ['#C6DBEF', '#6BAED6', '#2171B5', '#08306B']
)
_UNUSED = '#DDDDDD'
_ARROWS = 600  # Most links with an arrow each.
_DENSE = 2000  # Number of links above which they are thin and not in trees.
_RADIUS = 0.24  # Largest radius of a node, where neighbors have distance 1.
_LARGEST, _LEAST = 15.0, 1.0  # Largest and least radius, points.
_LEAST_ROOT = 5.0  # Least diameter of a root, points.
_SMALLEST = 5.0  # Least size of a label, points.
_OUTSIDE = 40  # Most nodes with labels beside them.
_MARGIN = 0.7  # Around the nodes.
_INCH = 72  # Points.
_PLAIN = {'zorder': 5, 'parse_math': False}  # Ids may have any characters.


class Panel(NamedTuple):
  """Axes in which a cluster is drawn.

  Attributes:
    axes: With a unit as long in both directions.
    cluster: Cluster to draw.
    places: Places of its nodes, by `placing.places`.
    points: Points of a unit, 1/72 inch each.
    radius: Radius of a node.
  """

  axes: Axes
  cluster: Cluster
  places: placing.Places
  points: float
  radius: float


def extent(places: placing.Places) -> tuple[np.ndarray, np.ndarray]:
  """Returns where a picture begins and ends, each [2]."""
  points = np.stack([*places.values()])
  return points.min(axis=0) - _MARGIN, points.max(axis=0) + _MARGIN


def on(axes: Axes, cluster: Cluster, places: placing.Places) -> Panel:
  """Returns a panel with the cluster in the middle of the axes.

  Args:
    axes: Without anything in them.
    cluster: Cluster to draw.
    places: Places of its nodes.
  """
  low, high = extent(places)
  box = axes.get_window_extent()
  size = np.array([box.width, box.height])
  unit = min(size / (high - low))
  middle, half = (low + high) / 2, size / unit / 2
  starts, ends = middle - half, middle + half
  axes.set(xlim=(starts[0], ends[0]), ylim=(starts[1], ends[1]))
  points = unit * _INCH / axes.figure.dpi
  radius = max(min(_RADIUS, _LARGEST / points), _LEAST / points)
  return Panel(axes, cluster, places, points, radius)


def draw_cluster(panel: Panel, forest: Forest | None) -> np.ndarray:
  """Draws every link, its load as color and its capacity as width.

  Args:
    panel: Panel of the cluster.
    forest: Forest whose loads and bottleneck are drawn; None for links alone.

  Returns:
    Points of the lines, one per link of the cluster.
  """
  links = panel.cluster.links
  if not links:
    _draw_nodes(panel, None)
    return np.zeros(0)
  widths, lines = _lines(panel)
  marked: list[int] = []
  if forest is None:
    colors = np.tile(matplotlib.colors.to_rgba(LINK), (len(links), 1))
  else:
    used = usage.fractions_used(panel.cluster, forest)
    colors = LOAD([float(part) for part in used.values()])
    slowest = set(usage.bottleneck(panel.cluster, forest))
    if len(slowest) < len(links):  # To mark all of them would say nothing.
      marked = [i for i, ends in enumerate(used) if ends in slowest]
  _add_lines(panel, lines, range(len(links)), colors, widths, 1.0)
  bold = np.maximum(widths, 0.5)
  halo = np.tile(matplotlib.colors.to_rgba(BOTTLENECK), (len(links), 1))
  _add_lines(panel, lines, marked, halo, bold + np.minimum(1.5 * bold, 4), 1.5)
  _add_lines(panel, lines, marked, colors, bold, 1.6)
  if len(links) <= _ARROWS:
    _add_arrows(panel, [(line, 0.66) for line in lines], colors)
  _draw_nodes(panel, None)
  return widths


def draw_links(panel: Panel, colors: Sequence[Any]) -> Sequence[np.ndarray]:
  """Draws every link, its capacity as width; returns the lines, [2, 2] each.

  Args:
    panel: Panel of the cluster.
    colors: Color of each link of the cluster.
  """
  if not panel.cluster.links:
    _draw_nodes(panel, None)
    return ()
  widths, lines = _lines(panel)
  rgba = matplotlib.colors.to_rgba_array(colors)
  _add_lines(panel, lines, range(len(lines)), rgba, widths, 1.0)
  if len(lines) <= _ARROWS:
    _add_arrows(panel, [(line, 0.66) for line in lines], rgba)
  _draw_nodes(panel, None)
  return lines


def _lines(panel: Panel) -> tuple[np.ndarray, list[np.ndarray]]:
  """Returns the widths of the lines of links, points, and the lines."""
  links = panel.cluster.links
  widths = _widths(panel, links)
  apart = (widths.max() / 2 + 1.2) / panel.points
  lines = [_shift(_ends(panel, link.src, link.dst), apart) for link in links]
  return widths, lines


def _add_lines(
  panel: Panel,
  lines: Sequence[np.ndarray],
  chosen: Sequence[int],
  colors: np.ndarray,
  widths: np.ndarray,
  zorder: float,
) -> None:
  panel.axes.add_collection(
    LineCollection(
      [lines[i] for i in chosen],
      colors=colors[chosen],
      linewidths=widths[chosen],
      zorder=zorder,
    )
  )


def _widths(panel: Panel, links: Sequence[Link]) -> np.ndarray:
  """Returns widths of the lines of links, points; they grow with capacity."""
  most = max(0.035 * panel.points, 0.3) if len(links) < _DENSE else 0.15
  capacity = np.array([float(link.GBps) for link in links])
  widths: np.ndarray = 0.35 + 0.65 * np.sqrt(capacity / capacity.max())
  return min(most, 2.6) * widths


def draw_tree(panel: Panel, tree: Tree) -> None:
  """Draws a tree over its cluster, a curve with an arrow per hop.

  Args:
    panel: Panel of the cluster.
    tree: Tree of a forest of the cluster.
  """
  links = panel.cluster.links if len(panel.cluster.links) < _DENSE else ()
  pale = [_ends(panel, link.src, link.dst) for link in links]
  thin = min(0.02 * panel.points, 1.0)
  panel.axes.add_collection(
    LineCollection(pale, colors=_UNUSED, linewidths=thin)
  )
  width = float(np.clip(0.035 * panel.points, 0.5, 1.8))
  apart = (0.5 * width + 0.6) / panel.points
  for hops, color in ((tree.up, UP), (tree.down, DOWN)):
    curves = [_curve(panel, hop, apart) for hop in hops]
    panel.axes.add_collection(
      LineCollection(curves, colors=color, linewidths=width, zorder=2.5)
    )
    _add_arrows(panel, [(curve, 1.0) for curve in curves], color)
  _draw_nodes(panel, tree.root)
  steps = tree.depth
  panel.axes.set_title(
    f'root {_short(tree.root)}\n{float(tree.weight_Bps / 10**9):.4g} GB/s, '
    f'{float(tree.share):.1%} of the bytes, depth {steps}',
    fontsize=9,
    pad=2,
    parse_math=False,
  )


def _ends(panel: Panel, *nodes: str) -> np.ndarray:
  """Returns the line between the rims of the first and last node, [N, 2]."""
  line = np.stack([panel.places[node] for node in nodes])
  for end, inner in ((0, 1), (-1, -2)):
    way = line[inner] - line[end]
    length = max(float(np.linalg.norm(way)), 1e-9)
    line[end] += way * min(panel.radius / length, 0.5)
  return line


def _curve(panel: Panel, hop: Sequence[str], apart: float) -> np.ndarray:
  """Returns a hop as a smooth curve near its switches.

  Corners are cut (Chaikin, 1974), and the curve runs on the right side.
  """
  line = _ends(panel, *hop)
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


def _add_arrows(
  panel: Panel, lines: Iterable[tuple[np.ndarray, float]], color: object
) -> None:
  """Draws a triangle on each line, with its tip at a part of it."""
  size = min(0.13, 7 / panel.points)
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


def _draw_nodes(panel: Panel, root: str | None) -> None:
  """Draws workers as circles and switches as squares, with their ids."""
  size = 2 * panel.radius * panel.points
  edge = float(np.clip(0.02 * panel.points, 0.4, 1.0))
  others = [worker for worker in panel.cluster.workers if worker != root]
  kinds = (
    (others, 'o', WORKER, size, edge),
    (panel.cluster.switches, 's', SWITCH, size, edge),
    ([root] if root else [], 'o', ROOT, max(size, _LEAST_ROOT), 2.5 * edge),
  )
  for nodes, shape, color, across, line in kinds:
    if nodes:
      xs, ys = np.transpose([panel.places[node] for node in nodes])
      look: dict[str, Any] = {
        'edgecolors': 'black',
        'linewidths': line,
        'zorder': 3,
      }
      panel.axes.scatter(xs, ys, s=across**2, c=color, marker=shape, **look)
  _label(panel)


def _label(panel: Panel) -> None:
  """Writes ids into nodes, or beside them, if there is room."""
  longest = max(len(_short(node)) for node in panel.places)
  inside = 2 * panel.radius * panel.points / (0.75 * max(longest, 2))
  if inside >= _SMALLEST:
    for node, (x, y) in panel.places.items():
      text: dict[str, Any] = {'ha': 'center', 'va': 'center', **_PLAIN}
      panel.axes.text(x, y, _short(node), fontsize=min(inside, 10), **text)
  elif longest > 4 and len(panel.places) <= _OUTSIDE:
    middle = sum(panel.axes.get_ylim()) / 2
    for node, (x, y) in panel.places.items():
      away = panel.radius + 2 / panel.points
      where, va = (y + away, 'bottom') if y > middle else (y - away, 'top')
      text = {'ha': 'center', 'va': va, 'fontsize': 6.5, **_PLAIN}
      text['bbox'] = {'pad': 0.5, 'color': 'white', 'alpha': 0.8}
      panel.axes.text(x, where, _short(node), **text)


def _short(node: str) -> str:
  return node if len(node) <= 14 else f'{node[:13]}…'
