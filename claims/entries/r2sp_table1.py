"""R2SP's table I, its figure 2, and BSP's iterations on the larger cluster."""

import ml_collections

from claims.entries import _r2sp
from claims.published import Claim, Entry, Measure, near

# cluster.workers and route.server.servers: table I, figure 2, figure 7.
_SIZES = {'table': (8, 2), 'alone': (1, 2), 'large': (16, 4)}
_ITERATION_S = dict(zip(_r2sp.WORKLOADS, (0.23, 3.39, 9.74, 1.97), strict=True))
_LARGE_S = dict(zip(_r2sp.WORKLOADS, (0.22, 3.60, 8.09, 1.70), strict=True))
_ALONE = dict(zip(_r2sp.WORKLOADS, (0.73, 0.50, 0.44, 0.63), strict=True))
_GRID = f"""
  {_r2sp.FIELDS} = {', '.join(map(_r2sp.values, _r2sp.WORKLOADS))};
  cluster.workers & route.server.servers =
    {', '.join(f'{n} & {k}' for n, k in _SIZES.values())}
"""


def get_config() -> ml_collections.ConfigDict:
  """Returns the shared config: BSP, 50 iterations of each worker or more."""
  return _r2sp.base(workers=8, servers=2, iterations=100)


def _of(model: str, size: str) -> dict[str, object]:
  return _r2sp.of(model, **{'cluster.workers': _SIZES[size][0]})


ENTRY = Entry(
  family='R2SP',
  title='Table I: the cost of communication in BSP',
  published_setup=_r2sp.PUBLISHED_SETUP
  + '; table I and figure 2 with 8 workers and 2 servers',
  our_setup='timing-only, computing with 10 % jitter; rates of links and '
  'computing are calibrated from table I, so its rows only check the '
  'calibration; figures 2 and 7 are predicted from it',
  differences=_r2sp.DIFFERENCES,
  claims=(
    *(
      Claim(
        text=f'{model}: seconds of an iteration (calibrated)',
        source='R2SP, table I',
        mark='found',
        paper=paper,
        measure=Measure('iteration_s', _of(model, 'table')),
        confirmed=near(paper, 0.1),
        shape=near(paper, 0.25),
        unfalsifiable='rates and computing are calibrated from this number',
      )
      for model, paper in _ITERATION_S.items()
    ),
    *(
      Claim(
        text=f'{model}: seconds of an iteration of 16 workers, 4 servers',
        source='R2SP, figure 7',
        mark='found',
        paper=paper,
        measure=Measure('iteration_s', _of(model, 'large')),
        confirmed=near(paper, 0.1),
        shape=near(paper, 0.25),
      )
      for model, paper in _LARGE_S.items()
    ),
    *(
      Claim(
        text=f'{model}: time of an iteration with one worker over that of 8',
        source='R2SP, figure 2',
        mark='read off',
        paper=paper,
        measure=Measure(
          'iteration_s', _of(model, 'alone'), _of(model, 'table')
        ),
        confirmed=near(paper, 0.15),
        shape=(0.0, 0.9),
      )
      for model, paper in _ALONE.items()
    ),
  ),
  grids={'quick': _GRID, 'full': _GRID},
)
