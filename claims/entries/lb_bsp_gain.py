"""LB-BSP's speed-up over BSP, by the inequality of workers."""

from typing import Any

import ml_collections

from claims.entries import _shared
from claims.published import MORE, Claim, Entry, Measure, near

_SLOWEST = 1, 2, 4, 8
_CHOSEN = (
  '"up to" holds on some cluster, and the inequality of ours is our choice'
)
_LINEAR = 'times of the clock are as linear as the model; tests hold it'
_GRID = f"""
  cluster.speed.slowdown =
    {', '.join(f'(1.0, 1.0, 1.0, {n}.0)' for n in _SLOWEST)};
  cluster.speed.name & cluster.speed.lognormal.sigma &
    cluster.speed.regime.factors & cluster.speed.regime.sigma =
    lognormal & 0.02 & &, regime & & (1.0, 2.0) & 0.02;
  sync.name & batching.name =
    bsp & fixed, bsp & lb_bsp, bsp & lb_bsp_gpu, asp & fixed, ssp & fixed
"""


def get_config() -> ml_collections.ConfigDict:
  """Returns the shared config: 4 workers, 300 supersteps."""
  config = _shared.timing(
    workers=4, iterations=300, size_bytes=400_000, compute_s=0.1
  )
  speed = config.cluster.speed
  speed.fixed_s, speed.per_example_s = 0.0, 0.004
  return config


def _of(
  batching: str, slowest: int, speed: str = 'lognormal', sync: str = 'bsp'
) -> dict[str, object]:
  return {
    'sync.name': sync,
    'batching.name': batching,
    'cluster.speed.name': speed,
    'cluster.speed.slowdown': (1.0, 1.0, 1.0, float(slowest)),
  }


def _bound(slowest: int) -> float:
  """Returns X / (n min v) over X / sum v."""
  return slowest * (3 + 1 / slowest) / 4


def _gain(
  text: str,
  source: str,
  mark: str,
  paper: float,
  of: dict[str, Any],
  **rule: Any,
) -> Claim:
  by = of | {'batching.name': 'fixed', 'sync.name': 'bsp'}
  return Claim(
    text=f'{text}: examples/s over BSP',
    source=source,
    mark=mark,
    paper=paper,
    measure=Measure('examples_per_s', of, by),
    **rule,
  )


ENTRY = Entry(
  family='LB-BSP',
  title='Speed-up by the inequality of workers',
  published_setup='CPU and GPU clusters that are shared with others; '
  'CifarNet, ResNet-32, Inception-v3, SVM; TensorFlow, MXNet, PyTorch. The '
  'cluster of the largest gains was not found.',
  our_setup='timing-only, 4 workers, one of them 1, 2, 4 or 8 times as slow, '
  'batches of 32 in the mean, .004 s an example, 2 % jitter, 400 kB over 10 '
  'Gbit/s; or, for shared clusters, each worker twice as slow half of the '
  'time, in phases of 50 iterations; measured after 90 of 300 supersteps',
  differences='the clusters: "up to" is compared with the gain on a cluster '
  'with one slow worker',
  claims=(
    _gain(
      'up to 2 times as fast; slowest 4 times as slow',
      'LB-BSP, poster of 2018, abstract',
      'abstract',
      2.0,
      _of('lb_bsp', 4),
      confirmed=(2.0, 100.0),
      shape=MORE,
      unfalsifiable=_CHOSEN,
    ),
    _gain(
      'GPU rule, up to 54 % faster; slowest 2 times as slow',
      'LB-BSP, SoCC 2020',
      'abstract',
      1.54,
      _of('lb_bsp_gpu', 2),
      confirmed=(1.54, 100.0),
      shape=MORE,
      unfalsifiable=_CHOSEN,
    ),
    _gain(
      'CPU rule, up to 38.7 % faster; shared, equal workers',
      'LB-BSP, SoCC 2020',
      'secondary',
      1.387,
      _of('lb_bsp', 1, 'regime'),
      confirmed=(1.387, 100.0),
      shape=MORE,
      unfalsifiable=_CHOSEN,
    ),
    _gain(
      'CPU rule, up to 38.7 % faster; shared, slowest 2 times as slow',
      'LB-BSP, SoCC 2020',
      'secondary',
      1.387,
      _of('lb_bsp', 2, 'regime'),
      confirmed=(1.387, 100.0),
      shape=MORE,
      unfalsifiable=_CHOSEN,
    ),
    *(
      _gain(
        f'{rule}, slowest {n} times as slow: X / sum v',
        'LB-BSP, model',
        'derived',
        round(_bound(n), 3),
        _of(rule, n),
        confirmed=near(_bound(n), 0.05),
        shape=near(_bound(n), 0.2),
        unfalsifiable=_LINEAR,
      )
      for rule in ('lb_bsp', 'lb_bsp_gpu')
      for n in _SLOWEST
    ),
    *(
      Claim(
        text=f'slowest 4 times as slow: examples/s, LB-BSP over {scheme}',
        source='ours',
        mark='ours',
        measure=Measure(
          'examples_per_s',
          _of('lb_bsp', 4),
          _of('fixed', 4, sync=scheme.lower()),
        ),
        confirmed=(0.95, 100.0),
      )
      for scheme in ('ASP', 'SSP')
    ),
    Claim(
      text='CifarNet, ResNet-32, Inception-v3 and SVM: absolute times',
      source='LB-BSP, SoCC 2020',
      mark='secondary',
      unavailable='no figures of them were found; needs GPUs, ImageNet and the '
      'malicious-URL data',
    ),
    Claim(
      text='federated learning: LeNet-5 and LSTM beside adaptive tau and '
      'batches',
      source='LB-BSP, TCC',
      mark='found',
      unavailable='no figures of it were found; federated learning is no part '
      'of this project',
    ),
  ),
  grids={'quick': _GRID, 'full': _GRID},
  derived='batches',
)
