"""Largest lead of a worker under DSSP."""

import ml_collections

from claims.entries import _shared
from claims.published import Claim, Entry, Measure

_SLOWEST = 3, 10, 30
_GRID = f"""
  cluster.speed.slowdown =
    {', '.join(f'(1.0, 1.0, 1.0, {n}.0)' for n in _SLOWEST)};
  sync.name = dssp
"""


def get_config() -> ml_collections.ConfigDict:
  """Returns what the runs share: 4 workers, 200 iterations in the mean."""
  return _shared.timed(
    workers=4, iterations=200, size_bytes=400_000, compute_s=0.1
  )


ENTRY = Entry(
  family='DSSP',
  title='Largest leads',
  theirs='a worker may lead by s to s + r iterations, 3 to 15',
  ours='time alone, 4 workers with 10 % jitter, one of them 3, 10 or 30 times '
  'as slow',
  differs='as printed, their pseudo-code lets the fastest worker go on by one '
  'more iteration, and anew whenever it asks; ours never leads by more than 15',
  claims=tuple(
    Claim(
      text=f'largest lead, slowest {n} times as slow',
      source='DSSP, text',
      mark='found',
      paper=15,
      measure=Measure(
        'largest_lead',
        {'cluster.speed.slowdown': (1.0, 1.0, 1.0, float(n))},
      ),
      confirmed=(1, 15),
      shape=(1, 16),
    )
    for n in _SLOWEST
  ),
  seen='A lead is counted as a push arrives, whose worker has to wait then: it '
  'is 16 then.',
  grids={'quick': _GRID, 'full': _GRID},
  derived='leads',
)
