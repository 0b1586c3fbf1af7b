"""Four schemes while workers fail, by time alone: goodput by failure rate.

Eight virtual workers die at random times, each on average some seconds after
its start, and return 8 s later.  A local step takes 0.1 s with 10 % jitter; an
iteration has 1 or 16 of them, and pushes 5 MB to two dedicated servers at 1
Gbit/s.  Without failures a run takes about 600 s.

The variant is the mean time between two failures of a worker, seconds, or none.
Goodput is examples / virtual_s in results.csv over the same of variant none:

python sweep.py --config=configs/sweeps/goodput.py:none --out=runs/goodput/none
python sweep.py --config=configs/sweeps/goodput.py:15 --out=runs/goodput/15
"""

import random

import ml_collections

from configs import timing

_WORKERS, _BATCH = 8, 16
_RUN_S, _RESTART_S = 600.0, 8.0
_STEP_S, _EXCHANGE_S = 0.1, 0.4  # Of a local step; of a push and a pull, about.


def _values(local_steps: int) -> str:
  """Returns the values of the fields that depend on the local steps."""
  compute_s = local_steps * _STEP_S
  iterations = round(_RUN_S / (compute_s + _EXCHANGE_S))
  examples = _WORKERS * iterations * _BATCH * local_steps
  return f'{local_steps} & {compute_s} & {examples}'


GRID = f"""
  sync.name & sync.quorum.minimum = bsp &, ssp &, elastic &, quorum & 4;
  batching.local_steps & cluster.speed.fixed_s & model.none.num_train =
    {_values(1)}, {_values(16)}
"""


def get_config(variant: str = 'none') -> ml_collections.ConfigDict:
  """Returns the config that all runs share.

  Args:
    variant: Mean seconds between failures, as text; 'none' for no failures.

  Raises:
    ValueError: If the variant is neither 'none' nor a positive number.
  """
  mean_s = _parse(variant)
  return timing.config(
    timing.fields(
      workers=_WORKERS, iterations=1, size_bytes=5_000_000, batch=_BATCH
    ),
    timing.FEW_OUTPUTS,
    {
      'route.server.servers': 2,
      'cluster.speed.per_example_s': 0.0,
      'cluster.speed.slowdown': (1.0,),
      'cluster.script': () if mean_s is None else _failures(mean_s),
      'checkpoint.every_s': 60.0,
    },
  )


def _parse(variant: str) -> float | None:
  if variant == 'none':
    return None
  try:
    mean_s = float(variant)
  except ValueError:
    mean_s = 0.0
  if not mean_s > 0:
    raise ValueError(
      f"variant: expected 'none' or seconds > 0, got {variant!r}."
    )
  return mean_s


def _failures(mean_s: float) -> tuple[tuple[float, str, int], ...]:
  """Returns leaves and joins in a time that is longer than any run."""
  # Lives are exponentially distributed; other means scale the same draws.
  entries = []
  for worker in range(_WORKERS):
    rng, time = random.Random(f'0-{worker}'), 0.0
    while (time := time + mean_s * rng.expovariate(1)) < 10 * _RUN_S:
      entries.append((time, 'leave', worker))
      time += _RESTART_S
      entries.append((time, 'join', worker))
  return tuple(sorted(entries))
