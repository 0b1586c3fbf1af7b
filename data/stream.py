"""Which example every iteration of every worker uses.

Examples are handed out by position: position p is entry p % N of a random
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
  """Hands out each position once, whatever the workers' batches and fates.

  Positions below `cursor` are either done or outstanding: in use, leased, or
  returned by a worker that left.  Returned positions are issued again before
  new ones, so an epoch loses none of its examples to a death.

  The fields are the whole state: Stream(**dataclasses.asdict(stream)) goes on
  as `stream` would, also after asdict's result has been through JSON.
  Determined by `seed` and the order of the calls.  A call costs
  O(ranges held by the worker + ranges returned).

  Attributes:
    num_examples: Examples of an epoch, N.
    seed: Of the permutations, at least 0.
    ahead: Iterations' worth of positions that a worker leases ahead of use.
    cursor: Positions from here on were never issued.
    used: Number of positions done.
    returned: What workers that left gave back, ascending.
    leases: By worker, what it holds and does not use yet, in order of use.
    in_use: By worker, what its unfinished iteration uses, ascending.

  Raises:
    ValueError: If `num_examples`, `seed` or `ahead` is out of its range.
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

    They are in use until `done` or `leave`.  They come from the worker's lease,
    which is topped up so that `ahead * count` positions remain.

    Args:
      worker: Who asks; the first call makes it known.
      count: Examples of this iteration, at least 1.

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
    """Returns the positions that `take` of so many will give next.

    The lease is topped up to hold them.
    """
    lease = self.leases.get(worker, ())
    self.leases[worker] = _joined(lease + self._issue(count - size(lease)))
    return self.upcoming(worker, count)

  def upcoming(self, worker: int, count: int) -> Ranges:
    """Returns what `take` will give next, if the lease is long enough."""
    return _merged(_cut(self.leases.get(worker, ()), count)[0])

  def indices(self, ranges: Ranges) -> np.ndarray:
    """Returns the examples at the positions, int64 [sum of lengths]."""
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

  def leave(self, worker: int) -> None:
    """Takes back all that the worker holds; nothing if it never took any."""
    held = self.in_use.pop(worker, ()) + self.leases.pop(worker, ())
    self.returned = _merged(self.returned + held)

  def outstanding(self) -> Ranges:
    """Returns the positions issued and not done, ascending."""
    held = [*self.leases.values(), *self.in_use.values()]
    return _merged(sum(held, self.returned))

  def _issue(self, count: int) -> Ranges:
    """Returns `count` positions that nobody holds, none if it is negative."""
    issued, fresh = (), count
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
  """Returns how many positions there are."""
  total = 0
  for start, stop in ranges:  # Faster than a sum, and called for each push.
    total += stop - start
  return total


def _cut(ranges: Ranges, count: int) -> tuple[Ranges, Ranges]:
  """Returns the first `count` positions, or all, and the others."""
  for i, (start, stop) in enumerate(ranges):
    if count < stop - start:
      middle = start + max(count, 0)
      head = ((start, middle),) if middle > start else ()
      return ranges[:i] + head, ((middle, stop), *ranges[i + 1 :])
    count -= stop - start
  return ranges, ()


def _merged(ranges: Ranges) -> Ranges:
  """Returns the positions in ascending order, in as few ranges as can be."""
  return _joined(sorted(ranges)) if len(ranges) > 1 else ranges


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
  """Returns the positions in the same order, in as few ranges as can be."""
  joined = []
  for start, stop in ranges:
    if joined and joined[-1][1] == start:
      start = joined.pop()[0]
    joined.append((start, stop))
  return tuple(joined)
