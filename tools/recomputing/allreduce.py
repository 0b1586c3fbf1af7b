"""Recomputes allreduce runs from their records.

Each push is recomputed from the version before it.  The pushes of an iteration
are then summed in the order of the executors, after the codec's multi-round
allreduce, if it has one.
"""

import functools
import importlib
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from batching import fixed
from cluster.allreduce.sums.summing import CheckedFilling
from cluster.coordinator import Coordinator
from configs.checks import require
from learning import placement
from learning.learning import Learning
from learning.pool import FLOAT32, Pool
from learning.scaling import Scaling, factor
from outputs import checkpoints
from tools import replay
from tools.reading import records, traffic
from tools.reading.traffic import Generation
from tools.recomputing.sums import Sums
from tools.recomputing.talking import Conversations, Summed, finite_halves
from wire.codec import Wire
from wire.talks import Talks

_ITEM = 4  # Bytes of a float32.
_ROUNDING = 2.0**-23  # Of a float32.


class Comparison(NamedTuple):
  """Difference between the parameters of a run and recomputed ones.

  Attributes:
    apart: Largest absolute difference.
    tolerance: Largest absolute difference that is allowed.
    why: Reason for the tolerance.
  """

  apart: float
  tolerance: float
  why: str


def compared(
  path: pathlib.Path, config: ConfigDict, learned: Learning, wire: Wire
) -> Comparison:
  """Returns the difference between a run's parameters and recomputed ones.

  Args:
    path: Folder of the run.
    config: Config of the run.
    learned: Model and data of the run.
    wire: Codecs of the run.

  Raises:
    ValueError: If the run has no record of how it summed, or no checkpoint;
      says what was expected.
    OSError: If a file of the run cannot be read.
  """
  importlib.import_module(f'sync.{config.sync.name}')  # Its class is in there.
  saved = _saved(path)
  again = _until(path, config, learned, wire, saved['version'])
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


class _Again:
  """Coordinator (coordinator) driven by recorded events, with its learner."""

  finished = False

  def __init__(
    self,
    config: ConfigDict,
    learned: Learning,
    wire: Wire,
    before: '_Again | None',
  ):
    self.exact = before.exact if before else True
    self.learner = (
      before.learner
      if before
      else learned.learner(learned.params, learned.stats)
    )
    if not before:
      self.learner.scaling = learned.scaling
    self._config, self._learned, self._wire = config, learned, wire
    self._talking: Conversations | None = None
    if before and before._talking:
      self._talking = before._talking
      with placement.on_cpu():
        self._talking.begin_again(before._sums)
    self._pool: Pool | None = None
    self._pushed: dict[int, tuple[np.ndarray, int]] = {}
    self._finite = True
    self._before = before
    workers = config.cluster.workers
    self._coordinator = Coordinator(
      scheme=replay.scheme(config.to_dict(), workers),
      batching=fixed.make(
        num_workers=workers, worker_batch=config.batching.worker_batch
      ),
      store=self,
      stream=learned.stream,
      recorder=self,
      milestones=self,
      num_workers=workers,
      ahead=True,
    )
    self._coordinator.attach(release=lambda k: None, wake_at=lambda at: None)

  def __getattr__(self, name: str) -> Any:
    """Returns a function that does nothing, for any method of a recorder."""
    return lambda *args, **named: None

  @property
  def version(self) -> int:
    """Number of updates applied."""
    return self.learner.version

  @property
  def scalings(self) -> list[Scaling]:
    """The loss scale of all workers, if there is one."""
    return [self.learner.scaling] if self.learner.scaling else []

  def form(self, generation: Generation) -> None:
    """Sets the membership epoch (generation) that the workers sum in."""
    planned, wire = generation.planned, self._wire
    route = self._config.route
    lay = functools.partial(
      self._learned.pool,
      bucket_bytes=route.bucket_bytes,
      dtype=wire.push.dtype or FLOAT32,
      multiple=wire.push.multiple,
    )
    self._pool, self.exact = lay(books=0), self.exact and planned is not None
    if planned:
      own_bytes, talks = self._pool.size_bytes, None
      if wire.push.rounds:
        talks = Talks(wire, self._pool.gradient, self._pool.rows, hosted=True)
        rest = self._pool.size - self._pool.gradient
        own_bytes = sum(talks.size_bytes(0)) + _ITEM * rest
      self._pool = lay(books=(planned.size_bytes - own_bytes) // _ITEM)
      if talks and not self._talking:
        self._talking = Conversations(
          talks,
          self._pool,
          bucket_bytes=route.bucket_bytes,
          overlap=route.overlap,
        )
    self._sums = Sums(generation)
    self._gradient = self._learned.streaming(self._pool, overlap=False)

  def tell(self, row: Mapping[str, Any]) -> None:
    """Passes the event of a row of events.jsonl to the coordinator."""
    told, time = row['event'], row['time']
    if told == 'start':
      if self._before:
        self._coordinator.rejoin(self._before._coordinator.state(), time)
      self._coordinator.start(time)
    elif told == 'push':
      self._push(row)
    elif told == 'wake':
      self._coordinator.wake(time)
    elif told == 'join':
      self._coordinator.join(row['worker'], time)
    elif told == 'leave':
      if self._talking:
        self._talking.leave(row['worker'])
      self._coordinator.leave(row['worker'], time, '')

  def _push(self, row: Mapping[str, Any]) -> None:
    index, pool = row['worker'], self._pool
    worker, vector = (
      self._coordinator.workers[index],
      np.zeros(pool.size, np.float32),
    )
    filling = CheckedFilling(pool, vector, lambda number: None, None)
    stats, loss = self._gradient.stream(
      self.learner.params,
      worker.ranges,
      worker=index,
      iteration=worker.iteration,
      into=filling,
      scale=factor(self.learner.scaling),
    )
    finite = filling.finite and bool(np.isfinite(loss))
    self._finite = self._finite and finite
    filling.finish(stats, [0.0] * pool.books(vector).size)
    self._pushed[index] = vector, worker.examples
    self._coordinator.push(
      index,
      row['time'],
      compute_s=row['compute_s'],
      factors=(),
      loss=loss,
      computed=0,
      finite=finite,
    )

  def add(
    self, update: int, worker: int, examples: int, *, finite: bool
  ) -> None:
    """Does nothing: `_push` has stored the push."""

  def commit(self, update: int) -> bool:
    """Applies the sum of the pushes if it is finite; returns whether it did."""
    del update
    pushed, self._pushed = self._pushed, {}
    vectors = {worker: vector for worker, (vector, _) in pushed.items()}
    finite, self._finite = self._finite, True
    if self._talking:
      before = dict(self._talking.states)
      scale = factor(self.learner.scaling)
      with placement.on_cpu():  # As the workers' codecs.
        summed = self._talking(self._sums, vectors, scale=scale)
    else:
      layout = self._pool.ranges, self._pool.dtypes
      total = self._sums(vectors, *layout)
      summed = Summed(total, (), finite_halves(total, *layout))
    if not (finite and summed.finite):
      self.learner.skip()
      if self._talking:
        self._talking.states = before
      return False
    self.learner.apply_pool(
      self._pool,
      summed.vector,
      examples=sum(examples for _, examples in pushed.values()),
      pushes=len(pushed),
      arrived=summed.arrived,
    )
    return True


def _until(
  path: pathlib.Path,
  config: ConfigDict,
  learned: Learning,
  wire: Wire,
  version: int,
) -> _Again:
  """Returns the coordinator after the recorded events up to a version."""
  again, generation = None, None
  for row in records.every(path):
    if row['event'] == 'links':
      if row['did'] == 'forest':
        generation = traffic.generation(row, path)
        if again:
          again.form(generation)
      continue
    drifted = row['event'] == records.DRIFT and row['version'] < version
    expected = 'replicas on like processors, that hold the same bits'
    got = f'worker {row.get("worker")} apart at version {row.get("version")}'
    require(not drifted, f'{path}', expected, got)
    if row['event'] == 'start':
      count, workers = len(row['decision']['release']), config.cluster.workers
      expected = f'{workers} workers at each start, as in manifest.json'
      require(count == workers, f'{path}', expected, count)
      again = _Again(config, learned, wire, again)
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
  directory = path / 'checkpoints'
  steps = checkpoints.steps(directory)
  require(bool(steps), f'{path}', 'a run with a checkpoint', 'none')
  state = checkpoints.read(directory, steps[-1])[checkpoints.COORDINATOR]
  return state['runtime']['store']['learner']
