"""Clusters and forests as pictures for Graphviz, in the DOT language."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from topology.clusters.cluster import Cluster, Ends
from topology.forests import trees, usage

# Okabe and Ito's colors, which color-blind people can tell apart.
_UP, _DOWN, _BOTTLENECK, _UNUSED = '#0072B2', '#D55E00', '#CC79A7', '#BBBBBB'


def to_dot(
  cluster: Cluster,
  forest: trees.Forest | None = None,
  *,
  tree: int | None = None,
) -> str:
  """Returns a digraph with workers as ellipses and switches as boxes.

  Labels of links are GB/s: the capacity alone, load/capacity if there is a
  forest, whose bottleneck, as `usage.bottleneck` has it, is then bold and
  purple.  With one tree only, labels are the numbers of its hops up and down,
  in the order of their execution from 1 on; links that hops up take are blue,
  down orange, both two lines, others pale.

  Args:
    cluster: Workers, switches and links.
    forest: Of this cluster, or None.
    tree: The place of a tree in the forest, or None for all together.

  Raises:
    ValueError: If the forest has no such tree.
  """
  if tree is not None:
    count = len(forest.trees) if forest else 0
    if not 0 <= tree < count:
      raise ValueError(f'tree: expected one of {count} trees, got {tree}.')
  if forest is None:
    edges = _capacities(cluster)
  elif tree is None:
    edges = _loads(cluster, forest)
  else:
    edges = _hops(cluster, forest.trees[tree])
  root = forest.trees[tree].root if forest and tree is not None else None
  lines = [
    'digraph cluster {',
    '  node [fontname="sans-serif"];',
    '  edge [fontname="sans-serif", fontsize=10];',
    *(f'  {line}' for line in _nodes(cluster, root)),
    *(f'  {_quoted(a)} -> {_quoted(b)} [{_text(s)}];' for a, b, s in edges),
    '}',
  ]
  return '\n'.join(lines) + '\n'


def _nodes(cluster: Cluster, root: str | None) -> Iterator[str]:
  for node in cluster.nodes:
    style = {'shape': 'ellipse' if node in cluster.rank else 'box'}
    if node == root:
      style['peripheries'] = '2'
    yield f'{_quoted(node)} [{_text(style)}];'


_Edges = Iterator[tuple[str, str, dict[str, str]]]


def _capacities(cluster: Cluster) -> _Edges:
  for src, dst, GBps in cluster.links:
    yield src, dst, {'label': f'{float(GBps):.4g}'}


def _loads(cluster: Cluster, forest: trees.Forest) -> _Edges:
  used = usage.fractions_used(cluster, forest)
  slowest = set(usage.bottleneck(cluster, forest))
  for src, dst, GBps in cluster.links:
    load = used[src, dst] * GBps
    style = {'label': f'{float(load):.4g}/{float(GBps):.4g}'}
    if (src, dst) in slowest:
      style.update(color=_BOTTLENECK, penwidth='3')
    yield src, dst, style


def _hops(cluster: Cluster, tree: trees.Tree) -> _Edges:
  up, down = _numbers(tree.up), _numbers(tree.down)
  for src, dst, _ in cluster.links:
    told, colors = [], []
    stages = (('up', up, _UP), ('down', down, _DOWN))
    for stage, numbers, color in stages:
      if (src, dst) in numbers:
        told.append(f'{stage} {",".join(map(str, numbers[src, dst]))}')
        colors.append(color)
    style = {'label': ' '.join(told), 'color': ':'.join(colors)}
    yield src, dst, style if told else {'color': _UNUSED}


def _numbers(hops: Sequence[trees.Hop]) -> dict[Ends, list[int]]:
  """The hops that take each link, from 1 on."""
  numbers: dict[Ends, list[int]] = {}
  for number, hop in enumerate(hops, start=1):
    for ends in itertools.pairwise(hop):
      numbers.setdefault(ends, []).append(number)
  return numbers


def _text(style: Mapping[str, str]) -> str:
  return ', '.join(f'{key}={_quoted(text)}' for key, text in style.items())


def _quoted(text: str) -> str:
  escaped = text.replace('\\', '\\\\').replace('"', '\\"')
  return f'"{escaped}"'
