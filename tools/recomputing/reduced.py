"""Computes runs again whose workers have summed among themselves.

Every push is computed from the version before, and those of an iteration are
summed as the executors did: chunk by chunk over the tree that carried it, a
worker's own part first, then those of its children one after the other.
"""

import functools
import importlib
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from batching import fixed
from cluster.distributed.reduced.executor import program
from cluster.lead import Lead
from configs.checks import require
from learning.learning import Learning
from learning.pool import Filling, Pool
from outputs import checkpoints
from tools import replay
from tools.reading import records, traffic
from tools.reading.traffic import Generation, Planned

_ITEM = 4  # Bytes of a float32.
_ROUNDING = 2.0**-23  # Of a float32.


class Comparison(NamedTuple):
  """Parameters of a run beside the same computed again.

  Attributes:
    apart: By how much they differ at most.
    tolerance: By how much they may.
    why: They may.
  """

  apart: float
  tolerance: float
  why: str


def compared(
  path: pathlib.Path, config: ConfigDict, learned: Learning
) -> Comparison:
  """Returns how near a run's parameters are to the same again.

  Args:
    path: Folder of the run.
    config: Of what was learned, and its route.
    learned: What was.

  Raises:
    ValueError: If it is not recorded how it has summed, or there is no
      checkpoint; says what was expected.
    OSError: If the run cannot be read.
  """
  importlib.import_module(f'sync.{config.sync.name}')  # Its class is in there.
  saved = _saved(path)
  again = _until(path, config, learned, saved['version'])
  mine, its = (
    [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    for tree in (again.learner.params, saved['params'])
  )
  pairs = list(zip(mine, its, strict=True))
  apart = max(float(np.abs(a - b).max()) for a, b in pairs)
  if again.exact:
    return Comparison(apart, 0.0, 'sums are in the order of the forests')
  largest = max(float(np.abs(leaf).max()) for leaf in its)
  return Comparison(
    apart,
    _ROUNDING * largest * saved['version'],
    f'XLA sums in an order of its own: a last bit of the largest parameter, '
    f'{largest:.3g}, for each of {saved["version"]} updates',
  )


class Sums:
  """Sums as the executors of a generation have done."""

  def __init__(
    self,
    generation: Generation,
    size: int,
    ranges: Sequence[tuple[int, int]],
  ):
    """Finds out which numbers each tree has carried, and in what order.

    Args:
      generation: Without a forest, it is summed in the order of workers.
      size: Of the pool.
      ranges: Of the pool.
    """
    self._members = tuple(generation.members)
    planned = generation.planned
    self._trees = planned and _trees(planned, self._members, size, ranges)

  def __call__(self, vectors: Mapping[int, np.ndarray]) -> np.ndarray:
    """Returns the sum of vectors, float32 [size] by worker.

    Raises:
      ValueError: If the workers are others.
    """
    got, members = tuple(sorted(vectors)), self._members
    require(got == members, 'pushes', f'those of workers {members}', got)
    if self._trees is None:
      return functools.reduce(np.add, (vectors[worker] for worker in members))
    total = np.empty_like(vectors[members[0]])
    for chosen, root, children in self._trees:
      total[chosen] = _below(root, children, vectors, chosen)
    return total


class _Again:
  """A lead whose events come from a record, its learner, and its journal."""

  finished = False

  def __init__(
    self, config: ConfigDict, learned: Learning, before: '_Again | None'
  ):
    self.exact = before.exact if before else True
    self.learner = (
      before.learner
      if before
      else learned.learner(learned.params, learned.stats)
    )
    self._config, self._learned = config, learned
    self._pool: Pool | None = None
    self._pushed: dict[int, tuple[np.ndarray, int]] = {}
    self._before = before
    workers = config.cluster.workers
    self._lead = Lead(
      scheme=replay.scheme(config.to_dict(), workers),
      batching=fixed.make(
        num_workers=workers, worker_batch=config.batching.worker_batch
      ),
      holder=self,
      stream=learned.stream,
      journal=self,
      num_workers=workers,
      ahead=True,
    )
    self._lead.attach(release=lambda k: None, wake_at=lambda at: None)

  def __getattr__(self, name: str) -> Any:
    """Returns what a journal does, which is nothing."""
    return lambda *args, **named: None

  @property
  def version(self) -> int:
    """Updates applied."""
    return self.learner.version

  def form(self, generation: Generation) -> None:
    """Workers sum as a generation from here on."""
    planned = generation.planned
    lay = functools.partial(
      self._learned.pool, range_bytes=self._config.route.range_bytes
    )
    self._pool, self.exact = lay(books=0), self.exact and planned is not None
    if planned:
      books = planned.size_bytes // _ITEM - self._pool.size
      self._pool = lay(books=books)
    self._sums = Sums(generation, self._pool.size, self._pool.ranges)
    self._gradient = self._learned.streaming(self._pool, overlap=False)

  def tell(self, row: Mapping[str, Any]) -> None:
    """Lets happen what a row says."""
    told, time = row['told'], row['time']
    if told == 'start':
      if self._before:
        self._lead.rejoin(self._before._lead.state(), time)
      self._lead.start(time)
    elif told == 'push':
      self._push(row)
    elif told == 'wake':
      self._lead.wake(time)
    elif told == 'join':
      self._lead.join(row['worker'], time)
    else:
      self._lead.leave(row['worker'], time, '')

  def _push(self, row: Mapping[str, Any]) -> None:
    index, pool = row['worker'], self._pool
    worker, vector = self._lead.workers[index], np.zeros(pool.size, np.float32)
    filling = Filling(pool, vector, lambda number: None)
    stats, loss = self._gradient.stream(
      self.learner.params,
      worker.ranges,
      worker=index,
      iteration=worker.iteration,
      into=filling,
    )
    filling.finish(stats, [0.0] * pool.books(vector).size)
    self._pushed[index] = vector, worker.examples
    self._lead.push(
      index,
      row['time'],
      compute_s=row['compute_s'],
      factors=(),
      loss=loss,
      computed=0,
    )

  def add(
    self, update: int, worker: int, examples: int, *, finite: bool
  ) -> None:
    """Does nothing: the push is there."""

  def commit(self, update: int) -> bool:
    """Applies what was pushed."""
    del update
    pushed, self._pushed = self._pushed, {}
    vectors = {worker: vector for worker, (vector, _) in pushed.items()}
    self.learner.apply_pool(
      self._pool,
      self._sums(vectors),
      examples=sum(examples for _, examples in pushed.values()),
      pushes=len(pushed),
    )
    return True


def _until(
  path: pathlib.Path, config: ConfigDict, learned: Learning, version: int
) -> _Again:
  """Returns who has gone through a run again, up to a version."""
  again, generation = None, None
  for row in records.every(path):
    if row['told'] == 'links':
      if row['did'] == 'forest':
        generation = traffic.generation(row, path)
        if again:
          again.form(generation)
      continue
    if row['told'] == 'start':
      count, workers = len(row['said']['release']), config.cluster.workers
      expected = f'{workers} workers at each start, as in manifest.json'
      require(count == workers, f'{path}', expected, count)
      again = _Again(config, learned, again)
      where = f'{path}/events.jsonl'
      known = generation is not None
      require(known, where, 'how workers sum before the start', generation)
      again.form(generation)
    again.tell(row)
    if again.version == version:
      return again
  got = again.version if again else 'no event'
  raise ValueError(
    f'{path}: expected events up to version {version}, got {got}.'
  )


def _saved(path: pathlib.Path) -> dict[str, Any]:
  """Returns the learner of the newest checkpoint."""
  saved = checkpoints.Checkpoints(
    path / 'checkpoints', every_s=math.inf, every_examples=0, keep=1
  )
  state = saved.restore()
  saved.close()
  require(state is not None, f'{path}', 'a run with a checkpoint', 'none')
  return state['runtime']['holder']['learner']


def _trees(
  planned: Planned,
  members: tuple[int, ...],
  size: int,
  ranges: Sequence[tuple[int, int]],
) -> list[tuple[np.ndarray, int, dict[int, tuple[int, ...]]]]:
  """Returns of each tree its numbers, its root, and whose parts each adds."""
  names = {node: k for node, k in planned.names.items() if k in members}
  group = program.Group(0, dict.fromkeys(members, ''), planned.forest, names)
  roles = {
    worker: program.roles(group, worker, chunk_bytes=planned.chunk_bytes)
    for worker in members
  }
  exact = [np.dtype(np.float32)] * len(ranges)
  dealt = program.program(roles[members[0]], size, ranges, exact)
  chunks = list(zip(dealt.starts, dealt.stops, dealt.trees, strict=True))
  found = []
  for tree in range(len(roles[members[0]].trees)):
    own = [np.arange(start, stop) for start, stop, t in chunks if t == tree]
    of_tree = {worker: roles[worker].trees[tree] for worker in members}
    root = next(w for w, role in of_tree.items() if role.parent is None)
    children = {worker: role.children for worker, role in of_tree.items()}
    chosen = np.concatenate(own) if own else np.zeros(0, int)
    found.append((chosen, root, children))
  return found


def _below(
  worker: int,
  children: Mapping[int, tuple[int, ...]],
  vectors: Mapping[int, np.ndarray],
  chosen: np.ndarray,
) -> np.ndarray:
  """Returns a worker's part of the sum with those of all that send to it."""
  part = vectors[worker][chosen]
  for child in children[worker]:
    np.add(part, _below(child, children, vectors, chosen), out=part)
  return part
