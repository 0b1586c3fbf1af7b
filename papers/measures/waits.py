"""Waits that ZipLine predicts, beside those of jittered iterations.

Workers repeat iterations of independent lognormal times.  As in ElasticBSP's
paper, the last one is repeated to predict the next R; each worker then stops
after the iteration that the search has chosen for it.
"""

from collections.abc import Mapping

import numpy as np

from sync import zipline

_WORKERS_S = 0.06, 0.09, 0.12, 0.18  # Mean iterations, 1 to 3 times as slow.
_SIGMAS = 0.01, 0.1
_LOOKAHEADS = 15, 240
_SEARCHES = {'quick': 200, 'full': 1000}


def measure(*, seed: int, scale: str) -> list[Mapping[str, object]]:
  """Returns a record per jitter and R with the mean waits of many searches."""
  return [
    {'sigma': sigma, 'R': lookahead, **_waits(seed, sigma, lookahead, scale)}
    for sigma in _SIGMAS
    for lookahead in _LOOKAHEADS
  ]


def find_waits(last_s: np.ndarray, ends_s: np.ndarray) -> tuple[float, float]:
  """Returns the predicted and the real longest wait at a barrier, seconds.

  Args:
    last_s: Float64 [n], seconds of each worker's last known iteration.
    ends_s: Float64 [n, 1 + R], seconds at which this iteration and the next R
      end.

  Returns:
    (predicted, real): wait of the barrier that is found from repeated
    intervals, and time between the first and the last worker that stops.
  """
  steps = np.arange(1, ends_s.shape[1])
  predicted = ends_s[:, :1] + steps * last_s[:, None]
  barrier = zipline.search(predicted)
  stops = ends_s[np.arange(len(ends_s)), barrier.iteration + 1]
  return barrier.wait_s, float(np.ptp(stops))


def _waits(
  seed: int, sigma: float, lookahead: int, scale: str
) -> Mapping[str, object]:
  rng = np.random.default_rng([seed, lookahead])
  mean_s = np.array(_WORKERS_S)[:, None]
  pairs = []
  for _ in range(_SEARCHES[scale]):
    shape = len(mean_s), lookahead + 1
    factors = rng.lognormal(-(sigma**2) / 2, sigma, shape)
    seconds = mean_s * factors
    first = rng.uniform(size=(len(mean_s), 1)) * mean_s
    following = first + np.cumsum(seconds[:, 1:], axis=1)
    ends_s = np.concatenate([first, following], axis=1)
    pairs.append(find_waits(seconds[:, 0], ends_s))
  predicted, real = np.mean(pairs, axis=0)
  return {
    'predicted_s': float(predicted),
    'real_s': float(real),
    'real_over_predicted': float(real / predicted),
  }
