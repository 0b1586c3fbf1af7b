"""Records the computed speed-ups of GradientFlow on 1 to 512 GPUs.

bench/gradientflow.py has the model and its assumptions.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from bench import gradientflow
from bench.gradientflow import Assumed

_ROUTES = ('ring', 'hierarchy')
_GPUS = {'quick': (8, 64, 512), 'full': gradientflow.GPUS}
_MANY = (64, 512)
_SLOW_GBps = 0.5  # Link of a host: 4 of the 56 Gbit/s.


def measure(*, seed: int, scale: str) -> list[Mapping[str, Any]]:
  """Returns records of speed-ups over one GPU, by technique and by theta."""
  del seed  # The computation has no randomness.
  return [
    *(
      record
      for route, gpus in itertools.product(_ROUTES, _GPUS[scale])
      for record in _rungs(Assumed(), route, gpus)
    ),
    *_rungs(Assumed(link_GBps=_SLOW_GBps), 'ring', 64),
    *(
      record
      for route, gpus in itertools.product(_ROUTES, _MANY)
      for record in _by_theta(route, gpus)
    ),
  ]


def _rungs(
  assumed: Assumed, route: str, gpus: int
) -> Iterator[Mapping[str, Any]]:
  """Yields a record per model and technique, with its gain."""
  for model, speedups in gradientflow.ladder(assumed, gpus, route).items():
    before = None
    for technique, speedup in speedups.items():
      yield {
        'model': model,
        'route': route,
        'gpus': gpus,
        'technique': technique,
        'speedup': speedup,
        'over_before': before and speedup / before,
        'host_GBps': assumed.link_GBps,
      }
      before = speedup


def _by_theta(route: str, gpus: int) -> Iterator[Mapping[str, Any]]:
  """Yields a record per model with the best bucket size and its gain."""
  curves = {
    model: {
      str(theta): gradientflow.overlap_rung(Assumed(bucket_bytes=theta), model)
      for theta in gradientflow.THETAS
    }
    for model in gradientflow.MODELS
  }
  speedups = gradientflow.speedups(Assumed(), gpus, route, curves)
  for model, by_theta in speedups.items():
    best = max(by_theta, key=by_theta.__getitem__)
    yield {
      'model': model,
      'route': route,
      'gpus': gpus,
      'technique': 'theta',
      'best_MB': float(best) / 1e6,
      'over_tensors': by_theta[best] / by_theta[str(0.0)],
      'over_one': by_theta[best] / by_theta[str(math.inf)],
      **{f'speedup at {theta}': x for theta, x in by_theta.items()},
    }
