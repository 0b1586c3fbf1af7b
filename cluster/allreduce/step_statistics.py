"""What the coordinator books of an iteration: numbers at the end of every pool.

Each worker writes its own and leaves those of the others at 0, so that the sum
is what all of them have written.  So whoever has the sum of an iteration knows
all that there is to be booked of it, and no worker has to tell the coordinator.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cluster.coordinator import Coordinator
from cluster.membership.members import Member
from learning import scaling


class Entry(NamedTuple):
  """What a worker says of one iteration.

  Times are seconds after the coordinator dealt it, by the coordinator's clock.

  Attributes:
    began: When it began to compute.
    computed: When it had computed.
    compute_s: Seconds of computing alone.
    examples: That were computed, with padding.
    compilations: Since it was warm.
    loss: Summed over the examples; NaN if there is none.
    finite: 1 if loss and gradient are finite, else 0; -1 if they are, but not
      the sum of all gradients.
  """

  began: float
  computed: float
  compute_s: float
  examples: int
  compilations: int
  loss: float
  finite: int


_FIELDS = len(Entry._fields)


class Books:
  """Which numbers are whose.

  Attributes:
    size: How many there are.
    factors: Driving factors that each worker may give.
  """

  def __init__(self, workers: int, factors: int):
    """Lays them out.

    Args:
      workers: Of the run, living or not.
      factors: Driving factors that each may give.
    """
    self._workers, self._width = workers, 1 + _FIELDS + factors
    self.factors = factors
    self.size = workers * self._width

  def write(
    self,
    numbers: np.ndarray,
    worker: int,
    entry: Entry,
    factors: Sequence[float],
  ) -> None:
    """Writes a worker's numbers, and 0 for those of the others.

    Args:
      numbers: float32 [size].
      worker: Whose.
      entry: What it says; a loss that is not finite is written as 0.
      factors: Driving factors of its next iteration; may be none.
    """
    numbers[:] = 0.0
    own = numbers.reshape(self._workers, self._width)[worker]
    # Sums with NaN are NaN, whatever the others have written there: 1 beside a
    # loss says that there is one.
    there = float(not math.isnan(entry.loss))
    loss = entry.loss if math.isfinite(entry.loss) else 0.0
    own[: 1 + _FIELDS] = (there, *entry._replace(loss=loss))
    own[1 + _FIELDS :][: len(factors)] = factors

  def read(
    self, numbers: Sequence[float] | np.ndarray
  ) -> Mapping[int, tuple[Entry, tuple[float, ...]]]:
    """Returns what each worker has written, and its driving factors.

    Args:
      numbers: float32 [size], summed over workers.
    """
    rows = np.asarray(numbers, np.float32).reshape(self._workers, self._width)
    found = {}
    for worker, row in enumerate(rows.tolist()):
      there, began, computed, compute_s, examples, compiled, loss, finite = row[
        : 1 + _FIELDS
      ]
      entry = Entry(
        began,
        computed,
        compute_s,
        round(examples),
        round(compiled),
        loss if there else math.nan,
        round(finite),
      )
      found[worker] = entry, tuple(row[1 + _FIELDS :])
    return found

  def are_finite(
    self, numbers: Sequence[float], members: Sequence[int]
  ) -> bool:
    """Returns whether all is finite that members have added, and its sum."""
    entries = self.read(numbers)
    return all(entries[index][0].finite == 1 for index in members)

  def marked(self, numbers: list[float], finite: bool) -> list[float]:
    """Returns summed books that say whether the sum of gradients is finite."""
    if finite:
      return numbers
    rows = np.array(numbers, np.float32).reshape(self._workers, self._width)
    finite = rows[:, 1 + Entry._fields.index('finite')]
    finite[finite == 1] = -1
    return rows.ravel().tolist()


class Booking:
  """Tells the coordinator of iterations, one after the other.

  Attributes:
    exposed_s: Of the last one, for which nobody computed.
  """

  def __init__(
    self,
    coordinator: Coordinator,
    books: Books,
    members: Sequence[Member],
    iteration_bytes: Callable[[int, int], int],
  ):
    """Has told nothing yet.

    Args:
      coordinator: Who is told.
      books: What workers have written.
      members: All workers.
      iteration_bytes: Returns what crosses the network in an iteration of so
        many workers, in a stage of the wire.
    """
    self.exposed_s = 0.0
    self._coordinator, self._books, self._members = coordinator, books, members
    self._iteration_bytes = iteration_bytes

  def __call__(
    self,
    numbers: Sequence[float],
    members: Sequence[int],
    joining: Sequence[int],
    *,
    dealt_at: float,
    stage: int,
    time: float,
  ) -> None:
    """Tells the coordinator, which asks the scheme.

    Args:
      numbers: The books, summed.
      members: Who took part, ascending.
      joining: Who takes part from the next one on.
      dealt_at: When the iteration was dealt, seconds of the run.
      stage: Of the wire, in it.
      time: When it ended.

    Raises:
      FloatingPointError: If a loss or a gradient is not finite.
    """
    entries, coordinator = self._books.read(numbers), self._coordinator
    for index in members:
      entry = entries[index][0]
      if entry.finite < 0:
        what = (
          f'The sum of all gradients of version {coordinator.store.version}'
        )
        scaling.check(coordinator.store.scalings, index, what)
      coordinator.check(index, finite=entry.finite == 1, loss=entry.loss)
    began, computed = {}, {}
    for index in members:
      entry = entries[index][0]
      began[index] = dealt_at + entry.began
      # Nobody begins before it is released, nor ends after all have: else its
      # clock is not compared well yet, which tells nothing of how long it took.
      late = max(coordinator.workers[index].since - began[index], 0.0)
      early = max(dealt_at + entry.computed + late - time, 0.0)
      began[index] += late - early
      computed[index] = dealt_at + entry.computed + late - early
    last = max(computed.values())
    self.exposed_s = time - last
    for index in members:
      moments = (
        ('push', dealt_at),  # Its sums of before come, unless it waits for us.
        ('compute', began[index]),
        ('wait', computed[index]),  # For others to have computed.
        ('push', last),
      )
      if dealt_at > coordinator.workers[index].since:
        coordinator.workers[index].phase = 'wait'
      self._enter(index, moments, time)
    for index in joining:
      coordinator.join(index, time)
    coordinator.carried(self._iteration_bytes(len(members), stage))
    for index in members:
      self._push(index, *entries[index], time=time)

  def _enter(
    self, index: int, moments: Sequence[tuple[str, float]], time: float
  ) -> None:
    """Books phases; clocks are compared to within a round trip."""
    since = self._coordinator.workers[index].since
    for phase, at in moments:
      since = min(max(since, at), time)
      self._coordinator.enter(index, phase, since)

  def _push(
    self, index: int, entry: Entry, factors: tuple[float, ...], *, time: float
  ) -> None:
    member, coordinator = self._members[index], self._coordinator
    member.compilations[member.incarnation] = entry.compilations
    examples = coordinator.workers[index].examples
    member.pace.computed.append((entry.compute_s, examples))
    coordinator.push(
      index,
      time,
      compute_s=entry.compute_s,
      factors=factors,
      computed=entry.examples,
      loss=None if math.isnan(entry.loss) else entry.loss,
      finite=entry.finite == 1,
    )
