"""Step statistics of all workers: numbers at the end of every gradient buffer.

Each worker writes its own numbers, and 0 for the others, so that the sum holds
the numbers of all.  Whoever has the sum of an iteration can therefore record
the iteration, and no worker has to send its statistics to the coordinator.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cluster.coordinator import Coordinator
from cluster.membership import worker_states
from cluster.membership.checks import LEAST_S
from cluster.membership.members import Member
from cluster.network.errors import expect
from learning import scaling


class StepStatistics(NamedTuple):
  """Statistics of one worker in one iteration.

  Times are seconds after the coordinator assigned it, by the coordinator's
  clock.

  Attributes:
    began: When it began to compute.
    computed: When it had computed.
    compute_s: Seconds of computing alone.
    examples: Number of examples that were computed, with padding.
    weight: Weight of the examples, in examples, without padding.
    compilations: Number of XLA compilations since the warm-up.
    loss: Weighted sum over the examples; NaN if there is none.
    finite: 1 if loss and gradient are finite, else 0; -1 if they are, but not
      the sum of all gradients.
    recalled: 1 if the worker has rejoined with its inner optimizer's state.
  """

  began: float
  computed: float
  compute_s: float
  examples: int
  weight: float
  compilations: int
  loss: float
  finite: int
  recalled: int = 0


_FIELDS = len(StepStatistics._fields)
_MOST = 2.0**40  # Exclusive bound of statistics other than the loss.


class StatisticsLayout:
  """Layout of the step statistics of all workers in one vector.

  Attributes:
    workers: Number of workers of the run, living or not.
    size: Number of elements of the vector.
    factors: Number of driving factors of each worker.
  """

  def __init__(self, workers: int, factors: int):
    """Computes the layout.

    Args:
      workers: Number of workers of the run, living or not.
      factors: Largest number of driving factors of each.
    """
    self.workers, self._width = workers, 1 + _FIELDS + factors
    self.factors = factors
    self.size = workers * self._width

  def write(
    self,
    numbers: np.ndarray,
    worker: int,
    statistics: StepStatistics,
    factors: Sequence[float],
  ) -> None:
    """Writes a worker's numbers, and 0 for those of the others.

    Args:
      numbers: Destination, float32 [size].
      worker: Index of the worker.
      statistics: Its statistics; a loss that is not finite is written as 0.
      factors: Driving factors of its next iteration; may be none.
    """
    numbers[:] = 0.0
    own = numbers.reshape(self.workers, self._width)[worker]
    # A NaN would spoil the sum, whatever the others have written there: a 1
    # beside the loss means that there is one.
    has_loss = float(not math.isnan(statistics.loss))
    loss = statistics.loss if math.isfinite(statistics.loss) else 0.0
    own[: 1 + _FIELDS] = (has_loss, *statistics._replace(loss=loss))
    own[1 + _FIELDS :][: len(factors)] = factors

  def read(
    self, numbers: Sequence[float] | np.ndarray
  ) -> Mapping[int, tuple[StepStatistics, tuple[float, ...]]]:
    """Returns the statistics of each worker, and its driving factors.

    Args:
      numbers: Vector, float32 [size], summed over workers.  A row that is not
        finite is that of a worker whose gradient is not.
    """
    rows = np.asarray(numbers, np.float32).reshape(self.workers, self._width)
    result = {}
    for worker, row in enumerate(np.nan_to_num(rows).tolist()):
      (
        has_loss,
        began,
        computed,
        compute_s,
        examples,
        weight,
        compilations,
        loss,
        finite,
        recalled,
      ) = row[: 1 + _FIELDS]
      statistics = StepStatistics(
        began,
        computed,
        compute_s,
        round(examples),
        weight,
        round(compilations),
        loss if has_loss else math.nan,
        round(finite) if np.isfinite(rows[worker]).all() else 0,
        round(recalled),
      )
      result[worker] = statistics, tuple(row[1 + _FIELDS :])
    return result

  def check(self, numbers: Sequence[float]) -> None:
    """Checks statistics that a worker has sent, summed over workers.

    Raises:
      InvalidMessage: If they cannot be those of an iteration.
    """
    size = len(numbers)
    expect(size == self.size, 'statistics', f'{self.size} numbers', size)
    largest = max(map(abs, numbers), default=0.0)
    valid = largest <= float(np.finfo(np.float32).max)
    expect(valid, 'statistics', 'numbers of float32', largest)

  def find_invalid(
    self, numbers: Sequence[float], members: Mapping[int, int]
  ) -> list[int]:
    """Returns members whose own statistics cannot be true.

    Args:
      numbers: Vector, float32 [size], summed over workers.
      members: Number of examples of each worker that took part.
    """
    rows = np.asarray(numbers, np.float32).reshape(self.workers, self._width)
    # All are bounded but the loss.
    loss = 1 + StepStatistics._fields.index('loss')
    bounded = np.delete(rows, loss, axis=1)
    times, weights = (
      rows[:, 1 + StepStatistics._fields.index(name)]
      for name in ('compute_s', 'weight')
    )
    return [
      index
      for index, examples in members.items()
      if not (
        abs(bounded[index]).max() < _MOST
        and times[index] >= LEAST_S
        and 0 <= weights[index] <= examples
      )
    ]

  def total_weight(
    self, numbers: Sequence[float], members: Sequence[int]
  ) -> float:
    """Returns the weight of all examples of an iteration, in examples.

    Args:
      numbers: Vector, float32 [size], summed over workers.
      members: Workers that took part.
    """
    statistics = self.read(numbers)
    return sum(statistics[index][0].weight for index in members)

  def are_finite(
    self, numbers: Sequence[float], members: Sequence[int]
  ) -> bool:
    """Returns whether all contributions and their sum are finite.

    Args:
      numbers: Vector, float32 [size], summed over workers.
      members: Workers that took part.
    """
    statistics = self.read(numbers)
    return all(statistics[index][0].finite == 1 for index in members)

  def mark_sum(self, numbers: list[float], finite: bool) -> list[float]:
    """Marks summed statistics if the sum of gradients is not finite."""
    if finite:
      return numbers
    rows = np.array(numbers, np.float32).reshape(self.workers, self._width)
    flags = rows[:, 1 + StepStatistics._fields.index('finite')]
    flags[flags == 1] = -1
    marked: list[float] = rows.ravel().tolist()
    return marked


class IterationRecorder:
  """Reports iterations that have ended to the coordinator.

  Attributes:
    exposed_s: Exposed communication of the last one, seconds: the time during
      which no worker computed.
  """

  def __init__(
    self,
    coordinator: Coordinator,
    layout: StatisticsLayout,
    members: Sequence[Member],
    iteration_bytes: Callable[[int, int], int],
    *,
    has_inner_optimizer: bool = False,
  ):
    """Creates a recorder that has reported nothing yet.

    Args:
      coordinator: Receives the reports.
      layout: Layout of step statistics.
      members: All workers.
      iteration_bytes: Returns the bytes that cross the network in an iteration,
        given the number of workers and the stage of the codec.
      has_inner_optimizer: Whether workers have states of inner optimizers.
    """
    self.exposed_s = 0.0
    self._has_inner_optimizer = has_inner_optimizer
    self._coordinator, self._layout = coordinator, layout
    self._members = members
    self._iteration_bytes = iteration_bytes

  def record(
    self,
    numbers: Sequence[float],
    members: Sequence[int],
    joining: Sequence[int],
    *,
    assigned_at: float,
    stage: int,
    time: float,
  ) -> list[int]:
    """Reports an iteration to the coordinator, which asks the scheme.

    Args:
      numbers: Step statistics, summed over workers.
      members: Workers that took part, ascending.
      joining: Workers that take part from the next iteration on.
      assigned_at: When the iteration was assigned, seconds of the run.
      stage: Stage of the codec in it.
      time: When it ended, seconds of the run.

    Returns:
      Members whose statistics cannot be true, and are recorded as the shortest
      time and the weight of their number of examples, with driving factors of
      0.

    Raises:
      FloatingPointError: If a loss or a gradient is not finite.
    """
    reports, coordinator = self._layout.read(numbers), self._coordinator
    for index in members:
      statistics = reports[index][0]
      if statistics.finite < 0:
        what = (
          f'The sum of all gradients of version {coordinator.store.version}'
        )
        scaling.check(coordinator.store.scalings, index, what)
      coordinator.check(
        index, finite=statistics.finite == 1, loss=statistics.loss
      )
    began, computed = {}, {}
    for index in members:
      statistics = reports[index][0]
      began[index] = assigned_at + statistics.began
      # A worker cannot begin before it is released, nor end after the
      # iteration: otherwise its clock is not synchronised well yet, which does
      # not affect the duration.
      late = max(coordinator.workers[index].since - began[index], 0.0)
      early = max(assigned_at + statistics.computed + late - time, 0.0)
      began[index] += late - early
      computed[index] = assigned_at + statistics.computed + late - early
    last = max(computed.values())
    self.exposed_s = time - last
    for index in members:
      moments = (
        # It waits for the coordinator, if that assigns examples late.
        ('wait', coordinator.workers[index].since),
        ('push', assigned_at),  # Sums of the iteration before arrive.
        ('compute', began[index]),
        ('wait', computed[index]),  # For others to have computed.
        ('push', last),
      )
      coordinator.enter_each(index, moments, time)
    for index in joining:
      coordinator.join(index, time)
    size_bytes = self._iteration_bytes(len(members), stage)
    coordinator.recorder.accounting.bytes += size_bytes
    examples = {index: coordinator.workers[index].examples for index in members}
    invalid = self._layout.find_invalid(numbers, examples)
    for index in members:
      statistics, factors = reports[index]
      if index in invalid:
        statistics = statistics._replace(
          compute_s=LEAST_S, weight=examples[index]
        )
        factors = (0.0,) * len(factors)
      self._push(index, statistics, factors, time=time)
    return invalid

  def _push(
    self,
    index: int,
    statistics: StepStatistics,
    factors: tuple[float, ...],
    *,
    time: float,
  ) -> None:
    member, coordinator = self._members[index], self._coordinator
    member.compilations[member.incarnation] = statistics.compilations
    examples = coordinator.workers[index].examples
    member.progress.compute_times.append((statistics.compute_s, examples))
    member.counted = coordinator.workers[index].iteration
    if self._has_inner_optimizer:
      recorder, recalled = coordinator.recorder, bool(statistics.recalled)
      if recalled:
        recorder.record_recovered_residual(index, time)
      worker_states.settle(recorder, member, index, time, recalled=recalled)
    coordinator.push(
      index,
      time,
      compute_s=statistics.compute_s,
      factors=factors,
      computed=statistics.examples,
      weight=statistics.weight,
      loss=None if math.isnan(statistics.loss) else statistics.loss,
      finite=statistics.finite == 1,
    )
