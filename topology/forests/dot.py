"""Clusters and forests as pictures for Graphviz, in the DOT language."""

import itertools
from collections.abc import Mapping

from topology.clusters.cluster import Cluster, Ends
from topology.forests import trees, usage

# Okabe and Ito's colors, which color-blind people can tell apart.
_UP, _DOWN, _BOTTLENECK, _UNUSED = '#0072B2', '#D55E00', '#CC79A7', '#BBBBBB'
_Styles = dict[Ends, dict[str, str]]  # Styles of links.


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
    cluster: That of the forest.
    forest: Of which loads are shown, if given.
    tree: The place of a tree in the forest, or None for all together.

  Raises:
    ValueError: If the forest has no such tree.
  """
  if tree is not None:
    count = len(forest.trees) if forest else 0
    if not 0 <= tree < count:
      raise ValueError(f'tree: expected one of {count} trees, got {tree}.')
  root, styles = None, _capacities(cluster)
  if forest is not None and tree is None:
    styles = _loads(cluster, forest)
  elif forest is not None and tree is not None:
    root, styles = forest.trees[tree].root, _hops(cluster, forest.trees[tree])
  lines = [
    'digraph cluster {',
    '  node [fontname="sans-serif"];',
    '  edge [fontname="sans-serif", fontsize=10];',
  ]
  for node in cluster.nodes:
    style = {'shape': 'ellipse' if node in cluster.rank else 'box'}
    style |= {'peripheries': '2'} if node == root else {}
    lines.append(f'  {_quoted(node)} [{_text(style)}];')
  for (src, dst), style in styles.items():
    lines.append(f'  {_quoted(src)} -> {_quoted(dst)} [{_text(style)}];')
  return '\n'.join([*lines, '}', ''])


def _capacities(cluster: Cluster) -> _Styles:
  return {(a, b): {'label': f'{float(c):.4g}'} for a, b, c in cluster.links}


def _loads(cluster: Cluster, forest: trees.Forest) -> _Styles:
  used, styles = usage.fractions_used(cluster, forest), {}
  slowest = set(usage.bottleneck(cluster, forest))
  for src, dst, GBps in cluster.links:
    load = used[src, dst] * GBps
    style = {'label': f'{float(load):.4g}/{float(GBps):.4g}'}
    if (src, dst) in slowest:
      style.update(color=_BOTTLENECK, penwidth='3')
    styles[src, dst] = style
  return styles


def _hops(cluster: Cluster, tree: trees.Tree) -> _Styles:
  found: _Styles = {(src, dst): {} for src, dst, _ in cluster.links}
  for stage, hops, color in (('up', tree.up, _UP), ('down', tree.down, _DOWN)):
    numbers: dict[Ends, list[str]] = {}
    for number, hop in enumerate(hops, start=1):
      for ends in itertools.pairwise(hop):
        numbers.setdefault(ends, []).append(f'{number}')
    for ends, taken in numbers.items():
      text, style = f'{stage} {",".join(taken)}', found[ends]
      label = f'{style["label"]} {text}' if style else text
      mixed = f'{style["color"]}:{color}' if style else color
      found[ends] = {'label': label, 'color': mixed}
  return {ends: style or {'color': _UNUSED} for ends, style in found.items()}


def _text(style: Mapping[str, str]) -> str:
  return ', '.join(f'{key}={_quoted(text)}' for key, text in style.items())


def _quoted(text: str) -> str:
  escaped = text.replace('\\', '\\\\').replace('"', '\\"')
  return f'"{escaped}"'
