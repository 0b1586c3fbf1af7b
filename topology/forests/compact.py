"""Compact form of a forest, for messages: hops are runs in one list of hops.

Trees of regular forests share their hops, in almost the same order: a ring of n
workers has n trees of 2 (n - 1) hops, but n different hops.  The list has each
hop once, in the order of its first use, and a tree names the runs of the list
that it consists of: two or three in a ring.
"""

import dataclasses
import itertools
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from topology.clusters.cluster import Cluster
from topology.forests import export
from topology.forests.trees import Forest, Hop


@dataclasses.dataclass(frozen=True)
class CompactForest:
  """Hops of a forest, and the runs of them that form its trees.

  Attributes:
    hops: Each hop once, in the order of its first use.
    up: Of each tree, ends of runs in `hops`: first, last + 1, first, ...
    down: Ends of the runs away from the root, in the same form.
  """

  hops: Sequence[Hop]
  up: Sequence[Sequence[int]]
  down: Sequence[Sequence[int]]


def compress(forest: Forest) -> CompactForest:
  """Returns the compact form of a forest.

  O(hops), in C for hops that are shared in the same order.
  """
  hops: list[Hop] = []
  place_of: dict[Hop, int] = {}
  up = [_find_runs(tree.up, hops, place_of) for tree in forest.trees]
  down = [_find_runs(tree.down, hops, place_of) for tree in forest.trees]
  return CompactForest(hops, up, down)


def sum_over_hops(forest: Forest, amounts: Iterable[int]) -> dict[Hop, int]:
  """Returns the amount that each hop carries.

  Args:
    amounts: Amount that each tree carries over each of its hops.
  """
  form = compress(forest)
  changes = [0] * (len(form.hops) + 1)  # From a hop to the next.
  for amount, up, down in zip(amounts, form.up, form.down, strict=True):
    for runs in (up, down):
      for number, end in enumerate(runs):
        changes[end] += -amount if number % 2 else amount
  return dict(zip(form.hops, itertools.accumulate(changes[:-1]), strict=True))


def to_json(cluster: Cluster, forest: Forest) -> dict[str, Any]:
  """Returns a sound forest and its cluster as plain data, for `from_json`.

  They have the fields of `export.to_json`, and `hops`; `up` and `down` of trees
  are ends of runs.
  """
  bare = dataclasses.replace(
    forest,
    trees=tuple(
      dataclasses.replace(tree, up=[], down=[]) for tree in forest.trees
    ),
  )
  content, form = export.to_json(cluster, bare), compress(forest)
  for row, up, down in zip(content['trees'], form.up, form.down, strict=True):
    row['up'], row['down'] = up, down
  return {**content, 'hops': form.hops}


def from_json(data: Any) -> tuple[Cluster, Forest]:
  """Returns the cluster and the forest that plain data describe.

  Raises:
    ValueError: If a run lies outside the list of hops, if a direction of a tree
      has a hop twice, or as `export.from_json`; names the field.
  """
  hops = data.get('hops') if isinstance(data, Mapping) else data
  if not isinstance(hops, list):
    raise ValueError(f'hops: expected a list, got {reprlib.repr(hops)}.')
  content = {key: value for key, value in data.items() if key != 'hops'}
  try:
    content['trees'] = [
      {
        **row,
        'up': _expand(row['up'], hops),
        'down': _expand(row['down'], hops),
      }
      for row in content['trees']
    ]
  except (KeyError, TypeError, AttributeError) as error:
    raise ValueError(
      f'trees: expected rows with runs of hops, got another form: {error!r}.'
    ) from error
  return export.from_json(content)


def _find_runs(
  hops: Sequence[Hop], table: list[Hop], place_of: dict[Hop, int]
) -> list[int]:
  """Returns the runs of a list of hops; adds new ones to the table."""
  runs: list[int] = []
  at = 0
  while at < len(hops):
    start = place_of.get(hops[at])
    if start is None:
      start = place_of[hops[at]] = len(table)
      table.append(hops[at])
      size = 1
    else:
      size = _count_equal(hops, at, table, start)
    if runs and runs[-1] == start:
      runs[-1] += size
    else:
      runs += start, start + size
    at += size
  return runs


def _count_equal(
  hops: Sequence[Hop], at: int, table: Sequence[Hop], start: int
) -> int:
  """Returns the number of hops that are the same in both lists, at least 1."""
  # Compares slices of twice the size, and then of half, so that Python's loops
  # take O(log n).
  equal, step = 1, 1
  most = min(len(hops) - at, len(table) - start)
  is_growing = True
  while step and equal < most:
    size = min(step, most - equal)
    one = hops[at + equal : at + equal + size]
    if one == table[start + equal : start + equal + size]:
      equal += size
    else:
      is_growing = False
    step = 2 * step if is_growing else step // 2
  return equal


def _expand(runs: Iterable[Any], hops: Sequence[Any]) -> list[Any]:
  """Returns the hops of some runs, each at most once."""
  ends = list(runs)
  expanded: list[Any] = []
  if len(ends) % 2:
    raise ValueError(f'trees: expected pairs of ends, got {len(ends)} ends.')
  for first, last in zip(ends[::2], ends[1::2], strict=True):
    if not (type(first) is type(last) is int and 0 <= first < last):
      raise ValueError(f'trees: expected ends of a run, got {first}, {last}.')
    if max(last, len(expanded) + last - first) > len(hops):
      raise ValueError(
        f'trees: expected each of {len(hops)} hops at most once, got '
        f'{first} to {last} after {len(expanded)} hops.'
      )
    expanded += hops[first:last]
  return expanded
