"""Checks of messages whose fields both runtimes know to be bounded."""

from collections.abc import Container

from cluster.network.errors import expect
from cluster.network.messages import Assignment, Pull, Ranges, Traffic
from data.stream import size

# Least time of an iteration, seconds: clocks count nanoseconds.
LEAST_S = 1e-9
_ITERATIONS = 2**32  # Exclusive bound: random keys are made of 32 bits.


def check_traffic(sent: Traffic, receivers: Container[int]) -> None:
  """Checks a report on traffic.

  Args:
    sent: The rows of the report.
    receivers: Ranks of the processes that the sender may send to.

  Raises:
    InvalidMessage: If it has another rank, or one more than once.
  """
  ranks = [rank for rank, _, _ in sent]
  unknown = [rank for rank in ranks if rank not in receivers]
  expect(not unknown, 'sent', 'ranks of the run', unknown)
  expect(len({*ranks}) == len(ranks), 'sent', 'each rank once', ranks)


def check_iteration(
  order: Pull | Assignment, *, most: int | None, stages: int
) -> None:
  """Checks the iteration of a worker.

  Args:
    order: The iteration.
    most: Largest batch of the run; None without a bound.
    stages: Number of stages of the wire.

  Raises:
    InvalidMessage: If it cannot be one of this run.
  """
  ranges, examples = order.ranges, order.examples
  _check_order('ranges', ranges)
  expect(size(ranges) == examples, 'ranges', f'{examples} examples', ranges)
  valid = examples > 0 and (most is None or examples <= most)
  expect(valid, 'examples', f'1 to {most}', examples)
  expect(order.stage < stages, 'stage', f'one of {stages}', order.stage)
  valid = order.iteration < _ITERATIONS
  expect(valid, 'iteration', f'below {_ITERATIONS}', order.iteration)
  if isinstance(order, Pull):
    _check_order('upcoming', order.upcoming)
    valid = most is None or size(order.upcoming) <= most
    expect(valid, 'upcoming', f'at most {most} examples', order.upcoming)


def _check_order(field: str, ranges: Ranges) -> None:
  valid = all(start < stop for start, stop in ranges)
  expect(valid, field, 'first positions before the last', ranges)
