"""Assignment of examples to the iterations of workers.

Examples are assigned by position: position p is entry p % N of the random
permutation of the N examples that belongs to epoch p // N.  A worker leases
positions a little ahead of use, so that its input can be prepared in time.
"""

import dataclasses
import functools
import operator
from collections.abc import Iterable

import numpy as np

Ranges = tuple[tuple[int, int], ...]  # Positions from start up to stop.


@dataclasses.dataclass(kw_only=True)
class Stream:
  """A stream of positions, each of which is issued once.

  Positions below `cursor` are either done or outstanding: in use, leased, or
  returned by a worker that left.  Returned positions are issued again before
  new ones, so that an epoch loses no example if a worker dies.

  The fields are the whole state: Stream(**dataclasses.asdict(stream)) continues
  as `stream` would, also after a round trip through JSON.  Results depend only
  on `seed` and the order of the calls.  A call costs O(ranges held by the
  worker + ranges returned).

  Attributes:
    num_examples: Number N of examples of an epoch.
    seed: Seed of the permutations, at least 0.
    ahead: Number of iterations whose positions a worker leases ahead of use.
    cursor: First position that was never issued.
    used: Number of positions done.
    returned: Positions returned by workers that left, ascending.
    leases: Positions that each worker holds but does not use yet, in order of
      use.
    in_use: Positions of each worker's unfinished iteration, ascending.

  Raises:
    ValueError: If `num_examples`, `seed` or `ahead` is out of range.
  """

  is_state = True  # Plain data: checkpoints hold it.

  num_examples: int
  seed: int
  ahead: int
  cursor: int = 0
  used: int = 0
  returned: Ranges = ()
  leases: dict[int, Ranges] = dataclasses.field(default_factory=dict)
  in_use: dict[int, Ranges] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    for name, least in (('num_examples', 1), ('seed', 0), ('ahead', 0)):
      if getattr(self, name) < least:
        raise ValueError(
          f'{name}: expected at least {least}, got {getattr(self, name)}.'
        )
    # JSON has neither tuples nor integer keys.
    self.returned = _tuples(self.returned)
    self.leases = {int(w): _tuples(held) for w, held in self.leases.items()}
    self.in_use = {int(w): _tuples(held) for w, held in self.in_use.items()}

  def take(self, worker: int, count: int) -> Ranges:
    """Returns the positions of the worker's next iteration, ascending.

    They are in use until `done`, `give_back` or `leave`.  They are taken from
    the worker's lease, which is extended so that `ahead * count` positions
    remain.

    Args:
      worker: Index of the worker.
      count: Number of examples of the iteration, at least 1.

    Raises:
      ValueError: If `count` is less than 1, or an iteration is unfinished.
    """
    if worker in self.in_use:
      raise ValueError(
        f'worker: expected one that is done with its iteration, got {worker}, '
        f'which uses {self.in_use[worker]}.'
      )
    count = operator.index(count)
    if count < 1:
      raise ValueError(f'count: expected at least 1, got {count}.')
    lease = self.leases.get(worker, ())
    lease += self._issue((1 + self.ahead) * count - size(lease))
    taken, rest = _cut(lease, count)
    self.in_use[worker] = taken = _merged(taken)
    self.leases[worker] = _joined(rest)
    return taken

  def reserve(self, worker: int, count: int) -> Ranges:
    """Leases the positions of the worker's next `take`, and returns them.

    Args:
      count: Number of examples of the iteration.
    """
    lease = self.leases.get(worker, ())
    self.leases[worker] = _joined(lease + self._issue(count - size(lease)))
    return self.upcoming(worker, count)

  def upcoming(self, worker: int, count: int) -> Ranges:
    """Returns the worker's next `count` positions without taking them.

    Only positions that the worker has leased are returned, which may be fewer
    than `count`.  They are positions in the stream, not numbers of examples:
    see `indices`.

    Args:
      count: Number of positions, at least 1.
    """
    return _merged(_cut(self.leases.get(worker, ()), count)[0])

  def indices(self, ranges: Ranges) -> np.ndarray:
    """Returns the examples at the positions, int64 [sum of lengths].

    Args:
      ranges: Positions, in at least one range.
    """
    positions = np.concatenate([np.arange(*bounds) for bounds in ranges])
    epochs, entries = np.divmod(positions, self.num_examples)
    examples = np.empty_like(entries)
    for epoch in np.unique(epochs):
      order = _permutation(self.num_examples, self.seed, int(epoch))
      examples[epochs == epoch] = order[entries[epochs == epoch]]
    return examples

  def done(self, worker: int) -> None:
    """Ends the worker's iteration: its examples count as used.

    Raises:
      ValueError: If the worker has no iteration in use.
    """
    if worker not in self.in_use:
      raise ValueError(
        f'worker: expected one of {sorted(self.in_use)}, which have an '
        f'iteration in use, got {worker}.'
      )
    self.used += size(self.in_use.pop(worker))

  def give_back(self, worker: int) -> None:
    """Ends the worker's iteration: its examples are issued again.

    Raises:
      KeyError: If the worker has no iteration in use.
    """
    self.returned = _merged(self.returned + self.in_use.pop(worker))

  def leave(self, worker: int) -> None:
    """Gives back all positions that the worker holds: they are issued again.

    A worker that holds none is no error.
    """
    held = self.in_use.pop(worker, ()) + self.leases.pop(worker, ())
    self.returned = _merged(self.returned + held)

  def outstanding(self) -> Ranges:
    """Returns the positions that are issued but not done, ascending."""
    held = [*self.leases.values(), *self.in_use.values()]
    return _merged(sum(held, self.returned))

  def _issue(self, count: int) -> Ranges:
    """Returns `count` positions that no worker holds; none if negative."""
    issued: Ranges = ()
    fresh = count
    if self.returned:
      issued, self.returned = _cut(self.returned, count)
      fresh -= size(issued)
    if fresh > 0:
      issued += ((self.cursor, self.cursor + fresh),)
      self.cursor += fresh
    return issued


@functools.lru_cache(maxsize=4)
def _permutation(num_examples: int, seed: int, epoch: int) -> np.ndarray:
  return np.random.default_rng((seed, epoch)).permutation(num_examples)


def _tuples(ranges: Iterable[Iterable[int]]) -> Ranges:
  return tuple((start, stop) for start, stop in ranges)


def size(ranges: Ranges) -> int:
  """Returns the total number of positions in ranges."""
  total = 0
  for start, stop in ranges:  # Called for each push, and faster than sum().
    total += stop - start
  return total


def _cut(ranges: Ranges, count: int) -> tuple[Ranges, Ranges]:
  """Returns the first `count` positions, or all, and the rest."""
  for i, (start, stop) in enumerate(ranges):
    if count < stop - start:
      middle = start + max(count, 0)
      head = ((start, middle),) if middle > start else ()
      return ranges[:i] + head, ((middle, stop), *ranges[i + 1 :])
    count -= stop - start
  return ranges, ()


def _merged(ranges: Ranges) -> Ranges:
  """Returns the positions in ascending order, in as few ranges as possible."""
  return _joined(sorted(ranges)) if len(ranges) > 1 else ranges


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
  """Returns the positions in the same order, in as few ranges as possible."""
  joined: list[tuple[int, int]] = []
  for start, stop in ranges:
    if joined and joined[-1][1] == start:
      start = joined.pop()[0]
    joined.append((start, stop))
  return tuple(joined)
