"""Interface of batchings, and functions that several of them share.

A batching decides how many examples each worker computes.  Like a scheme (see
sync/scheme.py) a batching is a small dataclass of plain data, created by
`make(num_workers=..., worker_batch=..., ...)` of the module that the config
names.  A batching reads no clock and does no I/O, and its fields are its whole
state.
"""

import math
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple, Protocol

from configs import checks
from sync import scheme


class Measurement(NamedTuple):
  """Measurements of an iteration, from one release of its worker to the next.

  Attributes:
    worker: Index of the worker.
    time: Time of the release that ends the iteration, seconds, clock of the
      run.
    compute_s: Seconds of computing alone.
    transfer_s: Seconds of the iteration's pull and push.
    waited_s: Seconds that the worker neither computed nor transferred.
    examples: Number of examples computed.
    factors: Driving factors read after the iteration; () if none were.
  """

  worker: int
  time: float
  compute_s: float
  transfer_s: float
  waited_s: float
  examples: int
  factors: tuple[float, ...] = ()


class Batching(Protocol):
  """Policy that assigns each worker the examples of its next iteration.

  When a worker is released, the coordinator passes the Measurement of its
  iteration to `observe` before it calls `assign`.  A method raises ValueError
  if its worker has left, or if a living worker joins; `fixed`, which has no
  state of workers, does not check.

  Attributes:
    needs_barriers: True if `assign` may be called only at barriers, with all
      living workers.
    is_adaptive: True if batches may change during a run.
  """

  needs_barriers: ClassVar[bool]
  is_adaptive: ClassVar[bool]

  @property
  def max_batch(self) -> int | None:
    """Upper bound of all batches, examples; None without a bound."""

  def observe(self, measurement: Measurement) -> None:
    """Records the measurement of a worker's iteration, before `assign`."""

  def assign(self, workers: Sequence[int]) -> dict[int, int]:
    """Returns the number of examples of each worker's next iteration.

    Args:
      workers: Workers that are released; all living ones if `needs_barriers`.
    """

  def report(self) -> dict[str, float]:
    """Returns statistics of the current batches, by name, for metrics.jsonl."""

  def leave(self, worker: int) -> None:
    """Records that a worker has left the run."""

  def join(self, worker: int) -> None:
    """Records that a worker has rejoined, perhaps on another machine."""


def expand_bounds(
  most: Sequence[int], *, num_workers: int, least: int
) -> list[int]:
  """Returns the largest batch of each worker, or [] if there is no bound.

  Args:
    most: One number for all workers, or one each; () for no bound.
    least: The smallest number that is allowed.

  Raises:
    ValueError: If a number is too small, or if there are too many or too few.
  """
  if len(most) not in (0, 1, num_workers):
    raise ValueError(
      f'most: expected no, one or {num_workers} numbers, got {most!r}.'
    )
  for bound in most:
    checks.check_integer('most', bound, at_least=least)
  return list(most) * num_workers if len(most) == 1 else list(most)


def check_living(members: scheme.Members, worker: int) -> None:
  """Raises ValueError unless the worker is alive."""
  count = len(members.state)
  if not 0 <= worker < count or members.state[worker] == scheme.ABSENT:
    raise ValueError(
      f'worker: expected a living worker in 0..{count - 1}, got {worker!r}.'
    )


def check_measurement(
  members: scheme.Members, measurement: Measurement
) -> None:
  """Raises ValueError unless the worker is alive and its numbers are valid."""
  check_living(members, measurement.worker)
  checks.check_integer('examples', measurement.examples, at_least=1)
  if not 0 < measurement.compute_s < math.inf:
    raise ValueError(
      f'compute_s: expected more than 0 seconds, got {measurement.compute_s!r}.'
    )


def check_times(measurement: Measurement) -> None:
  """Raises ValueError unless transfer and waiting have finite times."""
  for name in ('transfer_s', 'waited_s'):
    if not math.isfinite(getattr(measurement, name)):
      raise ValueError(f'{name}: expected seconds, got {measurement!r}.')


def summarize_sizes(sizes: Iterable[int]) -> dict[str, float]:
  """Returns the sum and the extremes of batches, for rows of metrics.jsonl."""
  sizes = list(sizes)
  if not sizes:
    return {}
  return {
    'batch_sum': sum(sizes),
    'batch_least': min(sizes),
    'batch_largest': max(sizes),
  }
