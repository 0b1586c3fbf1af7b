"""Finds the rates of links from when transfers began and how long they took.

All transfers of one direction have one size; each uses its worker's link and
the servers' links, which divide it equally, so that the servers count as one
with the sum of their rates.  The rates are those with which the fluid model of
`cluster.virtual.network`, given the starts, comes closest to the durations:
least squares by Levenberg and Marquardt (Marquardt, 1963) with weights of Huber
(1964), so that single stalls count little.
"""

import math
from typing import NamedTuple

import numpy as np

from cluster.virtual.network import Network
from configs.checks import require

LEAST = 8  # Transfers of a worker, to find its link.
_MOST = 2000  # Transfers that are replayed, in the middle of a run,
_SHARE = 50  # or so many times the number of workers.
_ROUNDS = 40
_EXACT = 1e-9  # Loss per transfer with which links fit well enough.
_STEP = 0.02  # Of a logarithm of a rate, to see what the rate does.
_CLIP = 0.5  # Largest change of one in a round.
_APART = 0.05  # Of a duration: how far the latencies of two directions are,
_LATENCY = 0.1  # and how large latencies are.
_BINDS = 0.004  # Mean change of durations without the link's limit.
_TOUCHES = 0.002  # The same, where a limit begins to be felt.
_LAST_S = 1e18  # Later than anything.
_UNLIMITED = 60.0  # Logarithm of a rate that is none: 1e26 bytes per second.


class Transfers(NamedTuple):
  """Transfers in one direction, by their starts.

  Attributes:
    worker: Int [T], whose.
    start: Float [T], seconds, never falling.
    seconds: Float [T], until it had arrived whole; more than 0.
  """

  worker: np.ndarray
  start: np.ndarray
  seconds: np.ndarray


class Links(NamedTuple):
  """The links of one direction.

  Attributes:
    worker_Bps: Float [N], of each worker, bytes per second.
    worker_bound: Bool [N], whether the link ever held a transfer back.  If not,
      its rate is the largest that was used, and it may be faster.
    servers_Bps: Of all servers together, bytes per second.
    servers_bound: As for a worker.
    latency_s: Seconds that a transfer takes beside its bytes.
    excess_s: Seconds, in the mean, that transfers took longer than all this:
      stalls, which count little for the rates.
    error: Float [N], median relative error of the durations of each worker.
    errors: The same of all of them.
    used: Int [N], transfers of each worker that the rates come from.
  """

  worker_Bps: np.ndarray
  worker_bound: np.ndarray
  servers_Bps: float
  servers_bound: bool
  latency_s: float
  excess_s: float
  error: np.ndarray
  errors: float
  used: np.ndarray


def fit(
  down: Transfers, up: Transfers, *, num_workers: int, size_bytes: float
) -> tuple[Links, Links]:
  """Returns the links that explain transfers best, of both directions.

  Transfers that always go at once show the servers' rate only, and a worker's
  link only if it is slower than its share.  What fits as well without a limit
  counts as never bound, the workers' links first: one link of the servers is a
  simpler reason than many.

  Where transfers hardly meet, bytes and latency cannot be told apart, so that
  the latency is a mean, by precision, of what the direction says, what the
  other one says, and none.  Deterministic; O(T N) per round.

  Args:
    down: The pulls.
    up: The pushes.
    num_workers: Number of workers, N.
    size_bytes: Of each transfer.

  Raises:
    ValueError: If a worker has fewer than `LEAST` transfers in a direction.
  """
  problems = [
    _Problem(_middle(name, transfers, num_workers), num_workers, size_bytes)
    for name, transfers in (('pulls', down), ('pushes', up))
  ]
  every = np.ones(num_workers + 2, bool)
  first = [_refine(problem, problem.guess(), every) for problem in problems]
  said = [
    (logs[-1] * problem.unit_s, _uncertainty_s(problem, logs))
    for problem, logs in zip(problems, first, strict=True)
  ]
  found = []
  for problem, logs, own, other in zip(
    problems, first, said, said[::-1], strict=True
  ):
    apart = (other[0], math.hypot(other[1], _APART * problem.unit_s))
    latency_s = _mean(own, apart, (0.0, _LATENCY * problem.unit_s))
    latency = min(latency_s / problem.unit_s, problem.most_latency)
    found.append(_settled(problem, np.append(logs[:-1], latency)))
  return found[0], found[1]


def replay(
  transfers: Transfers,
  *,
  worker_Bps: np.ndarray,
  servers_Bps: float,
  latency_s: float,
  size_bytes: float,
) -> np.ndarray:
  """Returns how long the transfers take in the fluid model, seconds [T].

  Args:
    transfers: Their starts count, their durations do not.
    worker_Bps: Float [N].
    servers_Bps: Of all servers together.
    latency_s: Of a transfer.
    size_bytes: Of a transfer.
  """
  servers = len(worker_Bps)
  network = Network(
    up_Bps=[*worker_Bps, math.inf],
    down_Bps=[math.inf] * servers + [servers_Bps],
    latency_s=[0.0] * servers + [latency_s],
  )
  ends = np.zeros(len(transfers.start))

  def go_on(until_s: float) -> None:
    while (time := network.next_time()) <= until_s:
      ends[network.advance(time)] = time

  pairs = zip(transfers.start.tolist(), transfers.worker.tolist(), strict=True)
  for start, worker in pairs:
    go_on(start)
    network.start(start, worker, servers, size_bytes)  # Ids count from 0.
  go_on(_LAST_S)
  return ends - transfers.start


class _Problem:
  """Measured durations, and how far the model is from them.

  Parameters are one vector: the logarithms of the workers' rates and of the
  servers', and the latency in units of the median duration.
  """

  def __init__(self, transfers: Transfers, workers: int, size_bytes: float):
    self.transfers, self.workers, self.size = transfers, workers, size_bytes
    self.unit_s = float(np.median(transfers.seconds))
    first = np.unique(transfers.worker, return_index=True)[1]
    # The first ones are warm-up, or shared links with some that are cut away.
    self.counted = np.ones(len(transfers.start), bool)
    self.counted[first] = False
    self.own = [transfers.worker == worker for worker in range(workers)]
    means = [transfers.seconds[own].mean() for own in self.own]
    self.scale = np.array(means)[transfers.worker]
    # A transfer that takes less than its latency would have no rate.
    shortest_s = float(np.quantile(transfers.seconds, 0.02))
    self.most_latency = 0.9 * shortest_s / self.unit_s

  def guess(self) -> np.ndarray:
    """Returns rates at which every link binds, and no latency."""
    seconds = self.transfers.seconds
    best = [self.size / np.quantile(seconds[own], 0.05) for own in self.own]
    servers = max(*best, self._throughput())
    # Above the servers' share, or neither could rise without the other.
    return np.array([*np.log(1.2 * np.array(best)), math.log(servers), 0.0])

  def seconds(self, logs: np.ndarray) -> np.ndarray:
    rates = np.exp(logs[:-1])
    return replay(
      self.transfers,
      worker_Bps=rates[:-1],
      servers_Bps=float(rates[-1]),
      latency_s=float(logs[-1]) * self.unit_s,
      size_bytes=self.size,
    )

  def residual(self, logs: np.ndarray) -> np.ndarray:
    missed = (self.seconds(logs) - self.transfers.seconds) / self.scale
    return missed[self.counted]

  def effect(self, logs: np.ndarray, link: int, log: float) -> float:
    """Returns by how much durations on a link change with another rate."""
    other = logs.copy()
    other[link] = log
    on = self.own[link] if link < self.workers else slice(None)
    before, after = self.seconds(logs)[on], self.seconds(other)[on]
    return float(np.mean(np.abs(after / before - 1)))

  def links(self, logs: np.ndarray, bound: np.ndarray) -> Links:
    fitted, seconds = self.seconds(logs), self.transfers.seconds
    missed = np.where(self.counted, np.abs(fitted / seconds - 1), np.nan)
    rates = np.exp(logs[:-1])
    return Links(
      worker_Bps=rates[:-1],
      worker_bound=bound[:-1],
      servers_Bps=float(rates[-1]),
      servers_bound=bool(bound[-1]),
      latency_s=float(logs[-1]) * self.unit_s,
      excess_s=float(np.mean((seconds - fitted)[self.counted])),
      error=np.array([np.nanmedian(missed[own]) for own in self.own]),
      errors=float(np.nanmedian(missed)),
      used=np.array([np.sum(self.counted[own]) for own in self.own]),
    )

  def _throughput(self) -> float:
    """Returns the best rate of a time in which something always went on."""
    start = self.transfers.start
    ends = np.maximum.accumulate(start + self.transfers.seconds)
    begins = np.flatnonzero(np.append(True, start[1:] > ends[:-1]))
    lasts = np.append(begins[1:], len(start)) - 1
    took_s = ends[lasts] - start[begins]
    return float(np.max(self.size * (lasts - begins + 1) / took_s))


def _settled(problem: _Problem, logs: np.ndarray) -> Links:
  """Returns the links, of parameters that fit, with this latency."""
  free = np.append(np.ones(problem.workers + 1, bool), False)
  logs = _refine(problem, logs, free)
  for links in (np.argsort(-logs[: problem.workers]), [problem.workers]):
    for link in links:
      free[link] = problem.effect(logs, link, _UNLIMITED) > _BINDS
      if not free[link]:
        logs[link] = _UNLIMITED
    logs = _refine(problem, logs, free)
  for link in np.flatnonzero(~free[:-1]):
    logs[link] = _largest_used(problem, logs, link)
  return problem.links(logs, free[:-1])


def _refine(
  problem: _Problem, logs: np.ndarray, free: np.ndarray
) -> np.ndarray:
  """Returns parameters, of which `free` were changed, that fit better."""
  logs, damping, slopes = logs.copy(), 0.01, None
  residual = problem.residual(logs)
  for _ in range(_ROUNDS):
    if slopes is None:
      slopes = _slopes(problem, logs, residual, free)
    bend = 3 * np.median(np.abs(residual)) + 1e-4
    weights = np.minimum(1, bend / np.maximum(np.abs(residual), 1e-12))
    square = slopes.T @ (weights[:, None] * slopes)
    square += np.diag(damping * np.diag(square) + 1e-9)
    step = np.linalg.solve(square, -slopes.T @ (weights * residual))
    tried = logs.copy()
    tried[free] += np.clip(step, -_CLIP, _CLIP)
    tried[-1] = np.clip(tried[-1], 0, problem.most_latency)
    new = problem.residual(tried)
    loss, new_loss = _huber(residual, bend), _huber(new, bend)
    if new_loss >= loss:
      if damping > 1e4:
        break
      damping *= 8
      continue
    logs, residual, damping, slopes = tried, new, damping / 8, None
    if new_loss > 0.9999 * loss or new_loss < _EXACT * len(new):
      break
  return logs


def _slopes(
  problem: _Problem, logs: np.ndarray, residual: np.ndarray, free: np.ndarray
) -> np.ndarray:
  """Returns the derivatives of the residual by the free parameters."""
  columns = []
  for index in np.flatnonzero(free):
    other = logs.copy()
    other[index] += _STEP
    columns.append((problem.residual(other) - residual) / _STEP)
  return np.stack(columns, axis=1)


def _huber(residual: np.ndarray, bend: float) -> float:
  size = np.abs(residual)
  inner = np.minimum(size, bend)
  return float(np.sum(inner * (size - inner / 2)))


def _largest_used(problem: _Problem, logs: np.ndarray, link: int) -> float:
  """Returns the lowest rate, as a logarithm, that holds nothing back."""
  low, high = problem.guess()[link] - 3, problem.guess()[link] + 6
  for _ in range(12):
    middle = (low + high) / 2
    if problem.effect(logs, link, middle) > _TOUCHES:
      low = middle
    else:
      high = middle
  return high


def _uncertainty_s(problem: _Problem, logs: np.ndarray) -> float:
  """Returns the standard error of the latency, seconds."""
  residual = problem.residual(logs)
  slopes = _slopes(problem, logs, residual, np.ones(len(logs), bool))
  square = slopes.T @ slopes + 1e-9 * np.eye(len(logs))
  noise = 1.5 * float(np.median(np.abs(residual))) + 1e-6
  return noise * math.sqrt(np.linalg.inv(square)[-1, -1]) * problem.unit_s


def _mean(*said: tuple[float, float]) -> float:
  """Returns the mean of (value, standard error) by precision."""
  weights = [1 / error**2 for _, error in said]
  values = [value for value, _ in said]
  return float(np.average(values, weights=weights))


def _middle(name: str, transfers: Transfers, workers: int) -> Transfers:
  """Returns the transfers in the middle of a run, if they are enough."""
  most = max(_MOST, _SHARE * workers)
  cut = max(len(transfers.start) - most, 0) // 2
  kept = Transfers(*(values[cut : cut + most] for values in transfers))
  counts = np.bincount(kept.worker, minlength=workers)
  for worker, count in enumerate(counts.tolist()):
    expected = f'at least {LEAST} that ended'
    require(count >= LEAST, f'{name} of worker {worker}', expected, count)
  return kept
