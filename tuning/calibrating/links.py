"""Fits the rates of links to the starts and durations of transfers.

All transfers of one direction have one size.  Each uses its worker's link, and
equal parts of it the servers' links, so that the servers count as one server
with the sum of their rates.  The rates are those with which the fluid model of
`cluster.virtual.network`, given the starts, comes closest to the durations:
least squares by Levenberg and Marquardt (Marquardt, 1963) with weights of Huber
(1964), so that single stalls have little effect.
"""

import math
from typing import NamedTuple

import numpy as np

from cluster.virtual.network import Network
from configs.checks import require

LEAST = 8  # Transfers of a worker, to find its link.
_MOST = 2000  # Largest number of transfers to replay, from the middle,
_SHARE = 50  # or this multiple of the number of workers.
_ROUNDS = 40
_EXACT = 1e-9  # Loss per transfer at which the fit ends.
_STEP = 0.02  # Step of a rate's logarithm for derivatives.
_CLIP = 0.5  # Largest change of a logarithm in a round.
_APART = 0.05  # Typical difference of latencies, as a share of a duration,
_LATENCY = 0.1  # and typical latency.
_BINDS = 0.004  # Mean change of durations without a link that limits them.
_TOUCHES = 0.002  # Mean change at which a limit begins to have an effect.
_LAST_S = 1e18  # Later than any event.
_UNLIMITED = 60.0  # Logarithm of an unlimited rate: 1e26 bytes per second.


class Transfers(NamedTuple):
  """Transfers in one direction, by their starts.

  Attributes:
    worker: Int [T], index of the worker.
    start: Float [T], seconds, sorted.
    seconds: Float [T], duration until the last byte arrived, positive.
  """

  worker: np.ndarray
  start: np.ndarray
  seconds: np.ndarray


class FittedLinks(NamedTuple):
  """Links of one direction.

  Attributes:
    worker_Bps: Float [N], rate of each worker, bytes per second.
    worker_bound: Bool [N], True if the link ever limited a transfer.  Otherwise
      its rate is the largest that was used, and the link may be faster.
    servers_Bps: Rate of all servers together, bytes per second.
    servers_bound: True if the servers' links ever limited a transfer.
    latency_s: Seconds of a transfer in addition to those of its bytes.
    excess_s: Mean seconds of transfers beyond the fit, such as stalls.
    error: Float [N], median relative error of the durations of each worker.
    errors: Median relative error of all durations.
    used: Int [N], number of transfers of each worker in the fit.
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
) -> tuple[FittedLinks, FittedLinks]:
  """Returns the links that explain transfers best, of both directions.

  Simultaneous transfers determine the servers' rate, and a worker's link only
  if it is slower than its share.  If the fit is as good without a link, the
  link counts as unbound.  Workers' links are tried first: one link of the
  servers is a simpler explanation than many.

  If few transfers overlap, rates and latency cannot be separated.  Therefore
  the latency is a mean, weighted by precision, of the estimates of this
  direction and the other one, and zero.  Deterministic; O(T N) per round.

  Args:
    down: Pulls.
    up: Pushes.
    num_workers: Number of workers, N.
    size_bytes: Bytes of a transfer.

  Raises:
    ValueError: If a worker has fewer than `LEAST` transfers in a direction.
  """
  problems = [
    _Problem(_middle(name, transfers, num_workers), num_workers, size_bytes)
    for name, transfers in (('pulls', down), ('pushes', up))
  ]
  every = np.ones(num_workers + 2, bool)
  first = [_refine(problem, problem.guess(), every) for problem in problems]
  estimates = [
    (logs[-1] * problem.unit_s, _uncertainty_s(problem, logs))
    for problem, logs in zip(problems, first, strict=True)
  ]
  found = []
  for problem, logs, own, other in zip(
    problems, first, estimates, estimates[::-1], strict=True
  ):
    apart = (other[0], math.hypot(other[1], _APART * problem.unit_s))
    latency_s = _mean(own, apart, (0.0, _LATENCY * problem.unit_s))
    latency = min(latency_s / problem.unit_s, problem.most_latency)
    found.append(_fit_rates(problem, np.append(logs[:-1], latency)))
  return found[0], found[1]


def replay(
  transfers: Transfers,
  *,
  worker_Bps: np.ndarray,
  servers_Bps: float,
  latency_s: float,
  size_bytes: float,
) -> np.ndarray:
  """Returns the durations of transfers in the fluid model, seconds [T].

  Args:
    transfers: Transfers, of which the starts are used.
    worker_Bps: Float [N], rate of each worker.
    servers_Bps: Rate of all servers together.
    latency_s: Latency of a transfer.
    size_bytes: Bytes of a transfer.
  """
  servers = len(worker_Bps)
  network = Network(
    up_Bps=[*worker_Bps, math.inf],
    down_Bps=[math.inf] * servers + [servers_Bps],
    latency_s=[0.0] * servers + [latency_s],
  )
  ends = np.zeros(len(transfers.start))

  def advance(until_s: float) -> None:
    while (time := network.next_time()) <= until_s:
      ends[network.advance(time)] = time

  pairs = zip(transfers.start.tolist(), transfers.worker.tolist(), strict=True)
  for start, worker in pairs:
    advance(start)
    network.start(start, worker, servers, size_bytes)  # Ids count from 0.
  advance(_LAST_S)
  durations: np.ndarray = ends - transfers.start
  return durations


class _Problem:
  """Measured durations, and the residuals of the model.

  Parameters are one vector: the logarithms of the workers' rates and of the
  servers', and the latency in units of the median duration.
  """

  def __init__(self, transfers: Transfers, workers: int, size_bytes: float):
    self.transfers, self.workers, self.size = transfers, workers, size_bytes
    self.unit_s = float(np.median(transfers.seconds))
    first = np.unique(transfers.worker, return_index=True)[1]
    # First transfers are warm-up, or shared links with omitted ones.
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
    counted: np.ndarray = missed[self.counted]
    return counted

  def effect(self, logs: np.ndarray, link: int, log: float) -> float:
    """Returns the mean relative change of durations with another rate."""
    other = logs.copy()
    other[link] = log
    on = self.own[link] if link < self.workers else slice(None)
    before, after = self.seconds(logs)[on], self.seconds(other)[on]
    return float(np.mean(np.abs(after / before - 1)))

  def links(self, logs: np.ndarray, bound: np.ndarray) -> FittedLinks:
    fitted, seconds = self.seconds(logs), self.transfers.seconds
    missed = np.where(self.counted, np.abs(fitted / seconds - 1), np.nan)
    rates = np.exp(logs[:-1])
    return FittedLinks(
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
    """Returns the best rate of an interval without idle time."""
    start = self.transfers.start
    ends = np.maximum.accumulate(start + self.transfers.seconds)
    begins = np.flatnonzero(np.append(True, start[1:] > ends[:-1]))
    lasts = np.append(begins[1:], len(start)) - 1
    took_s = ends[lasts] - start[begins]
    return float(np.max(self.size * (lasts - begins + 1) / took_s))


def _fit_rates(problem: _Problem, logs: np.ndarray) -> FittedLinks:
  """Returns the links that fit best with the latency of `logs`."""
  free = np.append(np.ones(problem.workers + 1, bool), False)
  logs = _refine(problem, logs, free)
  for links in (np.argsort(-logs[: problem.workers]), [problem.workers]):
    for link in links:
      free[link] = problem.effect(logs, link, _UNLIMITED) > _BINDS
      if not free[link]:
        logs[link] = _UNLIMITED
    logs = _refine(problem, logs, free)
  for link in np.flatnonzero(~free[:-1]).tolist():
    logs[link] = _largest_used(problem, logs, link)
  return problem.links(logs, free[:-1])


def _refine(
  problem: _Problem, logs: np.ndarray, free: np.ndarray
) -> np.ndarray:
  """Returns parameters with a better fit, of which only `free` differ."""
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
  """Returns the logarithm of the lowest rate that limits no transfer."""
  guess = float(problem.guess()[link])
  low, high = guess - 3, guess + 6
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


def _mean(*estimates: tuple[float, float]) -> float:
  """Returns the mean of (value, standard error) by precision."""
  weights = [1 / error**2 for _, error in estimates]
  values = [value for value, _ in estimates]
  return float(np.average(values, weights=weights))


def _middle(name: str, transfers: Transfers, workers: int) -> Transfers:
  """Returns the transfers in the middle of a run; refuses too few."""
  most = max(_MOST, _SHARE * workers)
  cut = max(len(transfers.start) - most, 0) // 2
  chosen = Transfers(*(values[cut : cut + most] for values in transfers))
  counts = np.bincount(chosen.worker, minlength=workers)
  for worker, count in enumerate(counts.tolist()):
    expected = f'at least {LEAST} that ended'
    require(count >= LEAST, f'{name} of worker {worker}', expected, count)
  return chosen
