"""Allreduce of replicas: by executors over a forest, or by XLA (`native`)."""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from cluster.allreduce.executor.executor import Executor, Reduction, Usage
from cluster.allreduce.group import group_of
from cluster.allreduce.sums.memory import Memory, Nothing
from cluster.network import memory
from cluster.network.handshake import Security
from cluster.network.messages import ConnectMembers
from cluster.process.faults import Fault, Faults, Kind
from cluster.speed.layers import Range
from data.stream import Ranges
from learning.learning import Learner, Streaming
from learning.pool import FLOAT32, Filling, Pool
from learning.scaling import factor

_ITEM = np.dtype(np.float32).itemsize


class Summing(Protocol):
  """Sums what the workers of a generation have computed, again and again.

  Called by the thread of a replica, but for `abandon`, `steps`, `traffic` and
  `unanswered`.

  Attributes:
    steps: Grows with what comes and goes in an iteration, over all its sums; 0
      between two iterations.
    paced: Whether computing takes time alone, which `compute` lets pass.
    travels: Whether chunks do, so that faults can befall them.
    heeds: Whether `abandon` helps.
    memory: What this worker remembers of gradients.
  """

  paced: bool
  travels: bool
  heeds: bool
  memory: Memory | Nothing

  @property
  def steps(self) -> int:
    """Grows with what comes and goes in an iteration, over all its sums."""

  def warm_up(
    self, learner: Learner, examples: int | None, *, changing: bool
  ) -> None:
    """Compiles all that can be without the others."""

  def placed(self, tree: Any) -> Any:
    """Returns a tree with its arrays where those of a learner are to be."""

  def open(self) -> str:
    """Begins a life; returns where others reach this worker, '' for nowhere."""

  def close(self) -> None:
    """Ends a life."""

  def form(self, order: ConnectMembers, limit_s: float) -> None:
    """Connects to the others of a generation, as the coordinator has told of it.

    Args:
      order: The order of the coordinator.
      limit_s: Seconds that others may need to come: they may have to fetch the
        learner first.

    Raises:
      PeerLost: If one cannot be reached.
      Abandoned: If `abandon` is called meanwhile.
      TransportError: If it takes too long.
    """

  def unanswered(self) -> int:
    """Returns how often this was asked since a thread came to it last."""

  def traffic(self) -> Mapping[int, Usage]:
    """Returns what has gone to and come from each worker, in this life.

    From any thread; none if nobody counts it.
    """

  def abandon(self, before: float = math.inf) -> None:
    """Wakes all waits until the next `form`; thread-safe.

    Args:
      before: Of generations of lower numbers, also if they have not formed yet.
    """

  def compute(
    self,
    version: int,
    learner: Learner,
    ranges: Ranges,
    *,
    worker: int,
    iteration: int,
    stage: int,
    fault: Fault | None,
    least_s: float,
  ) -> tuple[float | None, bool]:
    """Computes a gradient; parts of it may travel at once.

    Args:
      version: Of the learner: the number of the sum.
      learner: Has the parameters, and says how losses are scaled.
      ranges: Positions of the examples in the stream.
      worker: Whose iteration this is, for its random key.
      iteration: Which one.
      stage: Of the wire.
      fault: What goes wrong with it on purpose, if anything.
      least_s: How long it takes at least, if it takes nothing but time.

    Returns:
      The loss summed over the examples, None if there is none; and whether all
      of the gradient is finite.

    Raises:
      Abandoned: As of `total`.
    """

  def finish(self, numbers: np.ndarray) -> None:
    """Adds what belongs into the books, float32, to what is summed."""

  def total(self) -> tuple[list[float], bool]:
    """Waits until everything is summed.

    Returns:
      The books, and whether the sums are finite, as far as float16 has changed
      them; the same for all workers.

    Raises:
      PeerLost: If a worker is gone; says which.
      Damaged: If something else has come from it.
      Abandoned: If the generation is given up.
    """

  def apply(self, learner: Learner, *, examples: int, pushes: int) -> None:
    """Applies the sum to the learner, which makes its next version."""

  def collect(self, version: int) -> None:
    """Sums what all keep at a version, into `memory`; raises as `total`."""


class HostSumming:
  """See `Summing`: by the executor of this process, in the host's memory."""

  travels = True
  heeds = True

  def __init__(
    self,
    index: int,
    *,
    workers: int,
    gradient: Streaming,
    pool: Pool,
    host: str,
    security: Security,
    timeout_s: float,
    faults: Faults,
    pace: Sequence[Range] = (),
  ):
    """Listens to nobody yet.

    Args:
      index: Of this worker.
      workers: How many there are.
      gradient: Computes, and hands out what is there.
      pool: What lies where.
      host: Address to listen on.
      security: Of all connections.
      timeout_s: After which a peer that does not answer is gone.
      faults: What goes wrong on purpose.
      pace: Without a model: which parts of the pool become ready when, in
        parts of the time that an iteration takes.
    """
    self.memory: Memory | Nothing = Nothing()
    self._index, self._pace, self._faults = index, pace, faults
    self.paced = bool(pace)
    self._ranges, self._dtypes = pool.ranges, pool.dtypes
    if pace:
      first = pool.dtypes[0]
      ends = itertools.accumulate(p.bytes // first.itemsize for p in pace[:-1])
      cuts = [0, *ends, *(end for _, end in pool.ranges)]
      self._ranges = tuple(itertools.pairwise(cuts))
      self._dtypes = (*[first] * len(pace), *pool.dtypes[1:])
    self._gradient, self._pool = gradient, pool
    self._of_executor: dict[str, Any] = {
      'host': host,
      'security': security,
      'timeout_s': timeout_s,
      'workers': workers,
    }
    # Of the iteration before, which the update may still read, and of this one.
    # What lies between leaves stays 0.
    self._vectors = [
      memory.aligned(pool.size * _ITEM).view(np.float32) for _ in range(2)
    ]
    for vector in self._vectors:
      vector[:] = 0.0
    self._executor: Executor | None = None
    # Steps of the sums of this iteration that have ended, and the running one;
    # one value, as another thread reads it.
    self._progress: tuple[int, Reduction | None] = 0, None
    self._filling: CheckedFilling | None = None
    self._stats: Any = ()

  @property
  def steps(self) -> int:
    """Chunks that have come and gone, in all sums of this iteration."""
    before, reduction = self._progress
    return before + (reduction.steps if reduction else 0)

  def warm_up(
    self, learner: Learner, examples: int | None, *, changing: bool
  ) -> None:
    """Compiles everything."""
    self._gradient.warm_up_stream(learner.params, examples, changing=changing)
    learner.warm_up_pool(self._pool)

  def placed(self, tree: Any) -> Any:
    """Returns a tree with its arrays where those of a push will be."""
    return self._gradient.placed(tree)

  def open(self) -> str:
    """Listens; returns the address."""
    self._executor = Executor(self._index, **self._of_executor)
    return self._executor.address

  def close(self) -> None:
    """Listens no more."""
    executor, self._executor = self._executor, None
    if executor:
      executor.close()

  def form(self, order: ConnectMembers, limit_s: float) -> None:
    """Connects; everybody checks the forest: it has come over the network."""
    if order.members is None:
      raise RuntimeError('Expected a forest, got none.')
    self._running.form(group_of(order.epoch, order.members), limit_s)

  def unanswered(self) -> int:
    """Asks the executor."""
    executor = self._executor
    return executor.unanswered() if executor else 0

  def traffic(self) -> Mapping[int, Usage]:
    """Asks the executor; there is nothing before a life and after it."""
    executor = self._executor
    return executor.traffic() if executor else {}

  def abandon(self, before: float = math.inf) -> None:
    """Ends what is under way."""
    if executor := self._executor:
      executor.abandon(before)

  def compute(
    self,
    version: int,
    learner: Learner,
    ranges: Ranges,
    *,
    worker: int,
    iteration: int,
    stage: int,
    fault: Fault | None,
    least_s: float,
  ) -> tuple[float | None, bool]:
    """Computes a gradient; its ranges travel once they are full."""
    del stage
    self._vectors.reverse()
    vector = self._vectors[0]
    travel = self._faults.travel(worker, iteration, fault)
    dtypes = None if {*self._dtypes} == {FLOAT32} else self._dtypes
    reduction = self._running.begin(
      version, vector, self._ranges, travel, dtypes
    )
    ready = reduction.ready
    if self.paced:
      passed = len(self._ranges) - len(self._pool.ranges)
      self._let_pass(reduction, least_s)
      ready = lambda number: reduction.ready(passed + number)  # noqa: E731
    filling = CheckedFilling(self._pool, vector, ready, fault)
    self._progress, self._filling = (0, reduction), filling
    self._stats, loss = self._gradient.stream(
      learner.params,
      ranges,
      worker=worker,
      iteration=iteration,
      into=filling,
      scale=factor(learner.scaling),
    )
    return None if loss is None else float(loss), filling.finite

  def _let_pass(self, reduction: Reduction, seconds: float) -> None:
    """Marks all ranges but the last as ready, each at its time."""
    start = time.monotonic()
    for number, part in enumerate(self._pace[:-1]):
      rest_s = start + part.ready * seconds - time.monotonic()
      if rest_s > 0:
        time.sleep(rest_s)
      reduction.ready(number)

  def finish(self, numbers: np.ndarray) -> None:
    """Fills what is left of the pool."""
    self._filling.finish(self._stats, numbers)

  def total(self) -> tuple[list[float], bool]:
    """Waits until all of the pool is summed."""
    _, reduction = self._progress
    try:
      reduction.wait()
    finally:
      self._progress = 0, None  # The next iteration counts from 0.
    return self._pool.books(self._vectors[0]).tolist(), reduction.finite

  def apply(self, learner: Learner, *, examples: int, pushes: int) -> None:
    """Applies the summed pool to the learner."""
    learner.apply_pool(
      self._pool, self._vectors[0], examples=examples, pushes=pushes
    )

  def collect(self, version: int) -> None:
    """Does nothing: nobody keeps anything."""

  @property
  def _running(self) -> Executor:
    if self._executor is None:
      raise RuntimeError('Expected an open executor, got none.')
    return self._executor


class CheckedFilling(Filling):
  """A filling that notices numbers that are not finite.

  Attributes:
    finite: Whether all were so far.
  """

  def __init__(
    self,
    pool: Pool,
    vector: np.ndarray,
    ready: Callable[[int], None],
    fault: Fault | None,
  ):
    """Creates a filling of a pool that is still empty.

    Args:
      pool: What lies where.
      vector: Float32 [pool.size].
      ready: Told of each range that is full.
      fault: What goes wrong with the gradient on purpose, if anything.
    """
    super().__init__(pool, vector, ready)
    self.finite = True
    self._spoils = fault is not None and fault.kind == Kind.NAN

  def put(self, leaf: int, array: np.ndarray) -> None:
    """Takes a leaf's numbers."""
    if self._spoils:
      array = array * np.float32('nan')
    # A sum is not finite if a number is not, and seldom else.
    with np.errstate(over='ignore', invalid='ignore'):
      total = np.sum(array)
    if not np.isfinite(total) and not np.isfinite(array).all():
      self.finite = False
    super().put(leaf, array)
