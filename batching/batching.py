"""What a batching is told, what it answers, and what several of them share.

A batching decides how many examples each worker computes.  Like a scheme (see
sync/scheme.py) it is a small dataclass of plain data, made by
`make(num_workers=..., worker_batch=..., ...)` of the module that the config
names; it reads no clock and does no I/O, and its fields are its whole state.
"""

import math
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple, Protocol

from sync import scheme


class Done(NamedTuple):
  """An iteration whose waiting has ended: its worker is released again.

  Attributes:
    worker: Whose it was.
    time: Seconds, clock of the run.
    compute_s: Seconds of computing alone.
    transfer_s: Seconds of its pull and its push.
    waited_s: Seconds that the worker neither computed nor transferred.
    examples: How many were computed.
    factors: Driving factors read after it; () if none were.
  """

  worker: int
  time: float
  compute_s: float
  transfer_s: float
  waited_s: float
  examples: int
  factors: tuple[float, ...] = ()


class Batching(Protocol):
  """How much does each worker compute?

  Each iteration's Done is told when its worker is released, before the `assign`
  that follows.  Anything about a worker that has left, a second leave or a join
  of a living worker is a ValueError, except for `fixed`, which keeps no books.

  Attributes:
    barrier: Whether `assign` may be called at barriers alone, with all living
      workers.
    changes: Whether batches may change at all.
  """

  barrier: ClassVar[bool]
  changes: ClassVar[bool]

  @property
  def largest(self) -> int | None:
    """The most examples that are ever assigned; None if there is no bound."""

  def observe(self, done: Done) -> None:
    """Takes note of an iteration."""

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    """Returns the examples of the next iteration, by worker."""

  def report(self) -> dict[str, float]:
    """Returns what rows of metrics say of it, by name."""

  def leave(self, worker: int) -> None:
    """A worker died."""

  def join(self, worker: int) -> None:
    """A worker that had left is back; it may be another machine."""


def caps(most: Sequence[int], *, num_workers: int, least: int) -> list[int]:
  """Returns the most examples of each worker, or [] if there is no bound.

  Args:
    most: One number for all workers, or one each; () for no bound.
    num_workers: Number of workers.
    least: The smallest number that is allowed.

  Raises:
    ValueError: If a number is too small, or if there are too many or too few.
  """
  if len(most) not in (0, 1, num_workers):
    raise ValueError(
      f'most: expected no, one or {num_workers} numbers, got {most!r}.'
    )
  for bound in most:
    scheme.check_integer('most', bound, at_least=least)
  return list(most) * num_workers if len(most) == 1 else list(most)


def check_living(members: scheme.Members, worker: int) -> None:
  """Raises ValueError unless the worker lives."""
  count = len(members.state)
  if not 0 <= worker < count or members.state[worker] == scheme.GONE:
    raise ValueError(
      f'worker: expected a living one of 0..{count - 1}, got {worker!r}.'
    )


def check_done(members: scheme.Members, done: Done) -> None:
  """Raises ValueError unless a living worker may have done this."""
  check_living(members, done.worker)
  scheme.check_integer('examples', done.examples, at_least=1)
  if not 0 < done.compute_s < math.inf:
    raise ValueError(
      f'compute_s: expected more than 0 seconds, got {done.compute_s!r}.'
    )


def check_times(done: Done) -> None:
  """Raises ValueError unless transfer and waiting have finite times."""
  for name in ('transfer_s', 'waited_s'):
    if not math.isfinite(getattr(done, name)):
      raise ValueError(f'{name}: expected seconds, got {done!r}.')


def summed(sizes: Iterable[int]) -> dict[str, float]:
  """Returns batches' sum and extremes, as rows of metrics have them."""
  sizes = list(sizes)
  if not sizes:
    return {}
  return {
    'batch_sum': sum(sizes),
    'batch_least': min(sizes),
    'batch_largest': max(sizes),
  }
