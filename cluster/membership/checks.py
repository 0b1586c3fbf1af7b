"""Checks of messages whose fields both runtimes know to be bounded."""

from collections.abc import Container

from cluster.network.errors import expect
from cluster.network.messages import Ranges, Traffic
from data.stream import size

# Least time of an iteration, seconds: clocks count nanoseconds.
LEAST_S = 1e-9


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


def check_ranges(ranges: Ranges, examples: int) -> None:
  """Checks the positions of the examples of an iteration.

  Raises:
    InvalidMessage: If they are not as many as `examples`.
  """
  valid = all(start < stop for start, stop in ranges)
  expect(valid, 'ranges', 'first positions before the last', ranges)
  expect(size(ranges) == examples, 'ranges', f'{examples} examples', ranges)
