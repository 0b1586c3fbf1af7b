"""Recomputes allreduce runs from their records.

Each push is recomputed from the version before it.  The pushes of an iteration
are then summed in the order of the executors, after the codec's multi-round
allreduce, if it has one.
"""

import functools
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from ml_collections import ConfigDict

import analysis
from analysis import recorded_configs, runs, traffic
from analysis.traffic import MembershipEpoch
from batching import fixed
from cluster.allreduce.local_steps import FragmentReplicaSteps, ReplicaSteps
from cluster.allreduce.sums.host import CheckedFiller
from cluster.coordinator import Coordinator
from configs import sections
from configs.checks import require
from configs.sections import iteration_steps
from learning import placement
from learning.fragment_steps import FragmentSteps
from learning.iteration import Iteration
from learning.layout import FLOAT32, Layout
from learning.learning import (
  Learner,
  Learning,
  ParameterStore,
  Streaming,
)
from learning.scaling import Scaling, factor
from outputs import checkpoints
from tests.support.recomputing import states
from tests.support.recomputing.multi_round import (
  RecomputedAllreduce,
  ReducedPool,
  is_finite,
)
from tests.support.recomputing.silent_recorder import (
  silent_milestones,
  silent_recorder,
)
from tests.support.recomputing.sums import Sums
from wire.codec import Wire
from wire.multi_round import MultiRoundAllreduce

_ITEM = 4  # Bytes of a float32.
_ROUNDING = 2.0**-23  # Relative spacing of float32 numbers.


class Comparison(NamedTuple):
  """Difference between the parameters of a run and recomputed ones.

  Attributes:
    difference: Largest absolute difference.
    tolerance: Largest allowed absolute difference.
    reason: Reason for the tolerance.
  """

  difference: float
  tolerance: float
  reason: str


def compare(
  path: pathlib.Path, config: ConfigDict, learned: Learning, wire: Wire
) -> Comparison:
  """Returns the difference between a run's parameters and recomputed ones.

  Args:
    path: Folder of the run.
    config: Config of the run.
    learned: Model and data of the run.
    wire: Codecs of the run.

  Raises:
    ValueError: If the run has no record of its sums, or no checkpoint; states
      the expectation.
    OSError: If a file of the run cannot be read.
  """
  sections.load_part('sync', config.sync.name)  # Its class is in there.
  saved = _read_learner(path)
  again = _until(path, config, learned, wire, saved['version'])
  recomputed, original = (
    [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    for tree in (again.learner.params, saved['params'])
  )
  pairs = list(zip(recomputed, original, strict=True))
  difference = max(float(np.abs(a - b).max()) for a, b in pairs)
  if again.exact:
    return Comparison(difference, 0.0, 'sums are in the order of the forests')
  largest = max(float(np.abs(leaf).max()) for leaf in original)
  return Comparison(
    difference,
    _ROUNDING * largest * saved['version'],
    f'XLA chooses the order of sums: a last bit of the largest parameter, '
    f'{largest:.3g}, for each of {saved["version"]} updates',
  )


class _RecomputedRun:
  """Coordinator driven by recorded events, with its learner.

  Attributes:
    exact: True if sums are in the order of the run's forests.
    num_workers: Number of workers since the last start.
    learner: Learner whose updates are recomputed.
  """

  finished = False
  exact: bool
  learner: Learner
  _sums: Sums
  _layouts: Sequence[Layout]  # Of each fragment; one without these.

  def __init__(
    self,
    config: ConfigDict,
    learned: Learning,
    wire: Wire,
    before: '_RecomputedRun | None',
    num_workers: int,
  ):
    self.num_workers = num_workers
    self.exact = before.exact if before else True
    self.learner = (
      before.learner
      if before
      else learned.make_learner(learned.params, learned.stats)
    )
    if not before:
      self.learner.scaling = learned.scaling
    self._config, self._learned, self._wire = config, learned, wire
    self._multi_round: RecomputedAllreduce | None = None
    if before and before._multi_round:
      self._multi_round = before._multi_round
      with placement.on_cpu():
        self._multi_round.restart(before._sums)
    # States of inner optimizers of workers, and of workers that have left.
    self._states: dict[int, Any] = before._states if before else {}
    self._left: dict[int, Any] = {}
    self._pushed: dict[int, tuple[np.ndarray, int, float]] = {}
    self._finite = True
    self._before = before
    self._coordinator = Coordinator(
      scheme=recorded_configs.make_scheme(config.to_dict(), num_workers),
      batching=fixed.make(
        num_workers=num_workers,
        worker_batch=config.batching.worker_batch * iteration_steps(config),
      ),
      store=cast(ParameterStore, self),  # Is never evaluated or saved.
      stream=learned.stream,
      recorder=silent_recorder(),
      milestones=silent_milestones(),
      num_workers=num_workers,
      ahead=True,
    )
    self._coordinator.attach(release=lambda k: None, wake_at=lambda at: None)

  @property
  def version(self) -> int:
    """Number of updates applied."""
    return self.learner.version

  @property
  def scalings(self) -> list[Scaling]:
    """The loss scale of all workers, if there is one."""
    return [self.learner.scaling] if self.learner.scaling else []

  def form(self, epoch: MembershipEpoch) -> None:
    """Sets the membership epoch in which the workers sum."""
    planned, wire = epoch.plan, self._wire
    route, count = self._config.route, 1
    if self._learned.fragments:
      count = self._learned.fragments.count
    lay = functools.partial(
      self._learned.layout,
      bucket_bytes=route.bucket_bytes,
      dtype=wire.push.dtype or FLOAT32,
      multiple=wire.push.padding,
    )
    self._layouts = [lay(step_statistics=0, fragment=k) for k in range(count)]
    self.exact = self.exact and planned is not None
    if planned:
      own_bytes = max(layout.size_bytes for layout in self._layouts)
      multi_round = None
      if wire.push.allreduce:
        multi_round = MultiRoundAllreduce(
          wire,
          self._layout.gradient_size,
          self._layout.matrices(),
          uses_numpy=True,
        )
        rest = self._layout.size - self._layout.gradient_size
        own_bytes = sum(multi_round.size_bytes(0)) + _ITEM * rest
      numbers = (planned.size_bytes - own_bytes) // _ITEM
      self._layouts = [
        lay(step_statistics=numbers, fragment=k) for k in range(count)
      ]
      if multi_round and not self._multi_round:
        self._multi_round = RecomputedAllreduce(
          multi_round,
          self._layout,
          bucket_bytes=route.bucket_bytes,
          overlap=route.overlap,
        )
    self._sums = Sums(epoch)
    self._gradient = self._learned.streaming(self._layout, overlap=False)
    self._steps = (
      FragmentReplicaSteps(cast(FragmentSteps, self._learned.pushes))
      if self._learned.fragments
      else ReplicaSteps(self._learned.pushes)
    )

  @property
  def _layout(self) -> Layout:
    """Layout of the next sum."""
    return self._layouts[self.learner.version % len(self._layouts)]

  def replay(self, row: Mapping[str, Any], absent: Collection[int]) -> None:
    """Passes the event of a row of events.jsonl to the coordinator.

    Args:
      row: The row.
      absent: Workers that were not there at a start.
    """
    event, time = row['event'], row['time']
    if event == 'start':
      if self._before:
        self._coordinator.rejoin(self._before._coordinator.state(), time)
      self._coordinator.start(time, absent)
    elif event == 'push':
      self._push(row)
    elif event == 'forgot':
      self._left[row['worker']] = self._states.pop(row['worker'], None)
    elif event == 'recalled':
      if row['worker'] in self._left:
        self._states[row['worker']] = self._left.pop(row['worker'])
    elif event == 'wake':
      self._coordinator.wake(time)
    elif event == 'join':
      self._coordinator.join(row['worker'], time)
    elif event == 'leave':
      if self._multi_round:
        self._multi_round.leave(row['worker'])
      self._coordinator.leave(row['worker'], time, '')

  def _push(self, row: Mapping[str, Any]) -> None:
    index, layout = row['worker'], self._layout
    worker, vector = (
      self._coordinator.workers[index],
      np.zeros(layout.size, np.float32),
    )
    filler = CheckedFiller(layout, vector, lambda number: None)
    gradient: Streaming = self._gradient
    rate = None
    if self._config.batching.local_steps > 1:
      rate = self._begin_steps(index)
      gradient = self._steps
    stats, loss = gradient.stream(
      self.learner.params,
      Iteration(
        worker.ranges,
        worker=index,
        number=worker.iteration,
        scale=factor(self.learner.scaling),
        rate=rate,
        version=self.learner.version,
      ),
      filler.put,
    )
    if gradient is self._steps:
      self._states[index] = self._steps.state
    finite = filler.finite and bool(np.isfinite(np.asarray(loss)))
    self._finite = self._finite and finite
    filler.finish(stats, [0.0] * layout.step_statistics(vector).size)
    weight = gradient.weigh(worker.ranges)
    self._pushed[index] = vector, worker.examples, weight
    self._coordinator.push(
      index,
      row['time'],
      compute_s=row['compute_s'],
      factors=(),
      loss=loss,
      computed=0,
      weight=weight,
      finite=finite,
    )

  def _begin_steps(self, index: int) -> float | None:
    """Prepares the local steps of a worker; returns their rate."""
    learned, learner = self._learned, self.learner
    state = self._states.get(index)
    if state is None:
      state = learned.pushes.init(learned.params)
    self._steps.state = state
    if learned.schedule is None:
      return None
    return learned.schedule(examples=learner.examples, updates=learner.version)

  def add(
    self,
    update: int,
    worker: int,
    examples: int,
    *,
    weight: float | None = None,
    staleness_weight: float = 1.0,
    finite: bool = True,
  ) -> None:
    """Ignores the push, because `_push` has stored it."""

  def commit(self, update: int) -> bool:
    """Applies the sum of the pushes if it is finite; returns whether it did."""
    del update
    pushed, self._pushed = self._pushed, {}
    vectors = {worker: vector for worker, (vector, *_) in pushed.items()}
    finite, self._finite = self._finite, True
    if self._multi_round:
      before = dict(self._multi_round.states)
      scale = factor(self.learner.scaling)
      with placement.on_cpu():  # As the workers' codecs.
        reduced = self._multi_round(self._sums, vectors, scale=scale)
    else:
      buckets = self._layout.buckets
      parts = (
        [bucket.bounds for bucket in buckets],
        [bucket.dtype for bucket in buckets],
      )
      total = self._sums(vectors, *parts)
      reduced = ReducedPool(total, (), is_finite(total, *parts))
    if not (finite and reduced.finite):
      self.learner.skip()
      if self._multi_round:
        self._multi_round.states = before
      return False
    fragments, arrived = self._learned.fragments, reduced.arrived
    if fragments:
      number = fragments.at(self.learner.version)
      arrived = fragments.mask(self.learner.params, number)
    payload = self._layout.payload(reduced.vector)
    self.learner.apply(
      payload._replace(arrived=arrived),
      examples=sum(examples for _, examples, _ in pushed.values()),
      weight=sum(weight for *_, weight in pushed.values()),
      pushes=len(pushed),
    )
    return True


def _until(
  path: pathlib.Path,
  config: ConfigDict,
  learned: Learning,
  wire: Wire,
  version: int,
) -> _RecomputedRun:
  """Returns the run after the recorded events up to a version."""
  again: _RecomputedRun | None = None
  epoch: Any = None
  for row, absent in runs.split_absent(analysis.read(path).read_event_rows()):
    if row['event'] == 'links':
      if row['did'] == 'forest':
        epoch = traffic.parse_epoch(row, path)
        if again:
          again.form(epoch)
      continue
    drifted = row['event'] == runs.DRIFT and row['version'] < version
    expected = 'replicas on like processors, that hold the same bits'
    got = f'worker {row.get("worker")} apart at version {row.get("version")}'
    require(not drifted, f'{path}', expected, got)
    if row['event'] == 'start':
      workers = len(row['decision']['release'])
      if again and workers != again.num_workers:
        states.check_droppable(path, config, wire)
      again = _RecomputedRun(config, learned, wire, again, workers)
      where = f'{path}/events.jsonl'
      is_known = epoch is not None
      require(is_known, where, 'a row on links before the start', epoch)
      again.form(epoch)
    if again is None:
      raise ValueError(f'{path}: expected a start before {row["event"]!r}.')
    again.replay(row, absent)
    if again.version == version:
      return again
  got = f'{again.version}' if again else 'no event'
  raise ValueError(
    f'{path}: expected events up to version {version}, got {got}.'
  )


def _read_learner(path: pathlib.Path) -> dict[str, Any]:
  """Returns the learner of the newest checkpoint."""
  directory = path / 'checkpoints'
  steps = checkpoints.steps(directory)
  require(bool(steps), f'{path}', 'a run with a checkpoint', 'none')
  state = checkpoints.read(directory, steps[-1])[checkpoints.COORDINATOR]
  learner: dict[str, Any] = state['runtime']['store']['learner']
  return learner
