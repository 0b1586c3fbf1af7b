"""Simulates a scheme with a batching, such as R2SP with tuned batches.

An event loop advances computations and transfers of given durations, fast
enough for tests of thousands of iterations.  It has no parameters and no
network.
"""

import dataclasses
import heapq
from collections.abc import Sequence

import numpy as np

from batching.batching import Batching, Measurement
from sync import r2sp
from sync.scheme import Push, Scheme


@dataclasses.dataclass(frozen=True)
class Times:
  """Durations of the phases of iterations, without jitter.

  Attributes:
    per_example_s: Float [num_workers], compute time per example, seconds.
    transfer_s: Float [num_workers], time of pull and push, seconds.
    fixed_s: Compute time that does not depend on the batch, seconds.
  """

  per_example_s: Sequence[float]
  transfer_s: Sequence[float]
  fixed_s: float = 0.0

  def compute_s(self, worker: int, examples: float) -> float:
    """Returns the compute time of a worker's batch, seconds."""
    return self.fixed_s + examples * self.per_example_s[worker]

  def equalizing_batches(self, worker_batch: int) -> np.ndarray:
    """Returns the batches with which all workers take the time of the slowest.

    Args:
      worker_batch: Batch of the slowest worker.

    Returns:
      Float [num_workers], examples.
    """
    per_example_s = np.array(self.per_example_s)
    transfer_s = np.array(self.transfer_s)
    last_s = max(self.fixed_s + worker_batch * per_example_s + transfer_s)
    return (last_s - transfer_s - self.fixed_s) / per_example_s


def simulate(
  batching: Batching,
  times: Times,
  *,
  sigma: float,
  iterations: int,
  seed: int,
  scheme: Scheme | None = None,
  changes: dict[int, Times] | None = None,
) -> np.ndarray:
  """Simulates a run; returns the batch of every iteration.

  Args:
    batching: Batching under test, which observes each iteration.
    times: Durations of the phases of iterations, without jitter.
    sigma: Sigma of the lognormal factor of compute times, whose mean is 1.
    iterations: Number of iterations of each worker.
    seed: Seed of the jitter.
    scheme: Scheme that releases workers; None for R2SP with the config's
      defaults.
    changes: Durations that replace `times`, by the number of iterations that
      all workers have completed at the replacement.

  Returns:
    Int [iterations, num_workers], batch of each worker's iterations, examples.
  """
  count, changes = len(times.transfer_s), dict(changes or {})
  scheme = scheme or r2sp.make(num_workers=count, relaxation=0.8, smoothing=0.1)
  rng = np.random.default_rng(seed)
  jitter = rng.lognormal(-(sigma**2) / 2, sigma, (iterations + 1, count))
  sizes = np.zeros((iterations + 1, count), dtype=np.int64)
  ended = [0] * count  # Completed iterations of each worker.
  pushed_at: list[float | None] = [None] * count
  computed_s, transferred_s = [0.0] * count, [0.0] * count
  ends: list[tuple[float, int]] = []  # Time, worker.
  pushes = 0

  def release(decision, time):
    for worker in decision.release:
      if pushed_at[worker] is not None:
        batching.observe(
          Measurement(
            worker=worker,
            time=time,
            compute_s=computed_s[worker],
            transfer_s=transferred_s[worker],
            waited_s=time - pushed_at[worker],
            examples=int(sizes[ended[worker] - 1, worker]),
          )
        )
    for worker, examples in batching.assign(decision.release).items():
      number = ended[worker]
      if number <= iterations:
        sizes[number, worker] = examples
        computed_s[worker] = (
          times.compute_s(worker, examples) * jitter[number, worker]
        )
        transferred_s[worker] = times.transfer_s[worker]
        iteration_s = computed_s[worker] + transferred_s[worker]
        heapq.heappush(ends, (time + iteration_s, worker))
    return decision.wake_at

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
