"""Program of an allreduce: which worker sends which chunk to which other one.

The gradient buffer is cut into chunks; each lies in one bucket and travels over
one tree, which `topology.forests.dealing` chooses.  Every worker computes the
same program by itself, by fixed arithmetic in a fixed order.  No sockets here.
"""

import bisect
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np
import xxhash

from cluster.allreduce.executor.membership import Membership
from configs.checks import require
from topology.forests import dealing
from topology.forests.dealing import deal
from topology.forests.trees import Forest, Hop

# Dtypes of numbers on the network; the code of a dtype is its position.
DTYPES = tuple(map(np.dtype, (np.float32, ml_dtypes.bfloat16, np.float16)))
FLOAT32, BFLOAT16, FLOAT16 = range(3)


class TreeRole(NamedTuple):
  """Neighbours of a worker in one tree.

  Attributes:
    parent: Worker that receives its partial sums; None at the root.
    children: Workers whose partial sums it adds to its own, in this order.
    source: Worker that sends it the sum; None at the root.
    sinks: Workers that it sends the sum to.
  """

  parent: int | None
  children: tuple[int, ...]
  source: int | None
  sinks: tuple[int, ...]


class Roles(NamedTuple):
  """Roles of a worker in all trees of a membership's forest.

  Attributes:
    trees: Role in each tree, in the order of the forest; a single one if the
      worker is alone.
    shares: Share of the bytes that each tree carries.
    forest: The forest.
    senders: Workers that send to this worker.
    receivers: Workers that it sends to.
    children: Workers whose partial sums it adds, in any tree.
    fixed_bytes: Size of chunks, if it does not follow from the forest's rate.
    most_bytes: Largest size of a chunk, bytes.
    ahead_bytes: Largest memory of a lane for chunks of one child that cannot
      be added yet.
    lanes: Number of lanes.
  """

  trees: tuple[TreeRole, ...]
  shares: tuple[float, ...]
  forest: Forest
  senders: frozenset[int]
  receivers: frozenset[int]
  children: frozenset[int]
  fixed_bytes: int | None
  most_bytes: int
  ahead_bytes: int
  lanes: int


class Program(NamedTuple):
  """Chunks of a gradient buffer, and a worker's part in the sum of each.

  Attributes:
    roles: Roles of the worker.
    chunk_bytes: Size of chunks, except the last of each bucket.
    starts: First element of each chunk.
    stops: Element after the last of each chunk.
    trees: Number of the tree of each chunk.
    chunk_roles: Role of the worker in that tree.
    sizes: Bytes of each chunk on the network.
    dtypes: Dtype of each chunk on the network: position in `DTYPES`.
    bucket_chunks: First chunk of each bucket, and the one after its last.
    num_received: Number of chunks that come from each sender.
    num_sent: Number of chunks that go to each receiver.
    layout: Hash of everything that has to be equal on all workers, 32 bits.
  """

  roles: Roles
  chunk_bytes: int
  starts: list[int]
  stops: list[int]
  trees: list[int]
  chunk_roles: list[TreeRole]
  sizes: list[int]
  dtypes: list[int]
  bucket_chunks: list[tuple[int, int]]
  num_received: dict[int, int]
  num_sent: dict[int, int]
  layout: int


def find_roles(
  membership: Membership, index: int, *, chunk_bytes: int | None = None
) -> Roles:
  """Returns the roles of a worker in a membership's forest.

  Args:
    membership: The membership, with the worker.
    index: Index of the worker.
    chunk_bytes: Largest size of a chunk, a multiple of 4; None to choose it by
      the forest's rate and the size of each buffer.

  Raises:
    ValueError: If the forest does not span the members.
  """
  members = set(membership.addresses)
  forest = membership.forest
  require(index in members, 'addresses', f'worker {index} among them', members)
  kind = forest.collective
  require(kind == 'allreduce', 'forest.collective', 'allreduce', kind)
  is_alone = len(members) == 1
  trees = [] if is_alone else forest.trees
  require(is_alone or bool(trees), 'forest.trees', 'one or more', 0)
  roles = [TreeRole(None, (), None, ())] if is_alone else []
  for tree in trees:
    up = _find_ends(tree.up, membership.names)
    down = _find_ends(tree.down, membership.names)
    root = membership.names[tree.root]
    _check(members, root, dict(up), len(up))
    _check(members, root, {b: a for a, b in down}, len(down))
    roles.append(
      TreeRole(
        parent=next((b for a, b in up if a == index), None),
        children=tuple(a for a, b in up if b == index),
        source=next((a for a, b in down if b == index), None),
        sinks=tuple(b for a, b in down if a == index),
      )
    )
  children = {worker for role in roles for worker in role.children}
  sources = {role.source for role in roles if role.source is not None}
  parents = {role.parent for role in roles if role.parent is not None}
  sinks = {worker for role in roles for worker in role.sinks}
  lanes = membership.lanes
  most_bytes = chunk_bytes or dealing.most_chunk_bytes(forest)
  return Roles(
    tuple(roles),
    tuple(float(tree.share) for tree in trees) or (1.0,),
    forest,
    frozenset(children | sources),
    frozenset(parents | sinks),
    frozenset(children),
    chunk_bytes,
    most_bytes,
    dealing.ahead_bytes(forest, chunk_bytes=most_bytes, lanes=lanes),
    lanes,
  )


def make_program(
  roles: Roles,
  size: int,
  buckets: Sequence[tuple[int, int]],
  dtypes: Sequence[np.dtype] | None = None,
) -> Program:
  """Returns the program of a worker for a gradient buffer.

  Args:
    roles: Roles of the worker.
    size: Number of elements of the buffer.
    buckets: First element of each bucket and the one after its last: in order,
      all of the buffer.
    dtypes: Dtype of each bucket on the network; None for float32.

  Raises:
    ValueError: If the buckets do not cover the buffer in order, or a dtype is
      not supported.
  """
  dtypes = dtypes or [DTYPES[FLOAT32]] * len(buckets)
  known = f'some of {[*map(str, DTYPES)]}'
  require({*dtypes} <= {*DTYPES}, 'dtypes', known, [*map(str, dtypes)])
  sent_bytes = sum(
    (stop - start) * dtype.itemsize
    for (start, stop), dtype in zip(buckets, dtypes, strict=True)
  )
  chunk_bytes = dealing.chunk_bytes(
    sent_bytes, roles.forest, fixed=roles.fixed_bytes
  )
  starts: list[int] = []
  stops: list[int] = []
  codes: list[int] = []
  bucket_chunks, end = [], 0
  for (start, stop), dtype in zip(buckets, dtypes, strict=True):
    valid = start == end <= stop
    require(valid, 'buckets', f'one from {end} on', (start, stop))
    end, first = stop, len(starts)
    begins = range(start, stop, chunk_bytes // dtype.itemsize)
    starts += begins
    stops += [*begins[1:], stop] if begins else []
    codes += [DTYPES.index(dtype)] * len(begins)
    bucket_chunks.append((first, len(starts)))
  require(end == size, 'buckets', f'the last to end at {size}', end)
  sizes = [
    (stop - start) * DTYPES[code].itemsize
    for start, stop, code in zip(starts, stops, codes, strict=True)
  ]
  trees = deal(roles.shares, sizes)
  hashed = np.array([size, roles.ahead_bytes, *stops, *trees, *codes], np.int64)
  num_received, num_sent = _count_chunks(roles, trees)
  return Program(
    roles,
    chunk_bytes,
    starts,
    stops,
    trees,
    [roles.trees[tree] for tree in trees],
    sizes,
    codes,
    bucket_chunks,
    num_received,
    num_sent,
    layout=xxhash.xxh32_intdigest(hashed.tobytes()),
  )


def divide(program: Program) -> list[Program]:
  """Returns the programs of all lanes, each with its part of the chunks.

  The chunks of each tree are dealt to the lanes in turn, and numbered anew in
  each lane.

  Args:
    program: Program of the whole buffer.
  """
  lanes = program.roles.lanes
  if lanes == 1:
    return [program]
  counts = [0] * len(program.roles.trees)
  chunks: list[list[int]] = [[] for _ in range(lanes)]
  for chunk, tree in enumerate(program.trees):
    chunks[counts[tree] % lanes].append(chunk)
    counts[tree] += 1
  return [_select(program, *each) for each in enumerate(chunks)]


def _select(program: Program, lane: int, chunks: list[int]) -> Program:
  """Returns the program of a lane."""
  trees = [program.trees[chunk] for chunk in chunks]
  num_received, num_sent = _count_chunks(program.roles, trees)
  bounds = [
    (bisect.bisect_left(chunks, first), bisect.bisect_left(chunks, end))
    for first, end in program.bucket_chunks
  ]
  hashed = np.array([program.layout, program.roles.lanes, lane], np.int64)
  return program._replace(
    starts=[program.starts[chunk] for chunk in chunks],
    stops=[program.stops[chunk] for chunk in chunks],
    trees=trees,
    chunk_roles=[program.chunk_roles[chunk] for chunk in chunks],
    sizes=[program.sizes[chunk] for chunk in chunks],
    dtypes=[program.dtypes[chunk] for chunk in chunks],
    bucket_chunks=bounds,
    num_received=num_received,
    num_sent=num_sent,
    layout=xxhash.xxh32_intdigest(hashed.tobytes()),
  )


def _count_chunks(
  roles: Roles, trees: Sequence[int]
) -> tuple[dict[int, int], dict[int, int]]:
  """Returns the numbers of chunks from each sender and to each receiver."""
  counts = np.bincount(trees, minlength=len(roles.trees)).tolist()
  num_received = dict.fromkeys(roles.senders, 0)
  num_sent = dict.fromkeys(roles.receivers, 0)
  for role, count in zip(roles.trees, counts, strict=True):
    for totals, workers in (
      (num_received, (*role.children, role.source)),
      (num_sent, (role.parent, *role.sinks)),
    ):
      for worker in workers:
        if worker is not None:
          totals[worker] += count
  return num_received, num_sent


def _find_ends(
  hops: Sequence[Hop], names: Mapping[str, int]
) -> list[tuple[int, int]]:
  """Returns sender and receiver of each hop, whatever nodes are between."""
  for hop in hops:
    for node in (hop[0], hop[-1]):
      if node not in names:
        require(False, 'names', f'the index of {node!r}', [*names])
  return [(names[hop[0]], names[hop[-1]]) for hop in hops]


def _check(
  members: set[int], root: int, next_hop: Mapping[int, int], hops: int
) -> None:
  """Requires that one hop each leads from all members but the root to it."""
  nodes = {root, *next_hop, *next_hop.values()}
  valid = nodes == members and hops == len(next_hop) == len(members) - 1
  valid = valid and root not in next_hop
  reached = {root}
  for worker in next_hop if valid else ():
    path: list[int] = []
    while worker not in reached and len(path) < len(members):
      path.append(worker)
      worker = next_hop[worker]
    if len(path) == len(members):  # It goes around in a circle.
      valid = False
      break
    reached.update(path)
  if valid:
    return
  expected = f'trees of {sorted(members)}'
  require(valid, 'forest.trees', expected, sorted(next_hop.items()))
