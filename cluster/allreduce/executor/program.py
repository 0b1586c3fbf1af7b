"""Who sends what to whom, as the forest of a group has it; no sockets here.

The pool is cut into chunks, each of one range and of one tree, which
`topology.forests.dealing` deals.  Every worker comes to the same program by
itself: fixed arithmetic and fixed orders.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from cluster.allreduce.executor.frames import DTYPES, FLOAT32
from configs.checks import require
from topology.forests import dealing
from topology.forests.dealing import deal, window
from topology.forests.trees import Forest, Hop


class Group(NamedTuple):
  """The workers of a generation.

  Attributes:
    generation: Later ones have larger numbers.
    addresses: Of its members, by worker index: 'host:port' of their executors.
    forest: An allreduce among them.
    names: Worker index by node id of the forest.
  """

  generation: int
  addresses: Mapping[int, str]
  forest: Forest
  names: Mapping[str, int]


class Role(NamedTuple):
  """What a worker is in a tree.

  Attributes:
    parent: Whom it sends its part of a sum to; None at the root.
    children: Whose parts it adds to its own, in this order.
    source: Who sends it the sum; None at the root.
    sinks: Whom it sends the sum to.
  """

  parent: int | None
  children: tuple[int, ...]
  source: int | None
  sinks: tuple[int, ...]


class Roles(NamedTuple):
  """What a worker is in a group.

  Attributes:
    trees: In the order of the forest; one for all if there are no others.
    shares: Of the bytes, per tree.
    senders: Who sends to this worker.
    receivers: Whom it sends to.
    adding: Whose parts it adds.
    window: How many chunks from the lowest whose sum it has not got on it may
      send parts of.
    chunk_bytes: Of a chunk, at most.
  """

  trees: tuple[Role, ...]
  shares: tuple[float, ...]
  senders: frozenset[int]
  receivers: frozenset[int]
  adding: frozenset[int]
  window: int
  chunk_bytes: int


class Program(NamedTuple):
  """What a worker does with a pool.

  Attributes:
    roles: Of the worker.
    starts: First element of each chunk.
    stops: The one after its last.
    trees: Number of its tree.
    parts: What the worker is in that.
    sizes: Bytes of it as it travels.
    dtypes: What its numbers travel as: the place in `frames.DTYPES`.
    chunks: Per range, its first chunk and the one after its last.
    comes: Chunks that come, by sender.
    goes: Chunks that go, by receiver.
    layout: Code of all that has to be the same on all workers, 32 bits.
  """

  roles: Roles
  starts: list[int]
  stops: list[int]
  trees: list[int]
  parts: list[Role]
  sizes: list[int]
  dtypes: list[int]
  chunks: list[tuple[int, int]]
  comes: dict[int, int]
  goes: dict[int, int]
  layout: int


def roles(group: Group, index: int, *, chunk_bytes: int) -> Roles:
  """Returns what a worker is in a group.

  Args:
    group: With the worker.
    index: Of the worker.
    chunk_bytes: Of a chunk, a multiple of 4.

  Raises:
    ValueError: If the forest is none for the members.
  """
  members = set(group.addresses)
  forest = group.forest
  require(index in members, 'addresses', f'worker {index} among them', members)
  kind = forest.collective
  require(kind == 'allreduce', 'forest.collective', 'allreduce', kind)
  alone = len(members) == 1
  trees = [] if alone else forest.trees
  require(alone or bool(trees), 'forest.trees', 'one or more', 0)
  found = [Role(None, (), None, ())] if alone else []
  for tree in trees:
    up, down = _ends(tree.up, group.names), _ends(tree.down, group.names)
    root = group.names[tree.root]
    _check(members, root, dict(up), len(up))
    _check(members, root, {b: a for a, b in down}, len(down))
    found.append(
      Role(
        parent=next((b for a, b in up if a == index), None),
        children=tuple(a for a, b in up if b == index),
        source=next((a for a, b in down if b == index), None),
        sinks=tuple(b for a, b in down if a == index),
      )
    )
  adding = {worker for role in found for worker in role.children}
  sources = {role.source for role in found} - {None}
  parents = {role.parent for role in found} - {None}
  sinks = {worker for role in found for worker in role.sinks}
  return Roles(
    tuple(found),
    tuple(float(tree.share) for tree in trees) or (1.0,),
    frozenset(adding | sources),
    frozenset(parents | sinks),
    frozenset(adding),
    window(forest, chunk_bytes=chunk_bytes),
    chunk_bytes,
  )


def program(
  own: Roles,
  size: int,
  ranges: Sequence[tuple[int, int]],
  dtypes: Sequence[np.dtype] | None = None,
) -> Program:
  """Returns what a worker does with a pool.

  Args:
    own: What it is in its group.
    size: Elements of the pool.
    ranges: First element of each, and the one after its last: one after the
      other, all of the pool.
    dtypes: What the numbers of each travel as; None for float32.

  Raises:
    ValueError: If the ranges do not cover the pool in order, or if numbers
      cannot travel so.
  """
  dtypes = dtypes or [DTYPES[FLOAT32]] * len(ranges)
  known = f'some of {[*map(str, DTYPES)]}'
  require({*dtypes} <= {*DTYPES}, 'dtypes', known, [*map(str, dtypes)])
  sent_bytes = sum(
    (stop - start) * dtype.itemsize
    for (start, stop), dtype in zip(ranges, dtypes, strict=True)
  )
  chunk_bytes = dealing.chunk_bytes(
    sent_bytes, own.shares, most=own.chunk_bytes
  )
  starts: list[int] = []
  stops: list[int] = []
  each: list[int] = []
  chunks, end = [], 0
  for (start, stop), dtype in zip(ranges, dtypes, strict=True):
    valid = start == end <= stop
    require(valid, 'ranges', f'one from {end} on', (start, stop))
    end, first = stop, len(starts)
    begins = range(start, stop, chunk_bytes // dtype.itemsize)
    starts += begins
    stops += [*begins[1:], stop] if begins else []
    each += [DTYPES.index(dtype)] * len(begins)
    chunks.append((first, len(starts)))
  require(end == size, 'ranges', f'the last to end at {size}', end)
  items = [DTYPES[code].itemsize for code in each]
  sizes = np.subtract(stops, starts) * items
  trees = deal(own.shares, sizes)
  code = np.array(
    [size, own.chunk_bytes, own.window, *stops, *trees, *each], np.int64
  )
  counts = np.bincount(trees, minlength=len(own.trees)).tolist()
  comes = dict.fromkeys(own.senders, 0)
  goes = dict.fromkeys(own.receivers, 0)
  for role, count in zip(own.trees, counts, strict=True):
    for totals, workers in (
      (comes, (*role.children, role.source)),
      (goes, (role.parent, *role.sinks)),
    ):
      for worker in workers:
        if worker is not None:
          totals[worker] += count
  return Program(
    own,
    starts,
    stops,
    trees,
    [own.trees[tree] for tree in trees],
    sizes.tolist(),
    each,
    chunks,
    comes,
    goes,
    layout=xxhash.xxh32_intdigest(code.tobytes()),
  )


def _ends(
  hops: Sequence[Hop], names: Mapping[str, int]
) -> list[tuple[int, int]]:
  """Returns who sends and who receives on each hop, whatever is between."""
  for hop in hops:
    for node in (hop[0], hop[-1]):
      require(node in names, 'names', f'the index of {node!r}', [*names])
  return [(names[hop[0]], names[hop[-1]]) for hop in hops]


def _check(
  members: set[int], root: Hashable, before: Mapping[int, int], hops: int
) -> None:
  """Requires that one hop each leads from all members but the root to it."""
  nodes = {root, *before, *before.values()}
  valid = nodes == members and hops == len(before) == len(members) - 1
  for worker in before:
    seen = 0
    while valid and worker != root:
      worker, seen = before.get(worker, root), seen + 1
      valid = seen < len(members)
  expected = f'trees of {sorted(members)}'
  require(valid, 'forest.trees', expected, sorted(before.items()))
