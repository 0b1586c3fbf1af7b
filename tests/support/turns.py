"""Tuned batches in R2SP's round robin: a scheme and a batching, nothing else.

An event loop of computing and transfers that take given times, for tests of
thousands of iterations.  There are no parameters and no network.
"""

import dataclasses
import heapq
from collections.abc import Sequence

import numpy as np

from batching.batching import Batching, Done
from sync import r2sp
from sync.scheme import Push, Scheme


@dataclasses.dataclass(frozen=True)
class Times:
  """How long iterations take: fixed + batch * per example, and transfers.

  Attributes:
    per_example_s: Float [num_workers], seconds of computing of each example.
    transfer_s: Float [num_workers], seconds of pull and push.
    fixed_s: Seconds of computing that no example adds to.
  """

  per_example_s: Sequence[float]
  transfer_s: Sequence[float]
  fixed_s: float = 0.0

  def compute_s(self, worker: int, examples: float) -> float:
    """Returns the seconds that a worker computes, without jitter."""
    return self.fixed_s + examples * self.per_example_s[worker]

  def equal(self, worker_batch: int) -> np.ndarray:
    """Returns the batches with which all end with the slowest worker.

    Args:
      worker_batch: Initial batch, which the slowest one keeps.

    Returns:
      Float [num_workers], examples.
    """
    per_example_s = np.array(self.per_example_s)
    transfer_s = np.array(self.transfer_s)
    last_s = max(self.fixed_s + worker_batch * per_example_s + transfer_s)
    return (last_s - transfer_s - self.fixed_s) / per_example_s


def simulated(
  batching: Batching,
  times: Times,
  *,
  sigma: float,
  iterations: int,
  seed: int,
  scheme: Scheme | None = None,
  changes: dict[int, Times] | None = None,
) -> np.ndarray:
  """Returns the batch of every iteration.

  Args:
    batching: Is told of each iteration, and keeps what it learns.
    times: Of iterations without jitter.
    sigma: Of the lognormal jitter of computing, whose mean is 1.
    iterations: Of each worker.
    seed: Of the jitter.
    scheme: Says who may continue; R2SP with the config's defaults by default.
    changes: Other times, by the iteration that all workers must have ended.

  Returns:
    Int [iterations, num_workers], examples, by iteration of each worker.
  """
  count, changes = len(times.transfer_s), dict(changes or {})
  scheme = scheme or r2sp.make(num_workers=count, relaxation=0.8, smoothing=0.1)
  rng = np.random.default_rng(seed)
  jitter = rng.lognormal(-(sigma**2) / 2, sigma, (iterations + 1, count))
  sizes = np.zeros((iterations + 1, count), dtype=np.int64)
  ended = [0] * count  # Iterations of each worker.
  pushed_at: list[float | None] = [None] * count
  computed_s, transferred_s = [0.0] * count, [0.0] * count
  ends: list[tuple[float, int]] = []  # Time, worker.
  pushes = 0

  def release(verdict, time):
    for worker in verdict.release:
      if pushed_at[worker] is not None:
        batching.observe(
          Done(
            worker=worker,
            time=time,
            compute_s=computed_s[worker],
            transfer_s=transferred_s[worker],
            waited_s=time - pushed_at[worker],
            examples=int(sizes[ended[worker] - 1, worker]),
          )
        )
    for worker, examples in batching.assign(verdict.release).items():
      number = ended[worker]
      if number <= iterations:
        sizes[number, worker] = examples
        computed_s[worker] = (
          times.compute_s(worker, examples) * jitter[number, worker]
        )
        transferred_s[worker] = times.transfer_s[worker]
        took_s = computed_s[worker] + transferred_s[worker]
        heapq.heappush(ends, (time + took_s, worker))
    return verdict.wake_at

  wake_at = release(scheme.start(0.0), 0.0)
  while min(ended) < iterations:
    if wake_at is not None and (not ends or wake_at <= ends[0][0]):
      time = wake_at
      wake_at = release(scheme.wake(time), time)
      continue
    time, worker = heapq.heappop(ends)
    pushed_at[worker] = time
    examples = int(sizes[ended[worker], worker])
    ended[worker] += 1
    if min(ended) in changes:
      times = changes.pop(min(ended))
    push = Push(pushes, worker, time, computed_s[worker], examples)
    pushes += 1
    wake_at = release(scheme.push(push), time)
  return sizes[:iterations]
