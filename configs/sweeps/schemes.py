"""All schemes on equal and on unequal workers: 60 runs of time alone.

64 virtual workers push and pull 100 MB to and from eight servers over 10
Gbit/s, as in examples/timing_only.py; nothing is learned.

python sweep.py --config=configs/sweeps/schemes.py --out=runs/schemes
python main.py --config=configs/sweeps/schemes.py      (one run: BSP)
"""

import ml_collections

from configs import timing

_WORKERS, _ITERATIONS = 64, 100
_UNEQUAL = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0) * (_WORKERS // 8)

GRID = f"""
  sync.name = bsp, asp, ssp, dssp, elastic, r2sp;
  cluster.speed.slowdown = (1.0,), {_UNEQUAL};
  seed = 0, 1, 2, 3, 4
"""


def get_config() -> ml_collections.ConfigDict:
  """Returns the config that all runs share."""
  return timing.config(
    timing.fields(
      workers=_WORKERS, iterations=_ITERATIONS, size_bytes=100_000_000, batch=32
    ),
    timing.links(1.25e9, 1.25e9),
    {
      'route.server.servers': 8,
      'cluster.speed.slowdown': (1.0,),
      'cluster.speed.fixed_s': 0.18,
      'cluster.speed.per_example_s': 0.01,
      'checkpoint.every_s': 60.0,
    },
  )
