"""Synthetic traces of worker speeds, on which predictors are compared.

They show where a predictor is worse than none.  Each kind is a known random
process: noise, walks, regimes, outages, periods, spikes, with and without
driving factors.  predict/gate.py was chosen on the kinds of `DESIGN`, with
seeds below 200; the kinds of `HELD_OUT` were added afterwards as its test set.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

# Speeds of workers at rest.
_LEVELS = np.array([100.0, 40.0, 250.0, 70.0])
_LATE = 0.7  # Share of the trace before its process changes.

Trace = tuple[np.ndarray, np.ndarray]


def make(kind: str, *, seed: int, steps: int = 600, workers: int = 4) -> Trace:
  """Returns speeds, float64 [steps, workers], and factors [.., .., F].

  Factors are read after the iteration, as predictors observe them.  Speeds are
  NaN where a worker has not completed an iteration.

  Args:
    kind: One of `DESIGN` or `HELD_OUT`.

  Raises:
    ValueError: If there is no such kind.
  """
  kinds = DESIGN | HELD_OUT
  if kind not in kinds:
    raise ValueError(f'kind: expected one of {tuple(kinds)}, got {kind!r}.')
  draws = _Draws(
    np.random.default_rng(seed), np.arange(steps)[:, None], workers
  )
  shares, factors = kinds[kind](draws)
  if factors is None:
    factors = np.empty((steps, workers, 0))
  return np.resize(_LEVELS, workers) * np.maximum(shares, 0.01), factors


@dataclasses.dataclass(frozen=True)
class _Draws:
  """Random numbers of the processes, for all times [T, 1] and workers."""

  random: np.random.Generator
  times: np.ndarray
  workers: int

  @property
  def size(self) -> tuple[int, int]:
    return len(self.times), self.workers

  @property
  def is_early(self) -> np.ndarray:
    return self.times < _LATE * len(self.times)

  def white(self, sigma: float) -> np.ndarray:
    return sigma * self.random.standard_normal(self.size)

  def uniform(self, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    return self.random.uniform(low, high, self.size)

  def piecewise_constant(
    self, probability: float, values: Callable[[], np.ndarray]
  ) -> np.ndarray:
    """Returns values, [T, workers], that stay until a random change."""
    changes = self.uniform() < probability
    changes[0] = True
    since = np.maximum.accumulate(np.where(changes, self.times, 0), axis=0)
    return np.take_along_axis(values(), since, axis=0)


_Kind = tuple[np.ndarray, np.ndarray | None]


def _noise(draws: _Draws) -> _Kind:
  return 1 + draws.white(0.05), None


def _walk(draws: _Draws) -> _Kind:
  return np.exp(np.cumsum(draws.white(0.01), axis=0)), None


def _shifts(draws: _Draws) -> _Kind:
  level = draws.piecewise_constant(0.02, lambda: draws.uniform(0.3, 1))
  return level + draws.white(0.02), None


def _spikes(draws: _Draws) -> _Kind:
  hit = draws.uniform() < 0.03
  return np.where(hit, 0.3, 1.0) + draws.white(0.02), None


def _periodic(draws: _Draws) -> _Kind:
  phase = draws.random.uniform(0, 6, draws.workers)
  wave = np.sin(2 * np.pi * draws.times / 40 + phase)
  return 1 + 0.3 * wave + draws.white(0.03), None


def _driven(draws: _Draws) -> _Kind:
  load = draws.piecewise_constant(0.1, draws.uniform)
  return 1 / (1 + load) + draws.white(0.02), _leading_factors(load)


def _constant(draws: _Draws) -> _Kind:
  return np.ones(draws.size), None


def _drift(draws: _Draws) -> _Kind:
  slope = draws.random.uniform(-0.7, 1.5, draws.workers)
  return 1 + slope * draws.times / len(draws.times) + draws.white(0.02), None


def _outages(draws: _Draws) -> _Kind:
  down = draws.piecewise_constant(0.03, lambda: draws.uniform() < 0.15)
  shares = np.where(down, 0.05, 1.0) * (1 + draws.white(0.03))
  shares[draws.uniform() < 0.05] = np.nan
  return shares, None


def _late_shifts(draws: _Draws) -> _Kind:
  return np.where(draws.is_early, 0.7, _shifts(draws)[0]), None


def _late_spikes(draws: _Draws) -> _Kind:
  calm = 1 + draws.white(0.02)
  return np.where(draws.is_early, calm, _spikes(draws)[0]), None


def _volatile(draws: _Draws) -> _Kind:
  sigma = draws.piecewise_constant(0.02, lambda: draws.uniform(0, 0.15))
  return 1 + sigma * draws.white(1.0), None


def _sawtooth(draws: _Draws) -> _Kind:
  period = draws.random.integers(15, 60, draws.workers)
  ramp = draws.times % period / period
  return 1 - 0.5 * ramp + draws.white(0.02), None


def _switching(draws: _Draws) -> _Kind:
  slow = draws.piecewise_constant(0.3, lambda: draws.uniform() < 0.5)
  return np.where(slow, 0.5, 1.0) + draws.white(0.03), None


def _autoregressive(draws: _Draws) -> _Kind:
  shares, noise = np.ones(draws.size), draws.white(0.05)
  for k in range(1, len(shares)):
    shares[k] += 0.8 * (shares[k - 1] - 1) + noise[k]
  return shares, None


def _heavy_tails(draws: _Draws) -> _Kind:
  return np.exp(0.03 * draws.random.standard_t(2, size=draws.size)), None


def _noisy_walk(draws: _Draws) -> _Kind:
  return _walk(draws)[0] * (1 + draws.white(0.02)), None


def _idle_factors(draws: _Draws) -> _Kind:
  shares, _ = _shifts(draws)
  return shares, draws.random.uniform(size=(*draws.size, 2))


def _misleading_factors(draws: _Draws) -> _Kind:
  shares, factors = _driven(draws)
  return np.where(draws.is_early, shares, _driven(draws)[0]), factors


def _upside_down(draws: _Draws) -> _Kind:
  shares, factors = _driven(draws)
  return np.where(draws.is_early, shares, 1.5 - shares), factors


def _bursts(draws: _Draws) -> _Kind:
  load = draws.piecewise_constant(
    0.05, lambda: draws.random.exponential(0.5, draws.size)
  )
  factors = _leading_factors(load) + 0.2 * draws.white(1.0)[..., None]
  return np.exp(-load) + draws.white(0.02), factors


def _square(draws: _Draws) -> _Kind:
  period = draws.random.integers(20, 80, draws.workers)
  loaded = draws.times % period < period // 3
  return np.where(loaded, 0.6, 1.0) + draws.white(0.04), None


def _throttling(draws: _Draws) -> _Kind:
  hot = draws.piecewise_constant(0.04, lambda: draws.uniform() < 0.5)
  heat = np.zeros(draws.size)
  for k in range(1, len(heat)):
    heat[k] = heat[k - 1] + 0.1 * (hot[k] - heat[k - 1])
  return 1 - 0.5 * heat + draws.white(0.01), None


def _regimes(draws: _Draws) -> _Kind:
  level = draws.piecewise_constant(
    0.01, lambda: draws.random.lognormal(0, 0.3, draws.size)
  )
  sigma = draws.piecewise_constant(0.01, lambda: draws.uniform(0.01, 0.1))
  return level * np.exp(sigma * draws.white(1.0)), None


def _jumping_walk(draws: _Draws) -> _Kind:
  jumps = np.where(draws.uniform() < 0.01, draws.white(0.4), 0)
  walk = np.cumsum(draws.white(0.005) + jumps, axis=0)
  return np.exp(np.clip(walk, -2, 2)), None


def _late_noise(draws: _Draws) -> _Kind:
  walk, noise = _walk(draws)[0], draws.white(0.05)
  return np.where(draws.is_early, walk, 1 + noise), None


def _late_walk(draws: _Draws) -> _Kind:
  walk, noise = _walk(draws)[0], draws.white(0.05)
  return np.where(draws.is_early, 1 + noise, walk), None


def _crowd(draws: _Draws) -> _Kind:
  delay = draws.random.pareto(2.5, len(draws.times))[:, None]
  return 1 / (1 + 0.1 * delay) + draws.white(0.02), None


def _hidden_load(draws: _Draws) -> _Kind:
  visible, hidden = (
    draws.piecewise_constant(0.05, draws.uniform) for _ in range(2)
  )
  return 1 / (1 + visible + hidden) + draws.white(0.02), _leading_factors(
    visible
  )


def _lost_factors(draws: _Draws) -> _Kind:
  shares, factors = _driven(draws)
  is_read = (draws.times < len(draws.times) / 2)[..., None]
  return shares, np.where(is_read, factors, np.nan)


def _leading_factors(load: np.ndarray) -> np.ndarray:
  """Returns factors [T, workers, 1] that precede the load by an iteration."""
  return np.concatenate([load[1:], load[-1:]])[..., None]


DESIGN = {
  'noise': _noise,
  'walk': _walk,
  'shifts': _shifts,
  'spikes': _spikes,
  'periodic': _periodic,
  'driven': _driven,
  'constant': _constant,
  'drift': _drift,
  'outages': _outages,
  'late shifts': _late_shifts,
  'late spikes': _late_spikes,
  'volatile': _volatile,
  'sawtooth': _sawtooth,
  'switching': _switching,
  'autoregressive': _autoregressive,
  'heavy tails': _heavy_tails,
  'noisy walk': _noisy_walk,
  'idle factors': _idle_factors,
  'misled': _misleading_factors,
  'upside down': _upside_down,
  'bursts': _bursts,
}
HELD_OUT = {
  'square': _square,
  'throttled': _throttling,
  'regimes': _regimes,
  'jumping walk': _jumping_walk,
  'late noise': _late_noise,
  'late walk': _late_walk,
  'crowd': _crowd,
  'hidden load': _hidden_load,
  'lost factors': _lost_factors,
}
