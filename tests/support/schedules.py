"""Schedules of workers for tests of schemes: times of iterations, faults."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st


def constant(*seconds: float) -> Callable[[int, int], float]:
  """Returns iteration times that are the same in every iteration.

  Args:
    *seconds: Seconds of an iteration, by worker.
  """
  return lambda worker, iteration: seconds[worker]


def jittered(
  seed: int, *, workers: int = 64, slowest: int = 4
) -> Callable[[int, int], float]:
  """Returns iteration times of unequal workers, with jitter and many ties.

  Args:
    seed: Seed of the times, which are multiples of a quarter of a second.
    workers: Number of workers that have times.
    slowest: Largest factor of a worker's times.
  """
  rng = np.random.default_rng(seed)
  speed = rng.integers(1, slowest + 1, workers)
  table = rng.integers(1, 4, (workers, 997)) * speed[:, None] / 4
  return lambda worker, iteration: float(table[worker, iteration % 997])


def drawn(*, least_workers: int = 1) -> dict[str, st.SearchStrategy[Any]]:
  """Returns strategies of schedules in which workers leave and rejoin.

  Args:
    least_workers: Fewest workers.

  Returns:
    Strategies of `num_workers`, up to 6; of `seed` for `jittered`; and of
    `faults` for `Driver.run`, some of them of workers that there are not.
  """
  fault = st.tuples(
    st.integers(0, 60).map(lambda t: t / 2),
    st.sampled_from(['leave', 'join']),
    st.integers(0, 5),
  )
  return {
    'num_workers': st.integers(least_workers, 6),
    'seed': st.integers(0, 2**32 - 1),
    'faults': st.lists(fault, max_size=12),
  }
